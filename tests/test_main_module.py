"""``python -m campo_onnx``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from campo_onnx import __main__ as main_module

ROOT = Path(__file__).parent.parent


def test_it_is_the_command_line() -> None:
    words = [sys.executable, "-m", "campo_onnx", "--version"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("campo-onnx")


def test_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "entry_points", lambda **_: ())
    monkeypatch.syspath_prepend(ROOT)
    assert main_module.command().__module__ == "cli.start"


def test_help_from_a_source_tree(tmp_path: Path) -> None:
    """In a process whose metadata lists no script."""
    program = (
        "import sys, runpy, importlib.metadata as m\n"
        "m.entry_points = lambda **_: ()\n"
        "sys.argv = ['campo-onnx', '--help']\n"
        "runpy.run_module('campo_onnx', run_name='__main__')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "optimize" in answer.stdout
