"""Work cut into steps whose results are kept, so that it can be interrupted and gone on with."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from campo_onnx.errors import CampoError
from campo_onnx.files import write_text

SUFFIX = ".step.json"

Facts = dict[str, Any]
"""What a step found: anything that JSON can hold."""


class LimitReachedError(Exception):
    """The time of this call is used up; finished steps are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a call has to end.

    Parameters
    ----------
    end_s
        On the monotonic clock.
    """

    end_s: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """End so many seconds from now."""
        return cls(end_s=time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.end_s - time.monotonic()

    def need(self, seconds: float) -> None:
        """Raise LimitReachedError unless so much time is left."""
        if self.left_s < seconds:
            raise LimitReachedError

    def tick(self, done: int, total: int) -> None:
        """Take a sign of progress; raise LimitReachedError when the time is up."""
        self.need(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One piece of work.

    Parameters
    ----------
    name
        What its result is filed under.
    asked
        All that its result depends on. A result that was found for something else does not count.
    work
        Does it. It may raise :class:`LimitReachedError`, and is then begun anew by the next call.
    """

    name: str
    asked: Mapping[str, Any]
    work: Callable[[], Facts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The results of steps, one file each.

    Parameters
    ----------
    folder
        Where they lie; it exists.
    """

    folder: Path

    def find(self, name: str) -> Facts | None:
        """Everything on record about a step; None if it was not done."""
        path = self.folder / f"{name}{SUFFIX}"
        if not path.is_file():
            return None
        facts: Facts = json.loads(path.read_text(encoding="utf-8"))
        return facts

    def result(self, name: str) -> Facts | None:
        """What a step found; None if it was not done or failed."""
        facts = self.find(name)
        return None if facts is None else facts.get("result")

    def all(self, prefix: str) -> dict[str, Facts]:
        """Everything on record, by name, about the steps whose name begins so."""
        names = sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"{prefix}*{SUFFIX}"))
        return {name: facts for name in names if (facts := self.find(name)) is not None}


def run_steps(
    steps: Iterable[Step], records: Records, deadline: Deadline, say: Callable[[str], None]
) -> bool:
    """Do the steps that are not on record; say whether all are done now.

    A step is taken from `steps` only after the one before it is done, so later ones may depend on
    what earlier ones found. One that fails for a reason of the input or the machine is on record as
    failed, and the others go on.
    """
    for step in steps:
        asked = json.loads(json.dumps(dict(step.asked)))  # as it comes back from a file
        known = records.find(step.name)
        if known is not None and known["asked"] == asked:
            continue
        began = time.monotonic()
        facts: Facts = {"asked": asked}
        try:
            deadline.need(0.0)
            facts["result"] = step.work()
        except LimitReachedError:
            say(f"{step.name}: time is up; run the same command again to go on")
            return False
        except CampoError as error:
            facts["failure"] = str(error)
        facts["seconds"] = round(time.monotonic() - began, 1)
        facts["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        facts["load_average"] = [round(value, 1) for value in os.getloadavg()]
        write_text(json.dumps(facts, indent=1) + "\n", records.folder / f"{step.name}{SUFFIX}")
        say(f"{step.name}: {facts.get('failure', 'done')} ({facts['seconds']:.0f} s)")
    return True
