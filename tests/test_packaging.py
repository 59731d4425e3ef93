"""The packages that are installed are those in the folders."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def test_every_package_ships() -> None:
    packages = {
        ".".join((name, *init.parent.relative_to(folder).parts))
        for name, folder in {
            "campo_onnx": ROOT / "campo_onnx",
            **{name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()},
        }.items()
        for init in folder.rglob("__init__.py")
    }
    assert set(SETUPTOOLS["packages"]) == packages


def folder_of(package: str) -> Path:
    """Folder of a package: `package-dir` gives one another name."""
    return ROOT / SETUPTOOLS["package-dir"].get(package, package.replace(".", "/"))


def test_every_data_file_ships() -> None:
    """Files that are no code lie where a package-data pattern matches them."""
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert list(folder_of(package).glob(pattern)), f"{package}: {pattern} matches nothing"
    covered = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in folder_of(package).glob(pattern)
    }
    files = {
        path
        for folder in (ROOT / "campo_onnx", ROOT / "cli")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert files == {path for path in covered if path.is_file()}


def test_the_index_page_links_to_nothing_it_does_not_have() -> None:
    page = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https?:)", page)


def test_the_slim_install_is_the_same_everywhere() -> None:
    listed = (ROOT / "requirements-slim.txt").read_text(encoding="utf-8").splitlines()[1:]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"$ pip install {' '.join(listed)}\n" in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[>;]", one)[0] for one in project["dependencies"]}
    assert needed - set(listed) == {"onnxruntime-gpu", "onnxruntime", "polars", "safetensors"}


def test_the_changelog_has_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert re.search(rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_the_program_is_the_command_line() -> None:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    assert callable(script.load())


def test_the_release_whose_products_take_a_thousand_times_as_long_is_left_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheels = [Requirement(text) for text in project["dependencies"] if text.startswith("onnxruntime")]
    assert wheels
    for wheel in wheels:
        assert "1.29.0" not in wheel.specifier
        assert {"1.28.0", "1.31.1"} <= {*wheel.specifier.filter(["1.28.0", "1.31.1"])}
