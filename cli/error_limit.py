"""``optimize --max-error`` and ``--max-time-us``: the point of the frontier that was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from campo_onnx.errors import CampoError, CheckFailedError, UsageError
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY

from .options import DECISION, option
from .render.console import print_note, progressing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from campo_onnx.ops.precision import Precision
    from campo_onnx.planning.frontier import FrontierPlan
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


class Decided(NamedTuple):
    """A plan, options that decide it again, the batches, and what was said of its trial on them."""

    optimized: "Optimized"
    options: "Options"
    batches: "Mapping[Path, Feeds]"
    tried: tuple[str, ...] = ()


def best_within(
    decide: "Callable[[Options], Decided]",
    options: "Options",
    lows: "Sequence[Precision]",
    max_error: float | None,
    max_time_us: float | None,
) -> Decided:
    """Take the point of the frontier that was asked for, in the format that serves it best.

    CampoError says that no format has such a plan, in the words of the first. `decide` plans the step, and
    tries the plan on data: nodes that broke there stay FP32. Either `max_error` is set, for the fastest plan
    within it, or `max_time_us`, for the one of least error.
    """
    from campo_onnx.emulation.frontier import chosen_plan
    from campo_onnx.planning.pipeline import apply

    chosen: list[tuple[FrontierPlan, Decided]] = []
    refusals: list[CampoError] = []
    for low in lows:
        decided = decide(replace(options, low=low))
        optimized = decided.optimized
        try:
            with progressing(f"measuring what roundings to {low.name} do") as advance:
                plan = chosen_plan(
                    optimized.imported,
                    optimized.problem,
                    decided.options,
                    [*decided.batches.values()],
                    most_error=max_error,
                    most_us=max_time_us,
                    tell=advance,
                )
        except (CheckFailedError, UsageError) as refusal:
            refusals.append(refusal)
        else:
            chosen.append((plan, decided))
    if not chosen:
        raise refusals[0]
    best, decided = min(
        chosen, key=lambda one: (one[0].emulated_error or 0.0) if max_error is None else one[0].point.time_us
    )
    name = f"{best.low.name} was chosen. " if len(lows) > 1 else ""
    errors = f"{best.point.error:.2g}, and {best.emulated_error:.2g} emulated"
    print_note(f"{name}The plan's error is predicted to be {errors}.")
    optimized = decided.optimized
    return decided._replace(optimized=apply(best.plan, optimized.problem, optimized.imported))
