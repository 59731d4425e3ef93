"""Mutate, run, check: one case after another, each drawn from its number."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.checks import violations
from tests.fuzz.mutations import mutate
from tests.fuzz.sandbox import Bounds, in_child, run
from tests.fuzz.subjects import CASES, Case, digests

_RUNNING = ("data", "--costs", "--inputs", "--profile", "--baseline")
CHEAP = tuple(
    case
    for case in CASES
    if case.words[0] in ("optimize", "explain", "restore", "compare")
    and not any(word in case.command for word in _RUNNING)
)
"""Cases that run no graph, and need no profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case."""

    seed: int
    case: Case
    how: str
    code: int | None
    seconds: float
    violations: list[str]
    err: str


def try_case(
    seed: int,
    sound: Path,
    work: Path,
    bounds: Bounds | None = None,
    cases: tuple[Case, ...] = CASES,
) -> Result:
    """Draw a case, run it and check it.

    Parameters
    ----------
    seed
        Of the case and the mutation.
    sound
        A folder of :func:`tests.fuzz.subjects.make_folder`.
    work
        Where to work; it is emptied first and keeps the mutated files after.
    bounds
        What a command may take.
    cases
        What to draw from.
    """
    rng = random.Random(seed)
    case = rng.choice(cases)
    folder = work / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    shutil.copytree(sound, folder)
    how = in_child(lambda: mutate(folder / case.file, rng))
    before = digests(folder)
    outcome = run(case.words, folder, bounds)
    return Result(
        seed=seed,
        case=case,
        how=how,
        code=outcome.code,
        seconds=outcome.seconds,
        violations=violations(case, outcome, before, folder),
        err=outcome.err,
    )
