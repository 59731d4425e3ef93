"""Mutate, run, check: one case after another, each drawn from its number."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.cases import BARE, CHEAP, EXPENSIVE, Case
from tests.fuzz.checks import digests, violations
from tests.fuzz.mutations import mutate
from tests.fuzz.sandbox import Outcome, in_child, run

_RUNNING_SHARE = 1 / 40  # of cases that run a graph: each takes as long as twenty others
_STARTS_THREADS = (".parquet",)  # libraries that write these do, and processes with threads do not fork well

Run = Callable[[list[str], Path], Outcome]


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


def drawn(seed: int, *, cheap: bool = False) -> tuple[Case, random.Random]:
    """Draw the case of a number, and what its mutation is drawn from.

    Parameters
    ----------
    seed
        The number.
    cheap
        Whether only commands are drawn that run no graph and need no profile or store.
    """
    rng = random.Random(seed)
    is_expensive = rng.random() < _RUNNING_SHARE
    return rng.choice(BARE if cheap else EXPENSIVE if is_expensive else CHEAP), rng


def try_case(seed: int, sound: Path, work: Path, *, cheap: bool = False, run: Run = run) -> Result:
    """Draw a case, run it and check it.

    Parameters
    ----------
    seed
        Of the case and the mutation.
    sound
        A folder of :func:`tests.fuzz.subjects.make_folder`.
    work
        Where to work; it is emptied first and keeps the mutated files after.
    cheap
        Whether only commands are drawn that run no graph and need no profile or store.
    run
        How to run a command in a folder.
    """
    case, rng = drawn(seed, cheap=cheap)
    folder = work / "run"
    renew(folder, sound)
    path = folder / case.file
    how = in_child(lambda: mutate(path, rng)) if path.suffix in _STARTS_THREADS else mutate(path, rng)
    code, seconds, wrong, err = judged(case, folder, run)
    return Result(seed=seed, case=case, how=how, code=code, seconds=seconds, violations=wrong, err=err)


def judged(case: Case, folder: Path, run: Run = run) -> tuple[int | None, float, list[str], str]:
    """Run a case on files as they are: exit code, seconds, what is wrong with it, and its messages."""
    before = digests(folder)
    outcome = run(case.words, folder)
    return outcome.code, outcome.seconds, violations(case, outcome, before, folder), outcome.err


def renew(folder: Path, sound: Path) -> None:
    """Make a folder what a sound one is."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    shutil.copytree(sound, folder)
