"""A graph of others, cleaned up before it is planned, by ONNX Runtime's own optimizer, and checked.

Redundant nodes each cost a launch, and constants that are computed anew hide from the planner. Only rules
that hold on every provider are applied; sessions here run what is planned, with the optimizer off.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from campo_onnx.errors import CheckFailedError, IndexOutOfRangeError, ModelError, UnsupportedModelError
from campo_onnx.files import temporary_folder
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.interface import differences
from campo_onnx.ir.sort import with_bodies
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import RANDOM
from campo_onnx.runtime.chunked_run import run_in_pieces
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.onnxruntime.optimized import cleaned_up
from campo_onnx.runtime.registry import machine

TOLERANCE = 1e-5
"""Largest difference of an output, relative to its largest value.

Constants are folded in FP32, and sums of some hundred products come out in another order: that is 2e-6 on a
step of three layers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplified:
    """Result of :func:`simplify`."""

    model: onnx.ModelProto  # the graph, cleaned up. External data stays where the given model has it.
    nodes_before: int
    nodes_after: int
    # Why the two were not run on the same values and compared; "" if they were.
    why_not_run: str = ""


def simplify(source: str | Path | onnx.ModelProto, dims: Mapping[str, int] | None = None) -> Simplified:
    """Clean a graph up.

    Raises CheckFailedError if the result has another interface or computes something else; nothing is
    returned then; UnsupportedModelError if ONNX Runtime does not load the graph.
    """
    original = import_model(source, dims)
    model = cleaned_up(original.model, CPU, threads=1, folder=original.folder)
    simpler = import_model(model, dims, folder=original.folder)
    if difference := next(differences(original.view, simpler.view), ""):
        raise CheckFailedError(
            "the simplified graph has other inputs or outputs than the given one",
            why=difference,
            remedy="Leave out --simplify, and please report it.",
        )
    # ONNX Runtime writes the sizes that it infers in the place of names.
    for field in ("input", "output"):
        declared = {value.name: value for value in getattr(original.model.graph, field)}
        for value in getattr(model.graph, field):
            value.CopyFrom(declared[value.name])
    return Simplified(
        model=model,
        nodes_before=len(original.view.nodes),
        nodes_after=len(simpler.view.nodes),
        why_not_run=_compared(original, simpler),
    )


@contextmanager
def simplified_file(source: Path, dims: Mapping[str, int] | None = None) -> Iterator[tuple[Path, Simplified]]:
    """Give a graph, cleaned up, as a file of the same name that is there meanwhile, its data with it."""
    simplified = simplify(source, dims)
    with temporary_folder() as folder:
        path = folder / source.name
        export_model(simplified.model, path, folder=source.resolve().parent)
        yield path, simplified


def _compared(before: Imported, after: Imported) -> str:
    """Run both graphs on the same values and compare their outputs; says why not where that is impossible."""
    if any(OpKey.of(node) in RANDOM for node in with_bodies(before.model.graph.node)):
        return "it draws random numbers"
    here = machine(CPU, 1)
    try:
        feeds = synthesize(before.view)
        first = dict(run_in_pieces(before.model, feeds, here, folder=before.folder))
    except (IndexOutOfRangeError, ModelError, UnsupportedModelError):
        return "the given graph does not run on made-up values"
    second = dict(run_in_pieces(after.model, feeds, here, folder=after.folder))
    for name in first.keys() | second.keys():
        if not (name in first and name in second and _is_same(second[name], first[name])):
            raise CheckFailedError(
                f"the simplified graph computes a different {name!r} than the given one",
                remedy="Leave out --simplify, and please report it.",
            )
    return ""


def _is_same(value: NDArray[Any], expected: NDArray[Any]) -> bool:
    if not np.issubdtype(expected.dtype, np.floating):
        return np.array_equal(value, expected)
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    tolerance = TOLERANCE * (largest or 1.0)
    return value.shape == expected.shape and np.allclose(
        value, expected, rtol=0, atol=tolerance, equal_nan=True
    )
