"""Measured steps: who takes turns and what is kept. Nothing here is a measurement."""

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from benchmarks.measured import QUICK, plans, sides, training, turns
from benchmarks.measured import __main__ as command
from benchmarks.steps import StepError
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task
from tests.benchmarks.measured_facts import PLANS, STEP_MS

_WITH_DOCS = ast.Module | ast.ClassDef | ast.FunctionDef
EFFORT = turns.Effort(turn_s=0.01, budget_s=60.0, rounds=7, ready_s=60.0)


class Stub:
    """A process that answers at once."""

    asked: ClassVar[list[str]] = []
    loss = 1.0

    def __init__(self, sides: Sequence[str], network: str, graphs: Path, module: str) -> None:
        self.sides = sides

    def wait_until_ready(self, limit_s: float) -> dict[str, Any]:
        if "compile" in self.sides:
            raise RuntimeError("there is no compiler")
        no_kernel = {"ort": {"failure": "no kernel"}}
        return {side: no_kernel.get(side, {"loss": self.loss}) for side in self.sides}

    def times_ms(self, side: str, steps: int) -> list[float]:
        assert side in self.sides
        self.asked.append(side)
        return [STEP_MS[side]] * steps

    def end(self) -> None:
        self.asked.append(f"{' '.join(self.sides)} ended")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    pytest.importorskip("openvino")
    monkeypatch.setattr(Stub, "asked", [])
    monkeypatch.setattr(turns, "Worker", Stub)
    return Stub


class TestTurns:
    def test_every_side_takes_as_many_turns_in_rotating_order(self, stub: type[Stub]) -> None:
        result = turns.in_turns("mlp", Path(), ("torch", "fp32", "optimal"), EFFORT)
        assert {side: len(times) for side, times in result["rounds_ms"].items()} == dict.fromkeys(
            ("torch", "fp32", "optimal"), EFFORT.rounds
        )
        asked = stub.asked[3:]  # behind the turns that say how long a step is
        assert asked[:6] == ["torch", "fp32", "optimal", "fp32", "optimal", "torch"]
        assert stub.asked[-3:] == ["optimal ended", "fp32 ended", "torch ended"]

    def test_a_side_that_fails_is_told_and_the_others_are_measured(self, stub: type[Stub]) -> None:
        result = turns.in_turns("mlp", Path(), ("torch", "compile"), EFFORT)
        assert result["failures"] == {"compile": "there is no compiler"}
        assert set(result["rounds_ms"]) == {"torch"}
        assert "compile ended" in stub.asked

    def test_plans_of_one_runtime_take_turns_in_one_process(self, stub: type[Stub]) -> None:
        result = turns.in_turns("mlp", Path(), ("fp32", "ort", "optimal"), EFFORT, False)
        assert {side: len(times) for side, times in result["rounds_ms"].items()} == {"fp32": 7, "optimal": 7}
        assert result["failures"] == {"ort": "no kernel"}
        assert stub.asked[-1] == "fp32 ort optimal ended"

    def test_where_and_with_what_it_ran_is_in_every_result(self, stub: type[Stub]) -> None:
        result = turns.in_turns("mlp", Path(), ("fp32",), EFFORT)
        assert result["others_running"] is None or result["others_running"] >= 0
        assert set(result["machine"]) == {"cpu", "device", "cores", "units", "governor"}
        assert result["made"]["versions"]["openvino"]
        assert result["load"] >= 0
        assert result["load_after"] >= 0

    def test_another_loss_in_fp32_is_refused(self) -> None:
        turns.refuse_other_losses({"torch": 1.0, "fp32": 1.0005, "torch-bf16": 1.01})
        with pytest.raises(StepError, match=r"the loss of fp32 is 1\.01, and torch's 1"):
            turns.refuse_other_losses({"torch": 1.0, "fp32": 1.01})

    def test_another_number_of_threads_is_refused(self) -> None:
        turns.refuse_other_threads({"torch": sides.THREADS})
        with pytest.raises(StepError, match=f"torch has {sides.THREADS + 1} threads"):
            turns.refuse_other_threads({"torch": sides.THREADS + 1})


def worker(monkeypatch: pytest.MonkeyPatch, script: str) -> sides.Worker:
    real = subprocess.Popen

    def popen(command: list[str], **how: Any) -> Any:
        return real([sys.executable, "-c", script], **how)

    monkeypatch.setattr(sides.subprocess, "Popen", popen)
    return sides.Worker(("fp32",), "mlp", Path())


class TestWorker:
    @pytest.mark.parametrize(
        ("script", "limit_s", "why"),
        [
            ("import time; time.sleep(60)", 0.2, "not ready in time"),
            ("import sys; sys.exit(3)", 60.0, "its process ended with 3"),
        ],
    )
    def test_one_that_is_not_ready_says_why_and_ends(
        self, monkeypatch: pytest.MonkeyPatch, script: str, limit_s: float, why: str
    ) -> None:
        one = worker(monkeypatch, script)
        with pytest.raises(RuntimeError, match=why):
            one.wait_until_ready(limit_s)
        one.end()
        one.end()

    def test_the_first_step_of_a_turn_does_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = """print('{"fp32": {"loss": 1}}', flush=True); assert input() == "fp32 3"
print('{"times_ms": [9, 2, 3]}')"""
        one = worker(monkeypatch, lines)
        assert one.wait_until_ready(60.0) == {"fp32": {"loss": 1}}
        assert one.times_ms("fp32", 2) == [2, 3]
        one.end()

    def test_its_environment_is_the_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SET_BY_THE_USER", "1")
        lines = """import json, os; print(json.dumps({"fp32": dict(os.environ)}), flush=True)"""
        one = worker(monkeypatch, lines)
        environment = one.wait_until_ready(60.0)["fp32"]
        one.end()
        assert environment["SET_BY_THE_USER"] == "1"
        added = {key for key, value in environment.items() if os.environ.get(key) != value}
        assert added <= {"COLUMNS", "LINES"}  # readline's

    def test_it_runs_only_while_it_is_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spinning = """import sys, threading, time
count = 0
def spin():
    global count
    while True: count += 1
threading.Thread(target=spin, daemon=True).start()
print('{"fp32": {"loss": 1}}', flush=True)
for line in sys.stdin:
    first = count
    time.sleep(0.1)
    print('{"times_ms": [%d, %d]}' % (first, count), flush=True)"""
        one = worker(monkeypatch, spinning)
        one.wait_until_ready(60.0)
        (before,) = one.times_ms("fp32", 1)
        state = Path(f"/proc/{one._process.pid}/stat")
        time.sleep(0.2)
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "T"
        (after,) = one.times_ms("fp32", 1)
        one.end()
        assert after > before


_SETTINGS = re.compile(r"(OMP|GOMP|KMP|MKL|OPENBLAS|ONEDNN|TBB)_|set_num_(interop_)?threads|spins")


@pytest.mark.parametrize("module", [sides, training])
def test_no_side_gets_a_setting_that_its_users_would_not_make(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names += [key.arg or "" for key in ast.walk(tree) if isinstance(key, ast.keyword)]
    docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, _WITH_DOCS)}
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert [name for name in (*names, *(texts - docs)) if _SETTINGS.search(name)] == []


def count(path: Path) -> int:
    path.write_text(f"{int(path.read_text()) + 1}")
    return 1


class TestResuming:
    def parts(self, folder: Path, names: str) -> list[command.Part]:
        for name in names:
            (folder / name).touch()
            (folder / name).write_text("0")
        return [
            command.Part(Task(key=f"ops {n}, k", function=count, arguments=(folder / n,)), 1.0, ())
            for n in names
        ]

    def test_what_is_done_is_not_done_again(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path, "abc")
        for limit_s, is_done in ((0.0, False), (60.0, True), (60.0, True)):
            with Results(tmp_path / "results.jsonl") as results:
                end_s = time.monotonic() + limit_s
                assert command.measure(parts, results, tmp_path, "k", "auto", end_s) is is_done
                assert len(results) == 3 * is_done
        assert [(tmp_path / name).read_text() for name in "abc"] == ["1", "1", "1"]

    def test_nothing_begins_for_which_too_little_time_is_left(self) -> None:
        tasks = [
            Task(key="long", function=max, arguments=(1, 2)),
            Task(key="short", function=max, arguments=(1, 2)),
        ]
        pool = command.InTime(time.monotonic() + 60.0, {"long": 600.0, "short": 1.0})
        assert [outcome.failure or outcome.value for _, outcome in pool.outcomes(tasks)] == [
            "the time was up",
            2,
        ]

    def test_a_part_waits_for_graphs_of_the_same_key(self, tmp_path: Path) -> None:
        folder = plans.folder_of("random/7", tmp_path)
        folder.mkdir()
        assert plans.plans_of("random/7", tmp_path, "k") is None
        (folder / "plans.json").write_text(json.dumps({"key": "k", "plans": PLANS}))
        assert plans.plans_of("random/7", tmp_path, "k") == PLANS
        assert plans.plans_of("random/7", tmp_path, "of other versions") is None

    @pytest.mark.parametrize("is_quick", [True, False])
    def test_keys_tell_all_parts_apart(self, is_quick: bool) -> None:
        parts = command.parts_of(is_quick=is_quick, names=QUICK, population=4, graphs=Path(), key="k")
        assert len({part.task.key for part in parts}) == len(parts)
        assert sum(part.task.key.startswith("drawn random/") for part in parts) == 4
        if is_quick:
            assert sum(part.seconds for part in parts if part.task.key.startswith("network")) < 400
