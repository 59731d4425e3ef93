"""A progress display for training loops."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from campo_onnx.step.naming import LOSS

if TYPE_CHECKING:
    from rich.console import Console

    from campo_onnx.training.session import StepResult


def progress(
    results: "Iterable[StepResult]",
    *,
    total: int | None = None,
    title: str = "training",
    console: "Console | None" = None,
) -> "Iterator[StepResult]":
    """Pass on the results of a training loop, and show how it goes.

    The display holds the loss, the loss scale and the skipped steps where there are such, samples
    per second (of the last half minute, the making of batches included) and the remaining time. It
    goes to stderr, and only to a terminal.

    `results`: what :meth:`campo_onnx.training.session.TrainingSession.train` gives.
    `total`: how many there will be; None where that is not known.
    `title`: stands in front.
    `console`: where to show it, instead of stderr.

    >>> for result in progress(session.train(batches), total=1000):  # doctest: +SKIP
    ...     history.append(result.loss)
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    where = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=where, disable=not where.is_terminal) as display:
        task = display.add_task(escape(title), total=total, figures="")
        skipped = 0
        for result in results:
            skipped += result.skipped
            display.update(task, advance=1)
            steps_per_s = display.tasks[0].speed
            display.update(task, figures=", ".join(_figures(result, skipped, steps_per_s)))
            yield result


def _figures(result: "StepResult", skipped: int, steps_per_s: float | None) -> Iterator[str]:
    if LOSS in result.metrics:
        yield f"loss {result.loss:.4g}"
    if result.loss_scale is not None:
        yield f"scale {_power_of_two(result.loss_scale)}"
    if skipped:
        yield f"{skipped} skipped"
    if steps_per_s:
        yield f"{steps_per_s * result.samples:,.1f} samples/s"


def _power_of_two(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:g}"
