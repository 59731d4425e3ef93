"""Which values a low precision would lose, node by node: what may not go low, and the value that says so."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.attributes import scalar_attributes
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.optimize.values.positions import exact_integers, largest_exact

_WORST_ROUNDING = 0.01
"""Relative error beyond which a derived value counts as lost."""


_LOOKING_FOR_INFINITY = frozenset({OpKey("", "IsInf"), OpKey("com.microsoft", "IsFinite")})
_FEW_STEPS = 4.0
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostValue:
    """A value that a node reads or writes and a low precision does not hold.

    Parameters
    ----------
    tensor
        The tensor of the node, or its attribute.
    source
        Where the value comes from; the tensor itself where nothing else is known.
    value
        The value.
    overflows
        Whether it becomes infinite.
    is_integer
        Whether it is a count or a position that would no longer be exact.
    is_rounded
        Whether the values around it become one and the same.
    is_attribute
        Whether it is a scalar attribute of the node.
    """

    tensor: str
    source: str
    value: float
    overflows: bool = False
    is_integer: bool = False
    is_rounded: bool = False
    is_attribute: bool = False


def lost_values(
    view: GraphView, ports: Mapping[str, Ports], ranges: Mapping[str, ValueRange], low: Precision
) -> Mapping[str, LostValue]:
    """Find the nodes that read or write a value which `low` does not hold.

    Parameters
    ----------
    view, ports
        The graph, and what of each node changes type with it.
    ranges
        Range of every tensor (:func:`campo_onnx.optimize.values.ranges.value_ranges`).
    low
        The low precision.

    Returns
    -------
    mapping
        The first such value, by node name.
    """
    counted = exact_integers(view, ranges, low)
    found = {}
    for node in view.nodes:
        if node.op in _LOOKING_FOR_INFINITY and ports[node.name].low_inputs:
            read = node.inputs[0]
            found[node.name] = LostValue(tensor=read, source=read, value=_LARGEST, overflows=True)
            continue
        lost = next(_lost_at(node, view, ports[node.name], ranges, counted, low), None)
        if lost is not None:
            found[node.name] = lost
    return found


def _lost_at(
    node: OpNode,
    view: GraphView,
    ports: Ports,
    ranges: Mapping[str, ValueRange],
    counted: frozenset[str],
    low: Precision,
) -> Iterator[LostValue]:
    reads = (node.inputs[i] for i in sorted(ports.low_inputs))
    writes = (node.outputs[i] for i in sorted(ports.low_outputs))
    if node.attributes and (ports.low_inputs or ports.low_outputs):
        yield from _lost_attributes(view.signature(node.name), low)
    for tensor in (*reads, *writes):
        known = ranges.get(tensor, UNKNOWN)
        if known is UNKNOWN:
            continue
        source = known.source or tensor
        is_exact = view.tensors[tensor].kind is TensorKind.CONSTANT or not known.varies
        if known.magnitude > low.largest:
            # Nothing beyond FP32's own reach occurs, and a plan file holds no infinity.
            value = math.copysign(min(known.magnitude, _LARGEST), known.extreme)
            yield LostValue(tensor=tensor, source=source, value=value, overflows=True)
        elif _smallest(known) < _least(low, is_exact=is_exact):
            yield LostValue(tensor=tensor, source=source, value=_smallest(known))
        elif _is_narrow(known, low):
            yield LostValue(tensor=tensor, source=source, value=known.extreme, is_rounded=True)
        elif tensor in counted:
            yield LostValue(tensor=tensor, source=tensor, value=known.bound, is_integer=True)


def _lost_attributes(signature: Signature, low: Precision) -> Iterator[LostValue]:
    for name, value in scalar_attributes(signature):
        lost = LostValue(tensor=name, source=name, value=value, is_attribute=True)
        if abs(value) > low.largest:
            yield replace(lost, value=math.copysign(min(abs(value), _LARGEST), value), overflows=True)
        elif 0.0 < abs(value) < _least(low, is_exact=True):
            yield lost


def _is_narrow(known: ValueRange, low: Precision) -> bool:
    """Whether a few steps of `low` are as wide as all values: x + 30000."""
    width = known.expected_highest - known.expected_lowest
    step = known.magnitude * 2.0**-low.fraction_bits
    return known.varies and not known.from_integers and 0.0 < width < _FEW_STEPS * step


def _smallest(known: ValueRange) -> float:
    return min(known.smallest, known.magnitude) if known.magnitude else known.smallest


def least_of(low: Precision) -> float:
    """The smallest magnitude of computed values that `low` holds well enough."""
    return _least(low, is_exact=False)


def _least(low: Precision, *, is_exact: bool) -> float:
    """The smallest magnitude that `low` holds well enough.

    Of a constant every bit counts, so it has to be normal; what is computed may be rounded to 1 %.
    """
    if is_exact:
        return low.smallest_normal
    return low.smallest_normal / largest_exact(low) / _WORST_ROUNDING
