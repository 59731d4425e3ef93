"""What ``optimize`` finds out before it plans: a cleaned-up graph, ranges, a precision, what data shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .options import dimensions
from .render.checks import print_data_safety
from .render.console import print_note, working

if TYPE_CHECKING:
    from campo_onnx.planning.options import Options


@contextmanager
def cleaned_up(model: Path, dim: list[str] | None, *, wanted: bool) -> Iterator[Path]:
    """Give the graph to plan: the given one, or that cleaned up, while it is needed."""
    if not wanted:
        yield model
        return
    from campo_onnx.emulation.simplify import simplified_file

    with working(f"simplifying {model.name}"), simplified_file(model, dimensions(dim)) as (path, found):
        how = "run beside it" if found.was_run else "not run beside it, since it draws random numbers"
        print_note(f"simplified: {found.nodes_before:,} nodes to {found.nodes_after:,} ({how})")
        yield path


def with_measured_ranges(model: Path, options: "Options", inputs: list[Path]) -> "Options":
    """Declare of graph inputs what batches show; what the user declared stays."""
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.values.ranges import measured_ranges
    from campo_onnx.runtime.feeds import read_feeds

    view = import_model(model, options.dims).view
    found = measured_ranges(view, [read_feeds(path, view) for path in inputs])
    return replace(options, ranges={**found, **options.ranges})


def with_chosen_precision(model: Path, options: "Options") -> "Options":
    """Choose between the low precisions, and say why."""
    from campo_onnx.planning.auto_precision import choose_precision

    with working(f"choosing a low precision for {model.name} on {options.device.name}"):
        choice = choose_precision(model, options)
    print_note(f"{choice.low.name} was chosen. {choice.why}")
    return replace(options, low=choice.low)


def with_data_safety(model: Path, options: "Options", inputs: list[Path], budget: float | None) -> "Options":
    """Find out on batches which nodes would break, and which are harmless."""
    from campo_onnx.emulation.data_safety import measure_safety
    from campo_onnx.emulation.drift import most_drift
    from campo_onnx.ir.importer import import_model
    from campo_onnx.runtime.feeds import read_feeds

    imported = import_model(model, options.dims)
    batches = [read_feeds(path, imported.view) for path in inputs]
    with working(f"measuring safety of {model.name} on {len(batches)} batch(es)"):
        found = measure_safety(imported, options, batches, budget=budget)
    print_data_safety(found, most_drift(options.low) if budget is None else budget)
    return found.applied_to(options)
