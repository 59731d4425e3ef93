"""From the file of ``optimize`` to its plan, in one pass: clean up, ranges, a precision, safety on data."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.errors import UsageError

from .options import SAFETY, dimensions, option
from .render.checks import print_data_safety
from .render.console import print_note, working

if TYPE_CHECKING:
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
