"""From the file of ``optimize`` to its plan: clean up, ranges, a precision, safety and a trial on data."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.errors import DeviceUnavailableError, UsageError

from .options import SAFETY, dimensions, option
from .render.checks import print_data_safety
from .render.console import print_note, working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds


class SafetyMode(StrEnum):
    """Options that decide which nodes may run in low precision."""

    LISTS = "lists"
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataArguments:
    """Options that name real batches, and say what they decide."""

    safety: Annotated[
        SafetyMode,
        option(
            SAFETY,
            help="`lists`: op lists decide. `data`: the FP32 step is also run on the batches of --inputs; "
            "nodes that would overflow or underflow stay FP32, and nodes that the lists keep FP32 only "
            "because of an unsafe producer may run low if no gradient changes.",
        ),
    ] = SafetyMode.LISTS
    inputs: Annotated[
        list[Path] | None,
        option(
            SAFETY,
            metavar="FILE.npz",
            help="A real batch, for --safety data, --verify, and the ranges of masks and other inputs: one "
            "array per graph input, by name. Repeatable.",
        ),
    ] = None
    budget: Annotated[
        float | None,
        option(
            SAFETY,
            metavar="ERROR",
            min=0.0,
            help="For --safety data: largest relative error of each gradient.  [default: 0.01, in BF16 0.08]",
        ),
    ] = None

    @property
    def files(self) -> list[Path]:
        """The batches."""
        return self.inputs or []

    def check(self) -> None:
        """Find out before any work whether the batches are there."""
        if self.safety is SafetyMode.DATA and not self.files:
            raise UsageError("--safety data needs a batch", remedy="Give --inputs FILE.npz.")
        check_inputs(self.files)


@contextmanager
def cleaned_up(model: Path, dim: list[str] | None, *, wanted: bool) -> Iterator[Path]:
    """Give the graph to plan: the given one, or that cleaned up, while it is needed."""
    if not wanted:
        yield model
        return
    from campo_onnx.emulation.simplify import simplified_file

    with working(f"simplifying {model.name}"), simplified_file(model, dimensions(dim)) as (path, changes):
        how = f"not run beside it, since {changes.why_not_run}" if changes.why_not_run else "run beside it"
        print_note(f"simplified: {changes.nodes_before:,} nodes to {changes.nodes_after:,} ({how})")
        yield path


def check_inputs(inputs: list[Path]) -> None:
    """Find out before any work whether the batches are there."""
    for path in inputs:
        if not os.path.exists(path):  # unlike Path.exists, no error where the name is too long
            raise UsageError(f"{path} does not exist", remedy="Check the path of --inputs.")


def planned(
    model: Path, source: Path, options: "Options", data: DataArguments, *, auto_precision: bool
) -> tuple["Optimized", "Options", "dict[Path, Feeds]"]:
    """Read a graph from its source, find out what its options leave open, and plan it.

    `model` is how the user calls the graph, `source` the file to read. Ranges of the batches in `data` hold
    for inputs of which the user declared none, and they may say which nodes would break, and which are
    harmless.
    """
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.values.ranges import measured_ranges
    from campo_onnx.planning.auto_precision import choose_precision
    from campo_onnx.planning.pipeline import apply, decide, form_for, problem_of

    with working(f"reading {model.name}"):
        imported = import_model(source, options.dims)
    view, form, problem, plan = imported.view, None, None, None
    of_nodes = f"{model.name}, {len(view.nodes):,} nodes, for {options.target.name}"
    batches: dict[Path, Feeds] = {}
    if data.files:
        from campo_onnx.runtime.feeds import read_feeds

        batches = {path: read_feeds(path, view, imported.defaults) for path in data.files}
        options = replace(options, ranges={**measured_ranges(view, [*batches.values()]), **options.ranges})
    if auto_precision:
        with working(f"choosing a low precision of {of_nodes}"):
            choice = choose_precision(imported, options)
        print_note(f"{choice.low.name} was chosen. {choice.why}")
        options = replace(options, low=choice.low)
        form = choice.forms.get(choice.low)
        problem, plan = choice.problems.get(choice.low), choice.plans.get(choice.low)
    with working(f"lowering {of_nodes}"):
        form = form or form_for(imported, options)
    if data.safety is SafetyMode.DATA:
        from campo_onnx.emulation.data_safety import measure_safety
        from campo_onnx.emulation.drift import most_drift

        with working(f"measuring safety of {model.name} on {len(batches)} batch(es)"):
            feeds = [*batches.values()]
            safety = measure_safety(form, options, feeds, budget=data.budget, problem=problem, plan=plan)
        print_data_safety(safety, most_drift(options.low) if data.budget is None else data.budget)
        options, problem, plan = safety.applied_to(options), safety.problem, safety.plan
    with working(f"finding what stays FP32 in {of_nodes}"):
        problem = problem or problem_of(form, options)
    with working(f"planning {of_nodes}"):
        return apply(plan or decide(problem, form, options), problem, form), options, batches


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
            min=0.0,
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
