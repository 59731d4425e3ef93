"""Drift of every strategy's step by rounding: each plan emulated on the CPU, beside the FP32 step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import onnx

from campo_onnx.emulation.batches import draw_batches
from campo_onnx.emulation.dfp16 import emulate_dfp16
from campo_onnx.emulation.drift import Arrays, Reference
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.safety import earlier_versions
from campo_onnx.planning.comparison import Comparison, Drift
from campo_onnx.runtime.chunked_run import run_in_pieces
from campo_onnx.runtime.registry import machine


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

    Raises
    ------
    ModelError
        If the FP32 step itself fails on the batch, or is not finite.
    """
    imported = comparison.imported
    reference = _reference(imported, next(draw_batches(imported.view)).feeds if feeds is None else feeds)
    for name, value in reference.outputs.items():
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
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
    imported: Imported, mixed: onnx.ModelProto, batches: Iterable[Arrays], dims: Mapping[str, int]
) -> dict[str, float]:
    """Relative error of every output of a planned step, emulated: the largest over some batches."""
    emulated, worst = seeded(emulate(mixed, dims)), dict[str, float]()
    for feeds in batches:
        reference = _reference(imported, feeds)
        actual = run_in_pieces(emulated, feeds, reference.machine, folder=imported.folder)
        for name, error in reference.drift_of(actual).items():
            worst[name] = max(error, worst.get(name, 0.0))
    return worst


def _reference(imported: Imported, feeds: Arrays) -> Reference:
    return Reference(
        model=seeded(imported.model),
        feeds=feeds,
        earlier=earlier_versions(imported.view),
        machine=machine("cpu"),
        folder=imported.folder,
    )


def _title(numerics: Numerics, plan: Plan) -> str:
    return plan.low.value if numerics is Numerics.PLANNED else numerics.value


def _drift(
    mixed: onnx.ModelProto, numerics: Numerics, reference: Reference, dims: Mapping[str, int] | None
) -> Drift:
    try:
        emulated = emulate_dfp16(mixed, dims) if numerics is Numerics.DFP16 else emulate(mixed, dims)
        actual = run_in_pieces(seeded(emulated), reference.feeds, reference.machine, folder=reference.folder)
        errors = reference.drift_of(actual)
    except (ModelError, UnsupportedModelError) as error:
        return Drift(error=None, output="", why=str(error))
    worst = max(errors, key=lambda name: errors[name], default="")
    return Drift(error=errors.get(worst, 0.0), output=worst)
