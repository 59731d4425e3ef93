"""Starts: the rounds spread over several loadings of the graphs, so that none decides alone."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from campo_onnx.bench.lineup import Lineup
from campo_onnx.bench.rounds import Pace, Progress, Rounds

STARTS = 6
"""How often graphs are loaded: the least from which an interval over starts covers 95 %."""

Reopen = Callable[[Collection[str]], Lineup]
"""Loads the graphs of these names once more."""


def shares(steps: int) -> tuple[int, ...]:
    """Rounds of each start, as even as they come.

    Examples
    --------
    >>> shares(50)
    (9, 9, 8, 8, 8, 8)
    """
    starts = min(STARTS, steps)
    return tuple(steps // starts + (number < steps % starts) for number in range(starts))


def rounds_in_all(pace: Pace) -> int:
    """Rounds of all starts, those to warm up included."""
    return pace.steps + pace.warmup * len(shares(pace.steps))


def take_starts(
    lineup: Lineup,
    reopen: Reopen,
    take: Callable[..., Rounds],
    pace: Pace,
    *,
    seed: int,
    on_progress: Progress,
) -> tuple[tuple[Rounds, ...], Lineup]:
    """Take the rounds, loading the graphs anew in between.

    Parameters
    ----------
    lineup
        The graphs as first loaded. What is dropped in between frees its memory before it is taken again.
    reopen
        Loads graphs once more; those that failed stay out.
    take
        :func:`campo_onnx.bench.rounds.take_rounds`.
    pace
        How many rounds in all, how many to warm up after each start, how long in all.
    seed
        Of the order within rounds.
    on_progress
        Called with the rounds done and all there are.

    Returns
    -------
    tuple of Rounds
        One a start, at least one.
    Lineup
        What is loaded now.

    Raises
    ------
    KeyboardInterrupt
        If the user ends it before the first round is complete; later, what was taken is returned.
    """
    starts: list[Rounds] = []
    total, parts = rounds_in_all(pace), shares(pace.steps)
    for number, share in enumerate(parts):
        before = sum(parts[:number]) + number * pace.warmup
        budget_s = None if pace.budget_s is None else pace.budget_s / len(parts)
        try:
            if number:
                left = tuple(lineup.steps)
                lineup.steps.clear()
                fresh = reopen(left)
                lineup = replace(lineup, steps=fresh.steps, failures={**lineup.failures, **fresh.failures})
            starts.append(
                take(
                    lineup.steps,
                    replace(pace, steps=share, budget_s=budget_s, least=1),
                    seed=seed + number,
                    on_progress=lambda done, _, before=before: on_progress(before + done, total),
                )
            )
        except KeyboardInterrupt:
            if not starts:
                raise
            starts[-1] = replace(starts[-1], interrupted=True)
        if starts[-1].interrupted or not lineup.steps:
            break
    return tuple(starts), lineup


def together(starts: Sequence[Rounds]) -> Rounds:
    """Put the rounds of several starts behind each other; at least one start."""
    names = starts[0].samples_us
    return Rounds(
        samples_us={name: tuple(t for s in starts for t in s.samples_us.get(name, ())) for name in names},
        failures={name: failure for start in starts for name, failure in start.failures.items()},
        taken=sum(start.taken for start in starts),
        interrupted=starts[-1].interrupted,
    )
