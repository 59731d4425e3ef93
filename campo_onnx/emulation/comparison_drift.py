"""Drift of every strategy's step by rounding: each plan emulated on the CPU, beside the FP32 step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

import onnx

from campo_onnx.emulation.batches import draw_batches
from campo_onnx.emulation.dfp16 import emulate_dfp16
from campo_onnx.emulation.drift import Arrays, Reference, references, unfinite_in, worst_drift
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.comparison import Comparison, Drift


class Numerics(StrEnum):
    """Arithmetic that is assumed of a plan's low nodes."""

    PLANNED = "planned"
    """In the low precision that was planned."""
    DFP16 = "dfp16"
    """In dynamic fixed point with 16 bits, which no device here has."""


def with_drift(
    comparison: Comparison,
    numerics: Sequence[Numerics],
    *,
    feeds: Arrays | None = None,
    dims: Mapping[str, int] | None = None,
) -> Comparison:
    """Emulate every plan, and say how far it is from the FP32 step.

    Raises ModelError if the FP32 step itself fails on the batch, or is not finite.
    """
    imported = comparison.imported
    batch = next(draw_batches(imported.view)).feeds if feeds is None else feeds
    (reference,) = references(imported, [batch])
    if (name := unfinite_in(reference.outputs)) is not None:
        raise ModelError(
            f"the FP32 step is not finite in {name!r}",
            why="what is not finite in FP32 says nothing about a lower precision",
            remedy="Name a batch it is finite on, with --inputs.",
        )
    drifts: dict[object, Mapping[str, Drift]] = {}
    rows = []
    for row in comparison.rows:
        plan = row.plan
        decided = (plan.low_nodes, plan.pads)
        if decided not in drifts:
            mixed = rewrite(imported, plan)
            drifts[decided] = MappingProxyType(
                {_title(n, plan): _drift(mixed, n, reference, dims) for n in numerics}
            )
        rows.append(replace(row, drift=drifts[decided]))
    return replace(comparison, rows=tuple(rows))


def output_drift(
    imported: Imported, mixed: onnx.ModelProto, batches: Sequence[Arrays], dims: Mapping[str, int]
) -> dict[str, float]:
    """Relative error of every output of a planned step, emulated: the largest over some batches."""
    return worst_drift(seeded(emulate(mixed, dims)), references(imported, batches))


def _title(numerics: Numerics, plan: Plan) -> str:
    return plan.low.value if numerics is Numerics.PLANNED else numerics.value


def _drift(
    mixed: onnx.ModelProto, numerics: Numerics, reference: Reference, dims: Mapping[str, int] | None
) -> Drift:
    try:
        if numerics is Numerics.DFP16:
            emulated = emulate_dfp16(mixed, dims, folder=reference.folder)
        else:
            emulated = emulate(mixed, dims)
        errors = reference.drift_of(reference.run(seeded(emulated)))
    except (ModelError, UnsupportedModelError) as error:
        return Drift(error=None, output="", why=str(error))
    worst = max(errors, key=lambda name: errors[name], default="")
    return Drift(error=errors.get(worst, 0.0), output=worst)
