"""Workers that hang, crash or die, and what their supervisor makes of it."""

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.pages import RESULTS, publish
from benchmarks.steps import TO_BE_CONTINUED, Call, Deadline, Records, Step, run_steps
from benchmarks.supervision import AGAIN, DEATHS, Marks, forget_failures, pack, supervise
from campo_onnx.errors import UsageError

ROOT = Path(__file__).parents[2]
HANG = [sys.executable, "-c", "import time; time.sleep(3600)"]
CRASH = [sys.executable, "-c", "import os; os.abort()"]
DONE = [sys.executable, "-c", ""]


def one_after_another(*commands: Sequence[str]) -> Callable[[float], Sequence[str]]:
    left = iter(commands)
    return lambda seconds: next(left)


def mark(folder: Path, step: str, *, began_s: float, deaths: int = 0) -> None:
    (folder / ".running").write_text(json.dumps({"step": step, "began_s": began_s, "deaths": deaths}))


def step(name: str) -> Step:
    return Step(name=name, work=lambda call: {"value": name}, seconds=1)


def test_a_step_that_hangs_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    records, said = Records(folder=tmp_path), list[str]()
    mark(tmp_path, "a", began_s=time.monotonic() - step("a").limit_s)
    workers = one_after_another(HANG, DONE)
    assert supervise(workers, {"a": step("a")}, records, Deadline.after(3600), said.append) == 0
    assert "stopped after" in records.all()["a"]["failure"]
    assert not (tmp_path / ".running").exists()
    assert said


def test_the_end_of_a_call_is_not_the_fault_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(folder=tmp_path)
    mark(tmp_path, "a", began_s=time.monotonic())
    started: list[float] = []

    def worker(seconds: float) -> Sequence[str]:
        started.append(seconds)
        monkeypatch.setattr("benchmarks.supervision.GRACE_S", -2 * seconds)  # its time is up at once
        return HANG

    assert supervise(worker, {"a": step("a")}, records, Deadline.after(3600)) == TO_BE_CONTINUED
    assert len(started) == 1
    assert records.all() == {}
    assert not (tmp_path / ".running").exists()


def test_a_worker_that_crashes_is_started_anew(tmp_path: Path) -> None:
    said: list[str] = []
    workers = one_after_another(CRASH, DONE)
    assert supervise(workers, {}, Records(folder=tmp_path), Deadline.after(3600), said.append) == 0
    assert "-6 outside of any step" in said[0]


def test_a_worker_whose_time_is_up_ends_the_call(tmp_path: Path) -> None:
    workers = one_after_another([sys.executable, "-c", f"raise SystemExit({TO_BE_CONTINUED})"])
    assert supervise(workers, {}, Records(folder=tmp_path), Deadline.after(3600)) == TO_BE_CONTINUED


def test_a_worker_that_must_not_go_on_is_started_anew(tmp_path: Path) -> None:
    workers = one_after_another([sys.executable, "-c", f"raise SystemExit({AGAIN})"], DONE)
    assert supervise(workers, {}, Records(folder=tmp_path), Deadline.after(3600)) == 0


def test_workers_that_never_begin_a_step_are_given_up(tmp_path: Path) -> None:
    workers = one_after_another(CRASH, CRASH)
    assert supervise(workers, {}, Records(folder=tmp_path), Deadline.after(3600), lambda line: None) == 1


def test_a_step_that_ends_its_process_again_and_again_fails(tmp_path: Path) -> None:
    call = Call(records=Records(folder=tmp_path), deadline=Deadline.after(3600))
    for _ in range(DEATHS):
        assert Marks(folder=tmp_path).begin("a") == ""
    run_steps([step("a"), step("b")], call, say=lambda line: None, watch=Marks(folder=tmp_path))
    assert f"{DEATHS} processes ended in it" in call.records.all()["a"]["failure"]
    assert call.result("b") == {"value": "b"}
    forget_failures(call.records, ["a", "b"])
    run_steps([step("a"), step("b")], call, say=lambda line: None, watch=Marks(folder=tmp_path))
    assert call.result("a") == {"value": "a"}


def test_a_step_that_gets_further_each_time_does_not_fail(tmp_path: Path) -> None:
    for done in range(1, 3 * DEATHS):
        marks = Marks(folder=tmp_path)
        assert marks.begin("a") == ""
        marks._written_s = 0.0  # as if the last writing were long ago
        marks.advance(done, 100)


def test_an_archive_holds_everything_but_the_mark(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "a.step.json").write_text("{}")
    mark(folder, "b", began_s=0.0)
    pack(folder, tmp_path / "session.tar.gz")
    with tarfile.open(tmp_path / "session.tar.gz") as archive:
        assert archive.getnames() == ["session/a.step.json"]


def test_results_of_stubs_are_refused() -> None:
    with pytest.raises(UsageError, match="no measurement"):
        publish("calibration", {"benches": [{"machine": {"driver": "0.0-stub"}}]}, RESULTS)


ORPHAN = """
import os, time
from benchmarks.supervision import die_with_parent
die_with_parent(os.getppid() + {offset})
print("alive", flush=True)
time.sleep(60)
print("outlived", flush=True)
"""


def test_a_worker_whose_supervisor_is_gone_does_not_begin() -> None:
    orphan = subprocess.run(
        [sys.executable, "-c", ORPHAN.format(offset=1)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert orphan.returncode == 1
    assert orphan.stdout == ""


def test_a_worker_ends_with_its_supervisor() -> None:
    start = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {ORPHAN.format(offset=0)!r}])"
    )
    command = [sys.executable, "-c", f"{start}; time.sleep(3600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"alive\n"
        supervisor.kill()
        supervisor.wait()
        assert supervisor.stdout.read() == b"", "the worker still holds the pipe"
