"""Values that a low precision would lose, node by node."""

import math
from collections.abc import Iterator

import numpy as np

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.values.graph_values import GraphValues, Verdicts
from campo_onnx.optimize.values.positions import exact_integers, largest_exact

_NO_DATA = frozenset(
    {"cubic_coeff_a", "epsilon", "momentum", "qk_norm_epsilon", "sampling_ratio", "seed", "spatial_scale"}
)
"""Attributes that are not computed with, or that kernels use in FP32 whatever the data's type."""


def scalar_attributes(signature: Signature) -> Iterator[tuple[str, float]]:
    """List the floating-point attributes that take part in what a node computes; infinity and NaN too."""
    for name, value in signature.attributes.items():
        if isinstance(value, float) and name not in _NO_DATA:
            yield name, value


_WORST_ROUNDING = 0.01
"""Relative error beyond which a derived value counts as lost."""

_LOOKING_FOR_INFINITY = op_keys("IsInf com.microsoft:IsFinite")
_OF_CONSTANTS = {Reason.VALUE_OVERFLOW: Reason.OVERFLOW, Reason.VALUE_UNDERFLOW: Reason.UNDERFLOW}
_FEW_STEPS = 4.0
_LARGEST = float(np.finfo(np.float32).max)


def lost_values(values: GraphValues) -> Verdicts:
    """Find the nodes that read or write a value which the low precision does not hold."""
    counts = exact_integers(values)
    for node in values.view.nodes:
        if (verdict := next(_lost_at(node, values, counts), None)) is not None:
            yield node.name, verdict


def _lost_at(node: OpNode, values: GraphValues, counts: frozenset[str]) -> Iterator[Verdict]:
    view, low, ports = values.view, values.low, values.ports[node.name]
    if node.op in _LOOKING_FOR_INFINITY and ports.low_inputs:
        yield _lost(Reason.VALUE_OVERFLOW, node.inputs[0], _LARGEST, values, source=node.inputs[0])
    if node.attributes and (ports.low_inputs or ports.low_outputs):
        yield from _lost_attributes(view.signature(node.name), low)
    for tensor in ports.low_among(node.inputs, node.outputs):
        r = values.range(tensor)
        if r is UNKNOWN:
            continue
        if r.magnitude > low.largest:
            # Nothing beyond FP32's own reach occurs, and a plan file holds no infinity.
            value = math.copysign(min(r.magnitude, _LARGEST), r.extreme)
            yield _lost(Reason.VALUE_OVERFLOW, tensor, value, values)
        elif _smallest(r) < _least(low, is_exact=view.is_constant(tensor) or not r.varies):
            yield _lost(Reason.VALUE_UNDERFLOW, tensor, _smallest(r), values)
        elif _is_narrow(r, low):
            yield _lost(Reason.VALUE_ROUNDING, tensor, r.extreme, values)
        elif tensor in counts:
            yield Reason.INTEGERS.of(tensor=tensor, largest=largest_exact(low), low=low.value)


def _lost(reason: Reason, tensor: str, value: float, values: GraphValues, source: str = "") -> Verdict:
    if values.view.is_constant(tensor):
        return _OF_CONSTANTS[reason].of(tensor=tensor, value=value, low=values.low.value)
    source = source or values.range(tensor).source or tensor
    return reason.of(tensor=tensor, value=value, low=values.low.value, source=source)


def _lost_attributes(signature: Signature, low: Precision) -> Iterator[Verdict]:
    for name, value in scalar_attributes(signature):
        if abs(value) > low.largest:
            largest = math.copysign(min(abs(value), _LARGEST), value)
            yield Reason.OVERFLOW.of(tensor=name, value=largest, low=low.value)
        elif 0.0 < abs(value) < _least(low, is_exact=True):
            yield Reason.UNDERFLOW.of(tensor=name, value=value, low=low.value)


def _is_narrow(r: ValueRange, low: Precision) -> bool:
    """Whether a few steps of `low` are as wide as all values: x + 30000."""
    width = r.expected_highest - r.expected_lowest
    step = r.magnitude * 2.0**-low.fraction_bits
    return r.varies and not r.from_integers and 0.0 < width < _FEW_STEPS * step


def _smallest(r: ValueRange) -> float:
    return min(r.smallest, r.magnitude or r.smallest)


def _least(low: Precision, *, is_exact: bool) -> float:
    """The smallest magnitude that `low` holds well enough.

    Of a constant every bit counts, so it has to be normal; what is computed may be rounded to 1 %.
    """
    if is_exact:
        return low.smallest_normal
    return low.smallest_normal / largest_exact(low) / _WORST_ROUNDING
