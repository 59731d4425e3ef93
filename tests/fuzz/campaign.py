"""Mutate a file or the command line, run, check: one case after another, each drawn from its number."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.arguments import with_other_arguments
from tests.fuzz.cases import Case, Choice
from tests.fuzz.checks import digests, violations
from tests.fuzz.mutations import mutate
from tests.fuzz.sandbox import Outcome, in_child, run
from tests.fuzz.verbs import VERBS

_ARGUMENTS_SHARE = 1 / 4  # of cases whose files stay sound, and whose command line does not
_STARTS_THREADS = (".parquet",)  # libraries that write these do, and processes with threads do not fork well

EVERY = Choice()
"""All cases."""

Run = Callable[[list[str], Path], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a case."""

    seed: int
    case: Case
    how: str
    code: int | None
    seconds: float
    violations: list[str]
    err: str


def drawn(seed: int, choice: Choice = EVERY) -> tuple[Case, random.Random]:
    """Draw the case of a number, and what its mutation is drawn from.

    Parameters
    ----------
    seed
        The number.
    choice
        Which cases are drawn.
    """
    rng = random.Random(seed)
    return choice.draw(rng), rng


def try_case(seed: int, sound: Path, work: Path, *, choice: Choice = EVERY, run: Run = run) -> Result:
    """Draw a case, run it and check it.

    Parameters
    ----------
    seed
        Of the case and the mutation.
    sound
        A folder of :func:`tests.fuzz.subjects.make_folder`.
    work
        Where to work; it is emptied first and keeps the mutated files after.
    choice
        Which cases are drawn.
    run
        How to run a command in a folder.
    """
    case, rng = drawn(seed, choice)
    folder = work / "run"
    renew(folder, sound)
    if case.words[0] not in VERBS and rng.random() < _ARGUMENTS_SHARE:
        case, how = with_other_arguments(case, rng), "arguments"
    else:
        how = _broken(folder / case.file, rng)
    code, seconds, wrong, err = judged(case, folder, run)
    return Result(seed=seed, case=case, how=how, code=code, seconds=seconds, violations=wrong, err=err)


def _broken(path: Path, rng: random.Random) -> str:
    """Mutate a file; returns how."""
    return in_child(lambda: mutate(path, rng)) if path.suffix in _STARTS_THREADS else mutate(path, rng)


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
