"""Values that a low precision would lose, node by node."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.attributes import scalar_attributes
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.positions import exact_integers, largest_exact

_WORST_ROUNDING = 0.01
"""Relative error beyond which a derived value counts as lost."""

_LOOKING_FOR_INFINITY = op_keys("IsInf com.microsoft:IsFinite")
_FEW_STEPS = 4.0
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostValue:
    """A value that a node reads or writes and a low precision does not hold."""

    tensor: str
    source: str  # the tensor that the value comes from; `tensor` where no other one tells
    value: float
    overflows: bool = False
    is_integer: bool = False  # whether it is a count or a position that would no longer be exact
    is_rounded: bool = False  # whether the values around it become one and the same
    is_attribute: bool = False


def lost_values(values: GraphValues) -> Mapping[str, LostValue]:
    """Find the nodes that read or write a value which the low precision does not hold."""
    counts = exact_integers(values)
    lost = ((node.name, next(_lost_at(node, values, counts), None)) for node in values.view.nodes)
    return {name: value for name, value in lost if value is not None}


def _lost_at(node: OpNode, values: GraphValues, counts: frozenset[str]) -> Iterator[LostValue]:
    view, low, ports = values.view, values.low, values.ports[node.name]
    if node.op in _LOOKING_FOR_INFINITY and ports.low_inputs:
        read = node.inputs[0]
        yield LostValue(tensor=read, source=read, value=_LARGEST, overflows=True)
    if node.attributes and (ports.low_inputs or ports.low_outputs):
        yield from _lost_attributes(view.signature(node.name), low)
    for tensor in ports.low_among(node.inputs, node.outputs):
        r = values.range(tensor)
        if r is UNKNOWN:
            continue
        source = r.source or tensor
        if r.magnitude > low.largest:
            # Nothing beyond FP32's own reach occurs, and a plan file holds no infinity.
            value = math.copysign(min(r.magnitude, _LARGEST), r.extreme)
            yield LostValue(tensor=tensor, source=source, value=value, overflows=True)
        elif _smallest(r) < _least(low, is_exact=view.is_constant(tensor) or not r.varies):
            yield LostValue(tensor=tensor, source=source, value=_smallest(r))
        elif _is_narrow(r, low):
            yield LostValue(tensor=tensor, source=source, value=r.extreme, is_rounded=True)
        elif tensor in counts:
            yield LostValue(tensor=tensor, source=tensor, value=r.bound, is_integer=True)


def _lost_attributes(signature: Signature, low: Precision) -> Iterator[LostValue]:
    for name, value in scalar_attributes(signature):
        lost = LostValue(tensor=name, source=name, value=value, is_attribute=True)
        if abs(value) > low.largest:
            yield replace(lost, value=math.copysign(min(abs(value), _LARGEST), value), overflows=True)
        elif 0.0 < abs(value) < _least(low, is_exact=True):
            yield lost


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
