"""The program as its users run it, in this process."""

import signal
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from campo_onnx.measure import node_timer
from tests.timed_by_bytes import time_node

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
        handler = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as left:
                run()
        finally:
            signal.signal(signal.SIGINT, handler)  # of one test, that may call it again
        return int(left.value.code or 0)

    return call


@pytest.fixture(autouse=True)
def _nodes_take_what_their_bytes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes' bytes decide their times here, not a machine that has other work."""
    monkeypatch.setattr(node_timer, "time_node", time_node)
