"""``optimize --probe``: the plan tried on data before it is written."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.errors import DeviceUnavailableError

from .options import SAFETY, option
from .render.console import working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds


class ProbeMode(StrEnum):
    """Whether a plan is tried on data."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeArguments:
    """Options of the trial on data."""

    probe: Annotated[
        ProbeMode,
        option(
            SAFETY,
            "--probe",
            help="`on`: run the planned step, emulated on the CPU, beside the FP32 step, on the batches of "
            "--inputs or on drawn ones, and keep in FP32 what makes it wrong. `off`: trust the rules.",
        ),
    ] = ProbeMode.ON
    probe_s: Annotated[
        float | None,
        option(
            SAFETY,
            "--probe-s",
            metavar="SECONDS",
            help="What --probe may take on one core while nothing is wrong; of a larger step, "
            "and of one that takes more than 2 GB or a quarter of the free memory, the first part runs.  "
            "[default: 5, and 0.4 ms for each node, up to 12]",
        ),
    ] = None


def probed(
    optimized: "Optimized", options: "Options", inputs: "Mapping[Path, Feeds]", wanted: ProbeArguments
) -> tuple["Optimized", "Options", tuple[str, ...]]:
    """Try a plan on data, and say what was tried."""
    if not optimized.plan.low_nodes or optimized.was_optimized_before:
        return optimized, options, ()
    if wanted.probe is ProbeMode.OFF:
        return optimized, options, _ordered_untried(optimized)
    try:
        from campo_onnx.emulation.batches import Batch
        from campo_onnx.emulation.probe import probe

        batches = [Batch(path.name, feeds) for path, feeds in inputs.items()]
        with working(f"trying {len(optimized.plan.low_nodes):,} low nodes on data"):
            outcome = probe(optimized, options, batches, budget_s=wanted.probe_s)
    except DeviceUnavailableError as error:  # planning from public figures needs no runtime
        return optimized, options, (f"The plan was not tried on data: {error}",)
    settled = replace(options, forbidden={**options.forbidden, **outcome.fp32})
    return outcome.optimized, settled, (outcome.summary,)


def _ordered_untried(optimized: "Optimized") -> tuple[str, ...]:
    """Say that what orders rounded values was not tried: no rule tells which of two close ones is larger."""
    from campo_onnx.ops.key import op_keys

    orders = op_keys("ArgMax ArgMin Hardmax NonMaxSuppression TopK Unique")
    view, low_nodes = optimized.problem.view, optimized.plan.low_nodes
    rounded = view.downstream(t for n in view.nodes if n.name in low_nodes for t in n.outputs)
    ordering = [n for n in view.nodes if n.op in orders and not rounded.isdisjoint(n.inputs)]
    if not ordering:
        return ()
    first, others = ordering[0], len(ordering) - 1
    also = f" and {others} other{'s' * (others > 1)}" if others else ""
    return (
        f"The plan was not tried on data: {first.name!r} ({first.op.label}){also} may order values otherwise "
        "that low nodes round. Leave --probe off away to try it.",
    )
