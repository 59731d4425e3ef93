"""Odd environments: a clear message, or no harm; libraries' warnings stay theirs."""

import subprocess
import sys
from pathlib import Path

import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.mark.parametrize("variable", ["SOURCE_DATE_EPOCH", "POLARS_MAX_THREADS"])
@pytest.mark.parametrize("text", ["abc", "-1", "", "1.5", "9" * 23, "²"])
def test_variables_that_are_no_numbers(program, capsys, monkeypatch, tmp_path, variable, text):
    monkeypatch.setenv(variable, text)
    assert program("optimize", MLP, "-o", "out.onnx", "--device", "v100") == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"error: the environment variable {variable} is {text!r}: it must be a number")
    assert not list(tmp_path.iterdir())
    assert program("optimize", "--help") == 0


def test_no_threads(program, capsys, monkeypatch):
    monkeypatch.setenv("POLARS_MAX_THREADS", "0")
    assert program("devices") == 2
    monkeypatch.setenv("POLARS_MAX_THREADS", "1")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert program("devices") == 0


@pytest.mark.parametrize(
    "setting",
    [
        "COLUMNS=0", "COLUMNS=abc", "COLUMNS=-5", "NO_COLOR=1", "TERM=odd", "TERM=", "LANG=xx_XX.none",
        "LC_ALL=C", "HOME=", "TMPDIR=/nowhere", "XDG_CACHE_HOME=relative/x", "XDG_DATA_HOME=/dev/null",
    ],
)  # fmt: skip
def test_what_does_no_harm(program, monkeypatch, tmp_path, setting):
    variable, _, value = setting.partition("=")
    monkeypatch.setenv(variable, value)
    assert program("optimize", MLP, "-o", "out.onnx", "--device", "v100") == 0
    assert (tmp_path / "out.onnx").exists()


def test_warnings_of_libraries_do_not_reach_the_user():
    command = (
        "from campo_onnx_cli import main; import campo_onnx.hardware.datasheet as d, numpy as n;"
        "devices = d.devices; d.devices = lambda: (n.float32(1e38) * n.float32(1e38), devices())[1];"
        "main.run()"
    )
    words = [sys.executable, "-c", command, "devices"]
    run = subprocess.run(words, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    warned = subprocess.run([*words[:1], "-W", "always", *words[1:]], capture_output=True, text=True)
    assert "RuntimeWarning: overflow" in warned.stderr
