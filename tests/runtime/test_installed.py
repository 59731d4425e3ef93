"""ONNX Runtime missing, broken, doubled or stale: one message with the commands that mend it."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from campo_onnx.runtime.onnxruntime import installed

ROOT = Path(__file__).parent.parent.parent
MLP = ROOT / "tests" / "data" / "mlp.onnx"
ALL = "onnxruntime,polars,safetensors"
# Every case in a process of its own, in which nothing of ours is loaded yet; other packages are, once.
WITHOUT = """
import json, os, sys
import numpy, onnx, onnx_graphsurgeon, scipy.sparse.csgraph, typer, rich.table

class Block:
    def __init__(self, missing):
        self.missing = missing

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert not {"onnxruntime", "polars", "safetensors", "campo_onnx"} & set(sys.modules)
for number, (missing, words) in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{number}.txt", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        sys.meta_path.insert(0, Block(missing.split(",")))
        sys.argv = ["campo-onnx", *words]
        from cli.main import run
        run()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
CASES = (
    (ALL, ("demo",), 0, "Wrote campo_demo"),
    (ALL, ("optimize", MLP, "--device", "v100", "--dry-run"), 0, "are estimated from public figures"),
    (ALL, ("devices", "h200"), 0, "memory bandwidth"),
    (ALL, ("bench", MLP), 8, "pip install onnxruntime"),
    ("polars,safetensors", ("compare", MLP, "--device", "v100"), 0, "optimal"),
    ("polars,safetensors", ("profile", MLP, "-o", "p"), 2, "needs polars: install it with pip install"),
)


def module(version="1.31.0", **parts):
    runtime = ModuleType("onnxruntime")
    runtime.__version__ = version
    whole = dict.fromkeys(("InferenceSession", "SessionOptions", "get_available_providers"))
    vars(runtime).update(parts if parts else whole)
    return runtime


@pytest.mark.parametrize(
    ("runtime", "wheels", "problem", "remedy"),
    [
        (module(), {"onnxruntime-gpu": "1.31.0"}, "", ""),
        (module("1.19.2"), {"onnxruntime-training-cpu": "1.19.2"}, "", ""),
        (None, {}, "ONNX Runtime is not installed", "pip install onnxruntime"),
        (
            module(nothing=True),
            {"onnxruntime-gpu": "1.31.0"},
            "does not load (onnxruntime-gpu 1.31.0): files of it are missing, as after removing one of two",
            "pip uninstall --yes onnxruntime-gpu && pip install onnxruntime",
        ),
        (
            None,
            {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.31.0"},
            "does not load (onnxruntime 1.30.0, onnxruntime-gpu 1.31.0)",
            "pip uninstall --yes onnxruntime onnxruntime-gpu && pip install",
        ),
        (
            module("1.20.1"),
            {"onnxruntime-gpu": "1.20.1"},
            "ONNX Runtime 1.20.1 is too old: campo-onnx needs 1.24 or newer",
            "pip install --upgrade 'onnxruntime-gpu>=1.24'",
        ),
    ],
)
def test_what_is_wrong_and_what_mends_it(runtime, wheels, problem, remedy):
    told = installed.problem_with(runtime, "", wheels)
    assert problem in told[0]
    assert remedy in told[1]
    assert bool(told[0]) == bool(problem)


def test_two_wheels_are_named(monkeypatch):
    monkeypatch.setattr(installed, "installed_wheels", lambda: {"onnxruntime": "1", "onnxruntime-gpu": "2"})
    assert "pip uninstall --yes onnxruntime onnxruntime-gpu" in installed.two_wheels()
    monkeypatch.setattr(installed, "installed_wheels", lambda: {"onnxruntime-gpu": "2"})
    assert installed.two_wheels() == ""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code and output of every case."""
    folder = tmp_path_factory.mktemp("missing")
    cases = json.dumps([(missing, [str(word) for word in words]) for missing, words, _, _ in CASES])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, cases],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(int(code), (folder / f"{i}.txt").read_text()) for i, code in enumerate(done.stdout.split())]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c[1][0]} without {c[0]}" for c in CASES])
def test_planning_from_public_figures_needs_none(answers, number):
    (code, output), (_, _, expected, told) = answers[number], CASES[number]
    assert code == expected, output
    assert told in output
    assert "bug" not in output
