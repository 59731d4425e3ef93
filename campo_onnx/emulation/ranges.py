"""The range of every tensor of a step on real data, and what a low precision would lose of it.

A large step runs in pieces, and a tensor is looked at as soon as it is there: none is kept for it.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from campo_onnx.ir.constants import whole
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.chunked_run import run_in_pieces
from campo_onnx.runtime.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Magnitudes of one tensor over some batches, and what a low precision loses of them."""

    largest: float  # largest magnitude; infinite or NaN where the FP32 step is
    # overflow_share, flushed_share, subnormal_share: shares of its nonzero values that overflow, become zero,
    # or keep fewer bits.
    overflow_share: float
    flushed_share: float
    subnormal_share: float
    # Sum of the magnitudes that become zero, over the sum of all magnitudes: small values beside large ones
    # do not count for more than they weigh.
    lost_mass: float

    def merged(self, other: "Range") -> "Range":
        """The worse of two batches, figure by figure."""
        return Range(
            largest=float(np.fmax(self.largest, other.largest)),
            overflow_share=max(self.overflow_share, other.overflow_share),
            flushed_share=max(self.flushed_share, other.flushed_share),
            subnormal_share=max(self.subnormal_share, other.subnormal_share),
            lost_mass=max(self.lost_mass, other.lost_mass),
        )


def ranges_of(
    model: ModelProto,
    tensors: Iterable[str],
    batches: Iterable[Mapping[str, NDArray[Any]]],
    precision: Precision,
    machine: Machine,
    *,
    folder: Path | None = None,
) -> dict[str, Range]:
    """Run the FP32 step on each batch and record the ranges of `tensors`; external data lies in `folder`."""
    wanted = dict.fromkeys(tensors)
    constants = {t.name: whole(t, folder) for t in model.graph.initializer if t.name in wanted}
    watched = deepcopy(model)
    del watched.graph.output[:]
    inputs = {value.name for value in model.graph.input}
    watched.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in wanted
        if name not in inputs and name not in constants
    )
    worst: dict[str, Range] = {}

    def look_at(name: str, value: NDArray[Any]) -> None:
        one = _range(value, precision)
        worst[name] = worst[name].merged(one) if name in worst else one

    for feeds in batches:
        for name, value in {**constants, **feeds}.items():
            if name in wanted:
                look_at(name, value)
        if watched.graph.output:
            for name, value in run_in_pieces(watched, feeds, machine, folder=folder):
                look_at(name, value)
    return worst


def _range(values: NDArray[Any], precision: Precision) -> Range:
    magnitude = np.abs(values)
    smallest = precision.smallest_normal * 2.0**-precision.fraction_bits
    is_flushed = magnitude <= smallest / 2  # half of the smallest subnormal rounds to zero
    is_subnormal = (magnitude < precision.smallest_normal) & ~is_flushed
    # An infinity is one in every precision: a mask of -inf loses nothing.
    overflows = (magnitude > precision.largest) & ~np.isinf(magnitude)
    nonzero = max(int(np.count_nonzero(magnitude)), 1)
    mass = float(magnitude.sum(dtype=np.float64))
    lost = float(magnitude[is_flushed].sum(dtype=np.float64))
    return Range(
        largest=float(magnitude.max(initial=0.0)),
        overflow_share=int(np.count_nonzero(overflows)) / nonzero,
        flushed_share=int(np.count_nonzero(is_flushed & (magnitude > 0))) / nonzero,
        subnormal_share=int(np.count_nonzero(is_subnormal)) / nonzero,
        lost_mass=lost / mass if mass else 0.0,
    )
