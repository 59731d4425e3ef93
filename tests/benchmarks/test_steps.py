"""The runner of resumable steps: what is kept, what is done anew, and what a kill leaves behind."""

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.steps import (
    TO_BE_CONTINUED,
    Call,
    Deadline,
    Records,
    Step,
    StepError,
    TimeUpError,
    drive,
    in_own_process,
    plan_of,
    run_steps,
)
from campo_onnx.errors import ModelError

ROOT = Path(__file__).parents[2]


class Work:
    """Steps that note what was done."""

    def __init__(self, folder: Path, limit_s: float = 3600.0) -> None:
        self.done: list[str] = []
        self.call = Call(records=Records(folder=folder), deadline=Deadline.after(limit_s))

    def step(self, name: str, *, needs: tuple[str, ...] = (), **asked: Any) -> Step:
        def work(call: Call) -> dict[str, Any]:
            self.done.append(name)
            return {"value": name}

        return Step(name=name, asked=asked, work=work, seconds=5, needs=needs)

    def failing(self, name: str, error: Exception) -> Step:
        def work(call: Call) -> None:
            self.done.append(name)
            raise error

        return Step(name=name, work=work, seconds=5)

    def run(self, *steps: Step, **how: Any) -> bool:
        return run_steps(steps, self.call, say=lambda line: None, **how)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_a_finished_step_is_not_repeated(work: Work) -> None:
    for _ in range(2):
        assert work.run(work.step("a", labels=("x",)))
    assert work.done == ["a"]
    assert work.call.result("a") == {"value": "a"}


def test_a_result_for_other_options_does_not_count(work: Work) -> None:
    for steps in (5, 6):
        work.run(work.step("a", steps=steps))
    assert work.done == ["a", "a"]


def test_what_depends_on_a_step_is_done_anew_with_it(work: Work) -> None:
    for version in (1, 2, 2):
        work.run(work.step("a", version=version), work.step("b", needs=("a",)))
    assert work.done == ["a", "b", "a", "b"]


def test_what_needs_a_failed_step_is_left_out_until_it_succeeds(work: Work) -> None:
    after = work.step("b", needs=("a",))
    assert work.run(work.failing("a", StepError("no network")), after)
    assert work.done == ["a"]
    assert work.run(work.step("a"), after, retry=True)
    assert work.done == ["a", "a", "b"]


def test_later_steps_are_found_when_earlier_ones_are_done(work: Work) -> None:
    def steps() -> Iterator[Step]:
        yield work.step("a")
        yield work.step(f"after-{work.call.result('a')['value']}")

    assert run_steps(steps(), work.call, say=lambda line: None)
    assert work.done == ["a", "after-a"]


def test_the_time_limit_ends_a_call_and_leaves_no_record(work: Work) -> None:
    assert not work.run(work.step("a"), work.failing("b", TimeUpError()), work.step("c"))
    assert set(work.call.records.all()) == {"a"}


def test_no_step_is_begun_after_the_deadline(tmp_path: Path) -> None:
    work = Work(tmp_path, limit_s=-1)
    assert not work.run(work.step("a"))
    assert not work.done


@pytest.mark.parametrize("error", [ModelError("the graph is broken"), StepError("the graph is broken.")])
def test_a_failure_is_on_record_and_the_others_go_on(work: Work, error: Exception) -> None:
    for _ in range(2):
        assert work.run(work.failing("a", error), work.step("b"))
    assert work.call.records.all()["a"]["failure"] == "the graph is broken."
    assert work.call.result("a") is None
    assert work.done == ["a", "b"]


def test_an_unexpected_failure_ends_the_call_and_the_next_one_goes_on(work: Work) -> None:
    steps = (work.failing("a", ZeroDivisionError("by 0")), work.step("b"))
    assert not work.run(*steps)
    assert "ZeroDivisionError" in work.call.records.all()["a"]["traceback"]
    assert work.run(*steps)
    assert work.done == ["a", "b"]


def test_steps_are_chosen_by_pattern(work: Work) -> None:
    said: list[str] = []
    steps = (work.step("graph-a"), work.step("nodes-a"), work.step("nodes-b"))
    run_steps(steps, work.call, only=["nodes-*", "peers"], say=said.append)
    assert work.done == ["nodes-a", "nodes-b"]
    assert said[-1].startswith("no step is called peers")


def test_the_plan_tells_what_is_done_and_what_is_left(work: Work) -> None:
    steps = [work.step("a"), work.failing("b", StepError("no")), work.step("c"), work.step("d")]
    work.run(*steps[:2])
    *lines, left = plan_of(steps, work.call.records)
    states = [line.split(maxsplit=2)[2].rsplit(maxsplit=1) for line in lines]
    assert states == [["done", "a"], ["failed", "b"], ["to do", "c"], ["to do", "d"]]
    assert left.split()[0] == "10"


@pytest.mark.parametrize(
    ("limit_s", "options", "code", "published"),
    [
        (3600, {}, 0, 1),
        (-1, {}, TO_BE_CONTINUED, 1),
        (3600, {"plan": True}, 0, 0),
        (3600, {"report": True}, 0, 1),
    ],
)
def test_the_exit_code_tells_whether_to_go_on(
    tmp_path: Path, limit_s: float, options: dict[str, Any], code: int, published: int
) -> None:
    work = Work(tmp_path, limit_s=limit_s)
    asked = argparse.Namespace(**{"plan": False, "report": False, "only": [], "retry": False} | options)
    pages: list[Records] = []

    def publish(records: Records) -> list[Path]:
        pages.append(records)
        return []

    assert drive([work.step("a")], work.call, asked, publish) == code
    assert len(pages) == published
    assert bool(work.done) == (limit_s > 0 and not options)


SCRIPT = """
    import sys, time
    from pathlib import Path
    from benchmarks.steps import Call, Deadline, Records, Step, run_steps

    folder, is_slow = Path(sys.argv[1]), sys.argv[2] == "slow"

    def work(call, name):
        with (folder / "done.txt").open("a") as file:
            file.write(name)
        if name == "b" and is_slow:
            time.sleep(600)
        return name

    steps = [Step(name=n, work=lambda call, n=n: work(call, n), seconds=1) for n in "abc"]
    call = Call(records=Records(folder=folder), deadline=Deadline.after(3600))
    run_steps(steps, call)
"""


def wait_for(is_true: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    while not is_true():
        assert process.poll() is None, "the other process has ended"
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system kills in another way")
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    done = tmp_path / "done.txt"
    command = [sys.executable, str(script), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([*command, "slow"], env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: done.exists() and done.read_text() == "ab", process)
        process.send_signal(signal.SIGKILL)
    assert set(Records(folder=tmp_path).all()) == {"a"}
    subprocess.run([*command, "fast"], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert done.read_text() == "abbc"
    assert set(Records(folder=tmp_path).all()) == {"a", "b", "c"}


def test_a_function_runs_in_a_process_of_its_own() -> None:
    assert in_own_process(os.getpid) != os.getpid()
