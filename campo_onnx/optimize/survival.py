"""Which values a low precision would lose, node by node: what may not go low, and the value that says so."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from campo_onnx.ir.view import FLOAT, GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import UNKNOWN, ValueRange, from_integers

# They turn a rounded integer into a wrong answer, not into one that is slightly off.
_NEED_EXACT = frozenset(
    OpKey("", op)
    for op in (
        *("Ceil", "Cos", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"),
        *("OneHot", "Round", "Sin", "Tan", "ArgMax", "ArgMin", "TopK", "Range", "CumSum"),
    )
)
_DIFFERENCES = frozenset({OpKey("", "Add"), OpKey("", "Sub"), OpKey("", "Sum")})
_WORST_ROUNDING = 0.01
"""Relative error beyond which a derived value counts as lost."""


_FEW_STEPS = 4.0
_LARGEST = float(np.finfo(np.float32).max)
_PROBABILITIES = frozenset(
    {*(OpKey("", op) for op in ("Exp", "Sigmoid", "Softmax")), OpKey("com.microsoft", "BiasSoftmax")}
)
_TO_LOGARITHMS = frozenset(
    OpKey("", op)
    for op in (
        *("Add", "Cast", "Clip", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Max", "Min"),
        *("Reshape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostValue:
    """A value that a node reads or writes and a low precision does not hold.

    Parameters
    ----------
    tensor
        The tensor of the node.
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
    """

    tensor: str
    source: str
    value: float
    overflows: bool = False
    is_integer: bool = False
    is_rounded: bool = False


def lost_values(
    view: GraphView, ports: Mapping[str, Ports], ranges: Mapping[str, ValueRange], low: Precision
) -> Mapping[str, LostValue]:
    """Find the nodes that read or write a value which `low` does not hold.

    Parameters
    ----------
    view, ports
        The graph, and what of each node changes type with it.
    ranges
        Range of every tensor (:func:`campo_onnx.optimize.ranges.value_ranges`).
    low
        The low precision.

    Returns
    -------
    mapping
        The first such value, by node name.
    """
    counted = _exact_integers(view, ranges, low)
    found = {}
    for node in view.nodes:
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


def _is_narrow(known: ValueRange, low: Precision) -> bool:
    """Whether a few steps of `low` are as wide as all values: x + 30000."""
    width = known.expected_highest - known.expected_lowest
    step = known.magnitude * 2.0**-low.fraction_bits
    return known.varies and not known.from_integers and 0.0 < width < _FEW_STEPS * step


def _smallest(known: ValueRange) -> float:
    return min(known.smallest, known.magnitude) if known.magnitude else known.smallest


def _least(low: Precision, *, is_exact: bool) -> float:
    """The smallest magnitude that `low` holds well enough.

    Of a constant every bit counts, so it has to be normal; what is computed may be rounded to 1 %.
    """
    if is_exact:
        return low.smallest_normal
    return low.smallest_normal / largest_exact(low) / _WORST_ROUNDING


def largest_exact(low: Precision) -> int:
    """Up to here every integer is exact.

    Examples
    --------
    >>> largest_exact(Precision.FP16), largest_exact(Precision.BF16)
    (2048, 256)
    """
    return 1 << (low.fraction_bits + 1)


def _exact_integers(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> frozenset[str]:
    """Tensors of positions and counts that `low` may round, and that something compares or converts.

    One pass backwards from what needs them exactly: comparisons, conversions to integers, roundings,
    angles, sums and differences of such tensors, outputs of the graph.
    """
    limit = largest_exact(low)
    needed: set[str] = set()

    def is_counted(tensor: str) -> bool:
        if not tensor or not view.is_float32(tensor):
            return False
        known = ranges.get(tensor, UNKNOWN)
        differs = known.varies or known.lowest != known.highest  # one constant factor is no position
        return known.from_integers and differs and known.bound > limit

    needed.update(t for t in view.outputs if is_counted(t))
    for node in reversed(view.nodes):
        reads = [t for t in node.inputs if is_counted(t)]
        if not reads:
            continue
        known = [ranges.get(t, UNKNOWN) for t in node.inputs if t]
        is_kept = any(t in needed for t in node.outputs)
        to_integer = node.op == OpKey("", "Cast") and view.tensors[node.outputs[0]].dtype != FLOAT
        is_difference = node.op in _DIFFERENCES and from_integers(known) and _are_arrays(node, view)
        if is_kept or to_integer or node.op in _NEED_EXACT or is_difference:
            needed.update(reads)
            if is_difference:
                needed.update(t for t in node.outputs if t)
    return frozenset(needed)


def _are_arrays(node: OpNode, view: GraphView) -> bool:
    return all(view.tensors[t].kind is not TensorKind.CONSTANT for t in node.inputs if t)


def before_logarithms(view: GraphView) -> Mapping[str, str]:
    """Find exponentials and probabilities whose logarithm is taken, up to the logarithm.

    FP16 makes exp(-17) zero and 0.9999 one: log(p) or log(1 - p) is then infinite, or that of a guard,
    where FP32 says -17 or -9.2.

    Returns
    -------
    mapping
        The probability, by node name.
    """
    found: dict[str, str] = {}
    for logarithm in (node for node in view.nodes if node.op == OpKey("", "Log")):
        met = {logarithm.name: logarithm}
        source = ""
        pending = [logarithm]
        while pending:
            for tensor in pending.pop().inputs:
                producer = view.producer.get(tensor)
                if producer is None or producer.name in met:
                    continue
                if producer.op in _PROBABILITIES:
                    met[producer.name], source = producer, tensor
                elif producer.op in _TO_LOGARITHMS:
                    met[producer.name] = producer
                    pending.append(producer)
        if source:
            found.update(dict.fromkeys(met, source))
    return found
