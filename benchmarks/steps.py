"""Work cut into named steps whose results are kept: kill it at any time, run it again, and it goes on.

A step is data (what it is called, how long it takes, what it depends on) and a function. Each finished
step is one JSON file, written in one go; a step without its file is done (again) by the next call.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

from campo_onnx.errors import CampoError
from campo_onnx.files import write_text

SUFFIX = ".step.json"
TO_BE_CONTINUED = 75  # EX_TEMPFAIL: run the same command again
_SHORTEST_LIMIT_S = 60.0
_PATIENCE = 3  # a step that takes longer than so many times what is expected hangs

Facts = dict[str, Any]
T = TypeVar("T")


class TimeUpError(Exception):
    """The time of this call is used up; finished steps are kept."""


class StepError(Exception):
    """A step has no result here, for a reason that belongs on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a call has to end."""

    end_s: float
    on_tick: Callable[[int, int], None] | None = None

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """End so many seconds from now."""
        return cls(end_s=time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.end_s - time.monotonic()

    def need(self, seconds: float) -> None:
        """Raise TimeUpError unless so much time is left."""
        if self.left_s < seconds:
            raise TimeUpError

    def tick(self, done: int, total: int) -> None:
        """Take a sign of progress; raise TimeUpError when the time is up."""
        if self.on_tick is not None:
            self.on_tick(done, total)
        self.need(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The results of steps, one file each."""

    folder: Path

    def find(self, name: str) -> Facts | None:
        """Everything on record about a step; None if it was not done."""
        path = self.folder / f"{name}{SUFFIX}"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def result(self, name: str) -> Any:
        """The result of a step; None if it was not done or failed."""
        return (self.find(name) or {}).get("result")

    def all(self, prefix: str = "") -> dict[str, Facts]:
        """Everything on record, by name, about the steps whose name begins so."""
        names = sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"{prefix}*{SUFFIX}"))
        return {name: facts for name in names if (facts := self.find(name)) is not None}

    def keep(self, name: str, facts: Facts) -> None:
        """Put a step on record, whole or not at all."""
        write_text(json.dumps(facts, indent=1) + "\n", self.folder / f"{name}{SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the runner, as a step sees it."""

    records: Records
    deadline: Deadline

    def result(self, name: str) -> Any:
        """The result of an earlier step."""
        return self.records.result(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One piece of work."""

    name: str
    work: Callable[[Call], Any]  # may raise TimeUpError, and is then begun anew by the next call
    seconds: float  # that it is expected to take
    asked: Mapping[str, Any] = field(default_factory=dict)  # a result for something else does not count
    needs: tuple[str, ...] = ()  # left out where one of them failed, done anew after one of them was

    @property
    def limit_s(self) -> float:
        """After how many seconds in one call it must be hanging."""
        return _SHORTEST_LIMIT_S + _PATIENCE * self.seconds

    def asked_now(self, records: Mapping[str, Facts]) -> Any:
        """Everything that a result depends on, as it comes back from a file."""
        after = {need: records.get(need, {}).get("finished_at") for need in self.needs}
        return json.loads(json.dumps({**self.asked, "after": after}))


class Watch(Protocol):
    """Told which step is running."""

    def begin(self, step: str) -> str:
        """Take note of a step that begins; say why it must not, or ``""``."""

    def end(self) -> None:
        """Take note that it ended."""


def run_steps(
    steps: Iterable[Step],
    call: Call,
    *,
    only: Sequence[str] = (),
    retry: bool = False,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
) -> bool:
    """Do the steps that are not on record; tell whether there is nothing left to do.

    One that fails for a reason of the input or the machine is on record as failed, and the others go
    on. So is one that fails unexpectedly, but it ends the call: an error of CUDA stays with the process.
    """
    unmatched = set(only)
    for step in steps:
        unmatched = {pattern for pattern in unmatched if not fnmatch(step.name, pattern)}
        if not is_chosen(step.name, only):
            continue
        if missing := [need for need in step.needs if call.result(need) is None]:
            say(f"{step.name}: left out, it needs {', '.join(missing)}")
            continue
        asked, record = _asked(step, call.records), call.records.find(step.name)
        if record is not None and record["asked"] == asked and not (retry and "failure" in record):
            continue
        facts = _do(step, call, watch)
        if facts is None:
            say(f"{step.name}: time is up; run the same command again to go on")
            return False
        call.records.keep(step.name, {"asked": asked, **facts})
        if watch is not None:
            watch.end()
        say(f"{step.name}: {facts.get('failure', 'done')} ({facts['seconds']:.0f} s)")
        if "traceback" in facts:
            say("run the same command again to go on with the next step")
            return False
    for pattern in sorted(unmatched):
        say(f"no step is called {pattern}; --plan lists them")
    return True


def plan_of(steps: Iterable[Step], records: Records) -> list[str]:
    """Lay out what there is to do: each step with its seconds, expected or taken, and what is left in all."""
    lines, left_s = [], 0.0
    for step in steps:
        record = records.find(step.name)
        if record is not None and record["asked"] == _asked(step, records):
            state = "failed" if "failure" in record else "done"
            lines.append(f"{record['seconds']:8.0f} s  {state:6}  {step.name}")
        else:
            left_s += step.seconds
            lines.append(f"{step.seconds:8.0f} s  to do   {step.name}")
    return [*lines, f"{left_s:8.0f} s  left to do"]


def _asked(step: Step, records: Records) -> Any:
    return step.asked_now({need: records.find(need) or {} for need in step.needs})


def _do(step: Step, call: Call, watch: Watch | None) -> Facts | None:
    """Do one step; None if time is up."""
    began = time.monotonic()
    facts: Facts = {}
    try:
        call.deadline.need(0.0)
        refusal = watch.begin(step.name) if watch is not None else ""
        facts |= {"failure": refusal} if refusal else {"result": step.work(call)}
    except TimeUpError:
        if watch is not None:
            watch.end()
        return None
    except (CampoError, StepError) as error:
        facts["failure"] = str(error)
    except Exception as error:
        facts |= {"failure": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    facts["seconds"] = round(time.monotonic() - began, 1)
    facts["finished_at"] = datetime.now(UTC).isoformat()
    facts["load_average"] = [round(value, 1) for value in os.getloadavg()]
    return facts


def in_own_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of its own, which gives its memory back."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def add_arguments(parser: argparse.ArgumentParser, work: str) -> None:
    """Add what every command of resumable steps takes."""
    add = parser.add_argument
    add("--work", type=Path, default=Path(work), help="where finished steps are kept")
    add("--limit-s", type=float, default=540.0, help="time after which this call ends")
    add(
        "--only",
        type=lambda text: text.split(","),
        action="extend",
        default=[],
        metavar="STEP,...",
        help="do only the steps called so; * stands for anything",
    )
    add("--retry", action="store_true", help="try steps again that failed")
    add("--plan", action="store_true", help="print the steps and their seconds, do none")
    add("--report", action="store_true", help="do nothing, write the page anew")


def is_chosen(name: str, only: Sequence[str]) -> bool:
    """Whether a step is among those asked for."""
    return not only or any(fnmatch(name, pattern) for pattern in only)


def call_of(options: argparse.Namespace, folder: Path | None = None) -> Call:
    """Begin a call: records lie in `folder`, or below ``--work``."""
    folder = folder or options.work / "records"
    folder.mkdir(parents=True, exist_ok=True)
    return Call(records=Records(folder=folder), deadline=Deadline.after(options.limit_s))


def drive(
    steps: Iterable[Step],
    call: Call,
    options: argparse.Namespace,
    publish: Callable[[Records], Iterable[Path]],
) -> int:
    """Do what the command line asks for, write the page, and return the exit code."""
    if options.plan:
        print("\n".join(plan_of(steps, call.records)))
        return 0
    try:
        is_done = options.report or run_steps(steps, call, only=options.only, retry=options.retry, say=_say)
        for path in publish(call.records):
            print(f"wrote {path}")
    except CampoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not options.report:
        print("all done" if is_done else "to be continued")
    return 0 if is_done else TO_BE_CONTINUED


def _say(line: str) -> None:
    print(line, flush=True)
