"""The program as its users run it, in this process."""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

Program = Callable[..., int]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """Run a command in a folder of its own, with its own cache and data; returns the exit code."""
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    run = script.load()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for variable in ("CAMPO_ONNX_TRACEBACK", "GITHUB_ACTIONS"):
        monkeypatch.delenv(variable, raising=False)

    def call(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["campo-onnx", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            run()
        return int(left.value.code or 0)

    return call
