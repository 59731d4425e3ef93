"""``optimize --max-error`` and ``--max-time-us``: the point of the frontier that was asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.errors import UsageError
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY

from .options import DECISION, option
from .render.console import print_note, progressing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds

MaxErrorOption = Annotated[
    float | None,
    option(
        DECISION,
        "--max-error",
        metavar="ERROR",
        min=0.0,
        help="Take the fastest plan of `frontier` whose error on the batches of --inputs is at most this, "
        "as predicted and as emulated.",
    ),
]
MaxTimeOption = Annotated[
    float | None,
    option(
        DECISION,
        "--max-time-us",
        metavar="US",
        min=0.0,
        help="Take the plan of `frontier` with the least error among those predicted to take at most this.",
    ),
]


def check_limits(
    max_error: float | None, max_time_us: float | None, *, strategy: str, repair: bool, inputs: list[Path]
) -> None:
    """Find out before any work whether a point of the frontier can be asked for."""
    if max_error is None and max_time_us is None:
        return
    option = "--max-time-us" if max_error is None else "--max-error"
    if max_error is not None and max_time_us is not None:
        raise UsageError(
            "--max-error and --max-time-us cannot be combined",
            why="each takes another point of the frontier",
            remedy="Give one of them; `campo-onnx frontier` shows all points.",
        )
    if strategy != DEFAULT_STRATEGY:
        raise UsageError(
            f"{option} cannot be combined with --strategy {strategy}",
            why="plans of the frontier are exact answers",
            remedy="Leave --strategy out.",
        )
    if repair:
        raise UsageError(
            f"{option} cannot be combined with --repair",
            why="plans made with corrected costs would have another error",
            remedy="Leave --repair out.",
        )
    if not inputs:
        raise UsageError(f"{option} needs a batch", remedy="Give --inputs FILE.npz.")


def within_limits(
    optimized: "Optimized",
    options: "Options",
    batches: "Mapping[Path, Feeds]",
    max_error: float | None,
    max_time_us: float | None,
) -> "Optimized":
    """Replace a plan by the point of the frontier that was asked for."""
    if max_error is None and max_time_us is None:
        return optimized
    from campo_onnx.emulation.frontier import chosen_plan
    from campo_onnx.planning.pipeline import apply

    with progressing("measuring what roundings do") as advance:
        chosen = chosen_plan(
            optimized.imported,
            optimized.problem,
            options,
            [*batches.values()],
            most_error=max_error,
            most_us=max_time_us,
            tell=advance,
        )
    emulated = f"{chosen.emulated_error:.2g} emulated"
    print_note(f"The plan's error is predicted to be {chosen.point.error:.2g}, and {emulated}.")
    return apply(chosen.plan, optimized.problem, optimized.imported)
