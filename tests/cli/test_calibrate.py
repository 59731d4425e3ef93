"""``campo-onnx calibrate`` from the outside, killed and resumed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

import pytest

WORDS = ["--quick", "--shapes", "12", "--device", "cpu", "--threads", "1"]


def program(*words: str, home: Path) -> "subprocess.Popen[str]":
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    run = f"from {script.module} import {script.attr}; {script.attr}()"
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-c", run, "calibrate", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(store: Path) -> dict[str, tuple[object, ...]]:
    with closing(sqlite3.connect(store)) as connection:
        return {row[1]: row for row in connection.execute("SELECT * FROM timings")}


def test_killed_and_resumed_without_repeating_work(tmp_path: Path) -> None:
    store, out = tmp_path / "campo-onnx" / "timings.sqlite", tmp_path / "here.json"
    words = ["-o", str(out), *WORDS, "--ops", "Neg"]
    process = program(*words, home=tmp_path)
    end = time.monotonic() + 60
    while time.monotonic() < end and (not store.exists() or store_size(store) < 5):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    before = rows(store)
    assert len(before) >= 5
    resumed = program(*words, home=tmp_path)
    printed, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert "Neg" in printed
    after = rows(store)
    assert len(after) > len(before)
    assert {key: after[key] for key in before} == before  # not measured again: same values, same time
    assert json.loads(out.read_text())["entries"][0]["op"] == "Neg"


def store_size(store: Path) -> int:
    try:
        return len(rows(store))
    except sqlite3.OperationalError:  # not set up yet
        return 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--ops", "NoSuchOp"], 2, "no samples can be drawn of 'NoSuchOp'"),
        (["--cuda-graph", "--ops", "Neg"], 2, "--cuda-graph needs the CUDA provider"),
        (["--precision", "bf16", "--ops", "MatMul"], 5, "nothing could be calibrated"),
    ],
)
def test_refusals(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    out = tmp_path / "here.json"
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["campo-onnx", "calibrate", "-o", str(out), *WORDS, *words])
    with pytest.raises(SystemExit) as left:
        script.load()()
    assert left.value.code == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
