"""Steps in a process of their own: one that crashes it, or hangs, costs that step and no other.

The worker is the same command as its supervisor, which starts it anew until nothing is left to do. A file
beside the results marks the step that is running. It survives whatever ends the process, so that a step
that has ended three of them without getting any further is on record as failed.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.steps import SUFFIX, TO_BE_CONTINUED, Deadline, Records, Step
from campo_onnx.files import replacing, write_text

DEATHS = 3
"""Processes that may end within a step before it counts as failed."""

GRACE_S = 15.0
"""How long a step may go on after the end of a call: some work cannot be interrupted."""

AGAIN = 3
"""Exit code of a worker that must not go on after an unexpected failure, and is to be started anew."""

_MARK = ".running"
_POLL_S = 0.1
_WRITE_EVERY_S = 0.5
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_IDLE_WORKERS = 2  # one after another without a result: it will not get better


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The step that is running, or was when its process ended."""

    step: str
    began_s: float
    deaths: int = 0  # processes that ended within it since one got further than all before
    furthest: int = 0  # parts that were ever done
    has_advanced: bool = False  # whether this process got further than those before


@dataclass(slots=True, kw_only=True)
class Marks:
    """Keeps the mark of the running step."""

    folder: Path
    _current: Mark | None = None
    _written_s: float = field(default=0.0)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / _MARK

    def read(self) -> Mark | None:
        """Find what is running, or was."""
        try:
            return Mark(**json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def begin(self, step: str) -> str:
        """Mark a step as running; say why it must not be tried again, or ``""``."""
        last = self.read()
        mark = Mark(step=step, began_s=time.monotonic())
        if last is not None and last.step == step:
            deaths = 1 if last.has_advanced else last.deaths + 1
            if deaths >= DEATHS:
                return f"{deaths} processes ended in it without getting any further"
            mark = replace(mark, deaths=deaths, furthest=last.furthest)
        self._write(mark)
        return ""

    def advance(self, done: int, _: int) -> None:
        """Note how far the running step got."""
        mark = self._current
        if mark is None or done <= mark.furthest:
            return
        self._current = replace(mark, furthest=done, has_advanced=True)
        if time.monotonic() - self._written_s > _WRITE_EVERY_S:
            self._write(self._current)

    def end(self) -> None:
        """Nothing is running."""
        self._current = None
        self.path.unlink(missing_ok=True)

    def _write(self, mark: Mark) -> None:
        self._current, self._written_s = mark, time.monotonic()
        write_text(json.dumps(asdict(mark)), self.path)


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends, so that no two measure at a time (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the supervisor ended")


def supervise(
    worker: Callable[[float], Sequence[str]],
    steps: Mapping[str, Step],
    records: Records,
    deadline: Deadline,
    say: Callable[[str], None] = print,
) -> int:
    """Run workers until nothing is left to do or the time is up; return the exit code."""
    marks, idle = Marks(folder=records.folder), 0
    while deadline.left_s > 0:
        records_before = len(records.all())
        process = subprocess.Popen(worker(deadline.left_s))
        try:
            stopped = _watch(process, marks, steps, deadline)
        finally:
            process.kill()
            process.wait()
        if stopped is not None:
            if not stopped.failure:  # the call is over, and that is not the step's fault
                marks.end()
                break
            say(f"{stopped.step.name}: {stopped.failure}")
            records.keep(stopped.step.name, _failed(stopped, records))
            marks.end()
        elif process.returncode in (0, TO_BE_CONTINUED):
            return process.returncode
        elif process.returncode != AGAIN:
            dead = marks.read()
            where = f"in the step {dead.step}" if dead else "outside of any step"
            say(f"the process ended with {process.returncode} {where}")
        idle = 0 if marks.read() or len(records.all()) > records_before else idle + 1
        if idle >= _IDLE_WORKERS:
            return process.returncode if process.returncode > 0 else 1
    return TO_BE_CONTINUED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopped:
    step: Step
    seconds: float
    failure: str


def _watch(
    process: "subprocess.Popen[bytes]", marks: Marks, steps: Mapping[str, Step], deadline: Deadline
) -> _Stopped | None:
    """Wait for the end of a worker; or for a reason to end it."""
    while process.poll() is None:
        time.sleep(_POLL_S)
        mark = marks.read()
        if mark is None or mark.step not in steps:
            if deadline.left_s < -GRACE_S:
                return None
            continue
        step, taken_s = steps[mark.step], time.monotonic() - mark.began_s
        if deadline.left_s < -GRACE_S:
            return _Stopped(step=step, seconds=taken_s, failure="")
        if taken_s > step.limit_s:
            failure = f"stopped after {taken_s:.0f} s, of which it was expected to take {step.seconds:.0f}"
            return _Stopped(step=step, seconds=taken_s, failure=failure)
    return None


def _failed(stopped: _Stopped, records: Records) -> dict[str, Any]:
    return {
        "asked": stopped.step.asked_now(records.all()),
        "failure": stopped.failure,
        "seconds": round(stopped.seconds, 1),
        "finished_at": datetime.now(UTC).isoformat(),
        "load_average": [],
    }


def pack(folder: Path, target: Path) -> None:
    """Put everything in a folder into one compressed archive, for the way home."""
    with replacing(target) as path, tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != _MARK:
                archive.add(file, arcname=str(Path(folder.name) / file.relative_to(folder)))


def forget_failures(records: Records, names: Sequence[str]) -> None:
    """Take failed steps off the record, so that they are tried again."""
    for name in names:
        if "failure" in (records.find(name) or {}):
            (records.folder / f"{name}{SUFFIX}").unlink()
    Marks(folder=records.folder).end()
