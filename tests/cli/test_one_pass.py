"""``optimize`` goes through its stages once: the file is read once, and nothing is planned twice."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
from campo_onnx_cli.main import app
from campo_onnx_cli.notes import surprises
from typer.testing import CliRunner

from campo_onnx.costs.estimated import estimate
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize import updates
from campo_onnx.optimize.casts import existing_versions
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.values import ranges
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.runtime.feeds import read_feeds, synthesize

MLP = Path(__file__).parents[1] / "data" / "mlp.onnx"


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    path = tmp_path / "batch.npz"
    np.savez(path, **synthesize(import_model(MLP).view, seed=0))
    return path


class Calls:
    """Counts calls of functions, wherever their callers have imported them from."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        inner = [getattr(function, "__wrapped__", function) for function in functions]
        self.names: dict[CodeType, str] = {f.__code__: f.__name__ for f in inner}
        self.count: Counter[str] = Counter()
        self.decided: list[tuple[object, ...]] = []

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in self.names:
            self.count[self.names[frame.f_code]] += 1
            if frame.f_code is decide.__code__:
                problem: Problem = frame.f_locals["problem"]
                fixed = frozenset((name, str(verdict)) for name, verdict in problem.fixed.items())
                self.decided.append((problem.low, fixed, problem.classification.released))


def run(calls: Calls, *words: str) -> Any:
    sys.setprofile(calls)
    try:
        return CliRunner().invoke(app, ["optimize", str(MLP), "--dry-run", "--probe", "off", *words])
    finally:
        sys.setprofile(None)


def test_each_stage_is_gone_through_once(batch: Path) -> None:
    calls = Calls(
        *(import_model, problem_of, updates._updates, existing_versions, estimate, decide),
        ranges._value_ranges,
    )
    words = ("--device", "a100", "--inputs", str(batch), "--precision", "auto", "--safety", "data")
    answer = run(calls, *words, "--min-gain", "0", "--json")
    assert answer.exit_code == 0, answer.output
    two_precisions = 2
    assert calls.count["import_model"] == 1
    assert calls.count["problem_of"] == calls.count["estimate"] == two_precisions
    assert calls.count["existing_versions"] == two_precisions
    assert calls.count["_updates"] == calls.count["_value_ranges"] == 1
    assert len(calls.decided) > two_precisions
    assert len({*calls.decided}) == len(calls.decided)


def test_a_batch_is_read_once_and_notes_are_found_once(batch: Path, tmp_path: Path) -> None:
    calls = Calls(read_feeds, surprises)
    words = ["optimize", str(MLP), "-o", str(tmp_path / "out.onnx"), "--report", str(tmp_path / "r.html")]
    sys.setprofile(calls)
    try:
        answer = CliRunner().invoke(app, [*words, "--device", "h200", "--inputs", str(batch)])
    finally:
        sys.setprofile(None)
    assert answer.exit_code == 0, answer.output
    assert calls.count["read_feeds"] == calls.count["surprises"] == 1


def test_a_missing_batch_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    calls = Calls(import_model)
    answer = run(calls, "--device", "a100", "--inputs", str(tmp_path / "none.npz"))
    assert isinstance(answer.exception, UsageError)
    assert "none.npz does not exist" in str(answer.exception)
    assert not calls.count


def test_nothing_that_trains_is_loaded_where_it_is_not_asked_for() -> None:
    words = ["optimize", str(MLP), "--dry-run", "--probe", "off", "--device", "a100"]
    program = (
        "import sys\n"
        "from campo_onnx_cli.main import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = answer.stderr.split()
    assert "campo_onnx.optimize.problem" in loaded
    assert not [name for name in loaded if name.startswith(("campo_onnx.training", "campo_onnx.export"))]
