"""Many cases in one forked child, since a fork for each takes longer than most cases.

What a child reports is believed if it is good news. A case with a violation is tried again in a child of
its own, and so is one whose child ended or was late: what comes of that counts.
"""

import contextlib
import os
import pickle
import select
import signal
import sys
import time
from pathlib import Path
from typing import IO

from tests.fuzz.campaign import EVERY, Result, drawn, try_case
from tests.fuzz.cases import CHEAP, Choice
from tests.fuzz.sandbox import Bounds, Outcome, be_confined, program_on

_CASES = 100  # of one child


class Worker:
    """Tries cases, those that run no graph in a child that lives for a hundred of them.

    Parameters
    ----------
    sound
        A folder of :func:`tests.fuzz.subjects.make_folder`.
    work
        Where to work.
    choice
        Which cases are drawn.
    """

    def __init__(self, sound: Path, work: Path, *, choice: Choice = EVERY) -> None:
        self._sound, self._work, self._choice = sound, work, choice
        self._child, self._left = 0, 0
        self._to: IO[bytes] | None = None
        self._from: IO[bytes] | None = None

    def try_case(self, seed: int) -> Result:
        """Draw a case, run it and check it; see :func:`tests.fuzz.campaign.try_case`."""
        case, _ = drawn(seed, self._choice)
        # What reads a profile starts threads, and processes with threads do not fork well.
        result = self._in_child(seed) if case in CHEAP and "parquet" not in str(case) else None
        if result is None or result.violations:
            result = try_case(seed, self._sound, self._work, choice=self._choice)
        if result.code is None:  # a machine may stop for a while: what hangs does so twice
            result = try_case(seed, self._sound, self._work, choice=self._choice)
        return result

    def end(self) -> None:
        """End the child."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        for pipe in (self._to, self._from):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._child, self._left, self._to, self._from = 0, 0, None, None

    def _in_child(self, seed: int) -> Result | None:
        if not self._left:
            self.end()
            self._begin()
        self._left -= 1
        assert self._to is not None
        assert self._from is not None
        try:
            pickle.dump(seed, self._to)
            self._to.flush()
            ready, _, _ = select.select([self._from], [], [], Bounds().seconds)
            if ready:
                result: Result = pickle.load(self._from)  # from our own child
                return result
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        self.end()
        return None

    def _begin(self) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._child, self._left = os.fork(), _CASES
        if not self._child:
            for end in (ours_in, ours_out):
                os.close(end)
            with contextlib.suppress(BaseException):
                self._work_on(os.fdopen(theirs_in, "rb"), os.fdopen(theirs_out, "wb"))
            os._exit(0)
        for end in (theirs_in, theirs_out):
            os.close(end)
        self._to, self._from = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def _work_on(self, seeds: IO[bytes], results: IO[bytes]) -> None:
        be_confined(Bounds())
        while True:
            seed = pickle.load(seeds)  # from our own parent
            result = try_case(seed, self._sound, self._work, choice=self._choice, run=_here)
            pickle.dump(result, results)
            results.flush()


def _here(words: list[str], folder: Path) -> Outcome:
    """Run the program in this very process."""
    started = time.monotonic()
    before = Path.cwd(), dict(os.environ), sys.stdin, sys.stdout, sys.stderr
    ends = os.memfd_create("out"), os.memfd_create("err")
    code = program_on(words, folder, *ends)
    os.chdir(before[0])
    os.environ.clear()
    os.environ.update(before[1])
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.close()
    sys.stdin, sys.stdout, sys.stderr = before[2:]
    return Outcome(code=code, out=_all_of(ends[0]), err=_all_of(ends[1]), seconds=time.monotonic() - started)


def _all_of(end: int) -> str:
    os.lseek(end, 0, os.SEEK_SET)
    with os.fdopen(end, "rb") as file:
        return file.read().decode(errors="replace")
