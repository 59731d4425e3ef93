"""Folders that were carried are unpacked once, and refused if they were damaged or are for another Python."""

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu" / "install.py"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "1"
    folder.mkdir()
    (tmp_path / "module.py").write_text("value = 1\n")
    with tarfile.open(folder / "package.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "module.py", arcname="module.py")
    digest = hashlib.sha256((folder / "package.tar.xz").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  package.tar.xz\n")
    (folder / "PYTHON").write_text(HERE)
    return folder


def install(site: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(SCRIPT), str(site), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_packages_are_unpacked_once(tmp_path: Path, folder: Path) -> None:
    site = tmp_path / "site"
    first, second = install(site, folder), install(site, folder)
    assert (first.returncode, second.returncode) == (0, 0)
    assert (site / "module.py").read_text() == "value = 1\n"
    assert "unpacked package.tar.xz" in first.stdout
    assert "unpacked" not in second.stdout


def test_a_damaged_archive_is_refused(tmp_path: Path, folder: Path) -> None:
    with (folder / "package.tar.xz").open("ab") as file:
        file.write(b"?")
    answer = install(tmp_path / "site", folder)
    assert answer.returncode == 1
    assert "bring the folder again" in answer.stderr
    assert not (tmp_path / "site" / "module.py").exists()


def test_another_python_is_told_what_to_pack(tmp_path: Path, folder: Path) -> None:
    (folder / "PYTHON").write_text("3.8")
    answer = install(tmp_path / "site", folder)
    assert answer.returncode == 1
    assert f"--python {HERE}" in answer.stderr
