"""`scripts/gpu/lease.sh` from the outside, on a CPU: what is finished comes home however the call ends."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

LEASE = Path(__file__).parents[2] / "scripts" / "gpu" / "lease.sh"
STEPS = "facts,calibration_quick"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "python3").symlink_to(sys.executable)
    # A link loses sight of the packages beside the interpreter; they are given by name.
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    path = f"{shims}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": packages, "CAMPO_SITE": str(tmp_path / "site")}


def lease(out: Path, environment: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    command = ["bash", str(LEASE), "--budget-s", "60", "--out", str(out), *words]
    command += ["--", "--device", "cpu", "--ops", "Relu", "--shapes", "9", "--only", STEPS]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)


def names_at_home(out: Path) -> set[str]:
    pieces = sorted(out.glob("session_cpu.tar.gz.*"))
    joined = io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))
    with tarfile.open(fileobj=joined) as archive:
        return {Path(name).name for name in archive.getnames()}


def test_a_call_that_is_ended_brings_home_what_is_finished_and_the_next_goes_on(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    first = lease(tmp_path / "first", environment)
    facts = tmp_path / "first" / "work" / "session_cpu" / "facts.step.json"
    while not facts.exists() and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate()
    assert first.returncode == 128 + signal.SIGTERM, said
    assert "facts.step.json" in names_at_home(tmp_path / "first")
    assert ".running" not in names_at_home(tmp_path / "first")
    second = lease(
        tmp_path / "second", environment, "--resume", str(tmp_path / "first" / "session_cpu.tar.gz")
    )
    said, _ = second.communicate()
    assert "facts: done (" not in said, "it was done in the first call"
    assert "facts.step.json" in names_at_home(tmp_path / "second")


def test_an_archive_that_is_missing_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    running = lease(tmp_path / "out", environment, "--resume", str(tmp_path / "nothing.tar.gz"))
    said, _ = running.communicate()
    assert running.returncode == 2
    assert "nothing.tar.gz" in said
