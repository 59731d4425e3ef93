"""Ranges of all tensors of a graph, in one pass from inputs to outputs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import and_, eq, ge, gt, le, lt, not_, or_
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.memo import remembered
from campo_onnx.ir.statistics import statistics_of
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.fold import FROM_SHAPE
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.values.arithmetic import GUARD, LARGE
from campo_onnx.ops.values.propagate import propagated
from campo_onnx.ops.values.range import GIVEN, INFINITY, UNKNOWN, ValueRange, made
from campo_onnx.ops.values.rule import of_type
from campo_onnx.optimize.values.sum_ops import MOVES, MOVES_AND_PARTS, WEIGHTED, reduced_axes
from campo_onnx.optimize.values.unrolled import unrolled

_CHOICES = op_keys("Max Where")
_COMPARED: dict[str, Callable[..., float]] = {
    "Equal": eq,
    "Greater": gt,
    "GreaterOrEqual": ge,
    "Less": lt,
    "LessOrEqual": le,
}
_LOGICAL: dict[str, Callable[..., float]] = {"And": and_, "Not": not_, "Or": or_}
_OF_NUMBERS = _COMPARED | _LOGICAL | {"Abs": abs, "IsInf": math.isinf, "IsNaN": math.isnan}
"""Operators that ask whether a number is finite."""

_FEW_ELEMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRange:
    """Range of a graph input that the user declares or a batch shows."""

    lowest: float
    highest: float

    def __post_init__(self) -> None:
        if not self.lowest <= self.highest:
            raise UsageError(
                f"the range {self.lowest:g}:{self.highest:g} is empty",
                remedy="Give the lowest value first, as in --range mask=-10000:0.",
            )


def value_ranges(
    imported: Imported, declared: Mapping[str, DeclaredRange] = MappingProxyType({})
) -> Mapping[str, ValueRange]:
    """Find the range of every tensor, those in bodies included; one pass forward.

    UsageError says that a range is declared for something that is not an input of the graph.
    """
    return _value_ranges(imported, tuple(sorted(declared.items(), key=lambda named: named[0])))


@remembered
def _value_ranges(
    imported: Imported, ranges: tuple[tuple[str, DeclaredRange], ...]
) -> Mapping[str, ValueRange]:
    graph, declared = unrolled(imported), dict(ranges)
    imported, view = graph.imported, graph.imported.view
    unknown = [name for name in declared if name not in view.inputs]
    if unknown:
        raise UsageError(
            f"--range names {unknown[0]!r}, which is not an input of the graph",
            remedy=f"The inputs are: {', '.join(view.inputs[:12])}{' ...' if len(view.inputs) > 12 else ''}",
        )
    forward = _Pass(view)
    grown = made(-INFINITY, INFINITY, -INFINITY, INFINITY)
    for name in filter(view.is_float32, graph.growing):
        forward.add(name, grown.named(name))
    inputs = frozenset(view.inputs)
    defaults = {tensor.name: tensor for tensor in imported.model.graph.initializer}
    of_sizes = _of_sizes(view)
    computed = {t for node in view.nodes if any(node.inputs) for t in node.outputs} - of_sizes
    for name, info in view.tensors.items():
        if info.kind is TensorKind.CONSTANT and name not in computed:
            forward.add(name, _of_constant(name, _constant(name, imported), imported))
        elif name in declared:
            own = declared[name]
            like = of_type(info.dtype).named(name)
            forward.add(name, made(own.lowest, own.highest, own.lowest, own.highest, like=like))
        elif name in defaults:
            # What an input holds unless the caller says otherwise: reason for care, not for trust.
            default = _of_constant(name, defaults[name], imported)
            if _is_extreme(default):
                forward.add(name, default)
        elif name in inputs and view.is_float32(name):
            forward.add(name, GIVEN)
    for node in view.nodes:
        forward.add_outputs(node)
    return MappingProxyType(forward.ranges)


def _of_sizes(view: GraphView) -> frozenset[str]:
    """Floats whose values follow from shapes: no constant is their source."""
    sizes = (t for node in view.nodes if node.op.op_type in FROM_SHAPE for t in node.outputs)
    return frozenset(t for t in view.downstream(sizes) if t in view.values and view.is_float32(t))


def _constant(name: str, imported: Imported) -> TensorProto | None:
    value = imported.view.values.get(name)
    computed = None if value is None else numpy_helper.from_array(value, name)
    return imported.constants.get(name, computed)


class _Pass:
    """The ranges found so far. Equal ranges are one object, so that nodes alike are looked at once."""

    def __init__(self, view: GraphView) -> None:
        self.ranges: dict[str, ValueRange] = {}
        self._view, self._windows = view, _windows_of(view)
        self._distinct: dict[ValueRange, ValueRange] = {}
        self._propagated: dict[tuple[int, ...], tuple[ValueRange, ...]] = {}

    def add(self, tensor: str, range_: ValueRange) -> None:
        if tensor in self._windows:
            # No sign of an input is proved; weights that add up have one.
            lowest = max(range_.expected_lowest, 0.0) if range_.is_given else range_.expected_lowest
            range_ = replace(range_, expected_lowest=lowest, is_window=True)
        self.ranges[tensor] = self._distinct.setdefault(range_, range_)

    def add_outputs(self, node: OpNode) -> None:
        view, ranges = self._view, self.ranges
        if all(tensor in ranges for tensor in node.outputs if tensor):
            return  # a constant, or nothing
        inputs = tuple(_known(tensor, view, ranges) if tensor else None for tensor in node.inputs)
        signature = view.signature(node.name)
        key = (id(signature), *map(id, inputs))
        results = self._propagated.get(key)
        if results is None:
            results = self._propagated[key] = propagated(signature, inputs)
        for tensor, result in zip(node.outputs, results, strict=True):
            if not tensor or tensor in ranges:
                continue
            sharpened = _related(node, view, ranges, result)
            if sharpened.is_guard and not sharpened.guarded:
                sharpened = replace(sharpened, guarded=view.tensors[tensor].elements or 0)
            if not sharpened.source and _is_extreme(sharpened):
                sharpened = sharpened.named(tensor)
            self.add(tensor, sharpened)


def _windows_of(view: GraphView) -> frozenset[str]:
    """Find the windows in which products take ``E[x^2] - E[x]^2`` and ``E[xy] - E[x]E[y]``.

    Such are a buffer of SSIM, the edges of a graph, the shares of an attentive pooling. A difference of these
    products of matrices, or convolutions, is as small as one of sums.
    """
    trained = view.trained_inputs
    factors: dict[str, frozenset[str]] = {}
    weighed: dict[str, set[str]] = {}
    for node in view.nodes:
        if node.op.label == "Mul" or view.power(node) == 2.0:
            factors[node.outputs[0]] = frozenset(view.origin(t, MOVES) for t in node.inputs)
        elif node.op in WEIGHTED:
            for tensor, other in (node.inputs[:2], node.inputs[1::-1]):
                weighed.setdefault(view.origin(tensor, MOVES_AND_PARTS), set()).add(view.origin(other, MOVES))
    return frozenset(
        tensor
        for tensor, others in weighed.items()
        if tensor not in trained and any(not others.isdisjoint(factors.get(t, ())) for t in others)
    )


def _is_extreme(range_: ValueRange) -> bool:
    return range_.magnitude > LARGE or range_.smallest < GUARD


def _known(tensor: str, view: GraphView, ranges: Mapping[str, ValueRange]) -> ValueRange:
    range_ = ranges.get(tensor)
    if range_ is not None:
        return range_
    info = view.tensors.get(tensor)
    return UNKNOWN if info is None else of_type(info.dtype)


def _of_constant(name: str, tensor: TensorProto | None, imported: Imported) -> ValueRange:
    """The range of a constant.

    Small values beside large ones are lost in every sum they take part in, so they count only in a
    constant of a few values, such as an epsilon.
    """
    statistics = None if tensor is None else statistics_of(tensor, imported.folder)
    if tensor is None or statistics is None:
        return replace(UNKNOWN, varies=False)
    smallest = statistics.smallest if statistics.elements <= _FEW_ELEMENTS else statistics.largest
    step = statistics.smallest if statistics.is_integer else statistics.largest
    range_ = ValueRange(
        lowest=statistics.lowest,
        highest=statistics.highest,
        expected_lowest=statistics.lowest,
        expected_highest=statistics.highest,
        smallest=smallest or 1.0,
        is_integer=statistics.is_integer,
        from_integers=statistics.is_integer,
        step=1.0 if of_type(tensor.data_type).is_integer else max(step, 1.0),
        varies=False,
        rounding=statistics.rounding,
    )
    return range_.named(name) if _is_extreme(range_) else range_


def _related(
    node: OpNode, view: GraphView, ranges: Mapping[str, ValueRange], result: ValueRange
) -> ValueRange:
    """Sharpen what two inputs of a node that belong together make of each other."""
    if node.op.label == "Sub":
        of, upper = node.inputs
        reduction = _reduction("ReduceMax", upper, of, view) or _sum_of_exponentials(upper, of, view)
        if reduction is not None and _is_along(upper, reduction, view):
            return made(result.lowest, 0.0, result.expected_lowest, 0.0, like=result)
    if node.op.label == "Div":
        numerator = ranges.get(node.inputs[0], UNKNOWN)
        total = _reduction("ReduceSum", node.inputs[1], node.inputs[0], view)
        if numerator.lowest >= 0.0 and total is not None and _is_along(node.inputs[1], total, view):
            return made(0.0, 1.0, 0.0, 1.0, like=UNKNOWN)
    if node.op.label == "ReduceSum" and _has_a_one(node.inputs[0], reduced_axes(node, view), view):
        return made(1.0, result.highest, 1.0, result.expected_highest, like=result)
    if node.op.label == "MatMul":  # a column of ones sums as well
        rank, least = len(view.shape(node.inputs[0]) or ()), ranges.get(node.inputs[1], UNKNOWN).lowest
        if least > 0.0 and _has_a_one(node.inputs[0], [rank - 1], view):
            return made(least, result.highest, least, result.expected_highest, like=result)
    return result


def _has_a_one(tensor: str, axes: Sequence[int], view: GraphView) -> bool:
    """Whether a tensor holds exponentials of which the largest along some axes is 1: ``exp(x - max(x))``."""
    powers = view.producer.get(tensor)
    if powers is None or powers.op.label != "Exp":
        return False
    difference = view.producer.get(powers.inputs[0])
    if difference is None or difference.op.label != "Sub":
        return False
    largest = view.producer.get(_beside_infinity(difference.inputs[1], view))
    if largest is None or largest.op.label != "ReduceMax" or largest.inputs[0] != difference.inputs[0]:
        return False
    return reduced_axes(largest, view) == axes


def _beside_infinity(tensor: str, view: GraphView) -> str:
    """The tensor behind views and where infinities or NaN may take its place, as a maximum passes NaN on."""
    while (producer := view.producer.get(tensor)) is not None:
        varying = [t for t in producer.inputs if math.isfinite(view.scalar(t) or 0.0)]
        if producer.op not in MOVES and (producer.op not in _CHOICES or len(varying) == len(producer.inputs)):
            break
        tensor = producer.inputs[0] if producer.op in MOVES else varying[-1]
    return tensor


def _where_finite(tensor: str, view: GraphView) -> str:
    """The tensor behind views and choices that put another number in place of its infinities.

    Frameworks compute log(sum(exp(x - m))) + m with 0 for m where the maximum m is infinite. The result is
    then infinite or NaN, in FP32 too.
    """
    while (producer := view.producer.get(tensor := _beside_infinity(tensor, view))) is not None:
        if producer.op.label != "Where":
            break
        condition, *branches = producer.inputs
        chosen = [
            t
            for t, side in zip(branches, (True, False), strict=True)
            if _of_a_number(condition, t, view) is side
        ]
        if len(chosen) != 1:
            break
        tensor = chosen[0]
    return tensor


def _of_a_number(condition: str, tensor: str, view: GraphView) -> float | None:
    """Evaluate a condition where a tensor is finite; None unless it asks for infinities and NaN alone."""
    if condition == tensor:
        return 0.0
    value = view.scalar(condition)
    if value is not None:
        return value if math.isinf(value) else None
    producer = view.producer.get(condition)
    if producer is None or producer.op.label not in _OF_NUMBERS:
        return None
    if producer.op.label == "Equal" and _is_zero_if_finite(producer.inputs, tensor, view):
        return True
    operands = [_of_a_number(t, tensor, view) for t in producer.inputs]
    numbers = [operand for operand in operands if operand is not None]
    label, are_bools = producer.op.label, all(isinstance(number, bool) for number in numbers)
    holds_infinity = label not in _COMPARED or any(map(math.isinf, numbers))
    if len(numbers) < len(operands) or not holds_infinity or (label in _LOGICAL and not are_bools):
        return None
    return _OF_NUMBERS[label](*numbers)


def _is_zero_if_finite(compared: Sequence[str], tensor: str, view: GraphView) -> bool:
    """Whether ``x - x`` is held against 0, as JAX asks for infinities and NaN."""
    differences = [view.producer.get(t) for t in compared]
    return any(view.scalar(t) == 0.0 for t in compared) and any(
        node is not None and node.op.label == "Sub" and set(node.inputs) == {tensor} for node in differences
    )


def _reduction(op_type: str, tensor: str, of: str, view: GraphView) -> OpNode | None:
    """The reduction of `of` that a tensor is, looking through views and past what stands for infinities."""
    producer = view.producer.get(_where_finite(tensor, view))
    while producer is not None and producer.op.label == "Max" and len(producer.inputs) == 2:
        producer = view.producer.get(_where_finite(_through(producer, view), view))
    reduces = producer is not None and producer.op.label == op_type and producer.inputs[0] == of
    return producer if reduces else None


def _sum_of_exponentials(tensor: str, of: str, view: GraphView) -> OpNode | None:
    """The sum in ``log(sum(exp(x - m))) + m``, if a tensor is that of `of`, whatever m is."""
    whole = _reduction("ReduceLogSumExp", tensor, of, view)
    if whole is not None:
        return whole
    powers = _upstream(tensor, ("Log", "ReduceSum", "Exp"), view)
    if powers is not None and powers.inputs[0] == of:
        return _upstream(tensor, ("Log", "ReduceSum"), view)
    added = _upstream(tensor, ("Add",), view)
    for logarithm, shift in (added.inputs, added.inputs[::-1]) if added is not None else ():
        difference = _upstream(logarithm, ("Log", "ReduceSum", "Exp", "Sub"), view)
        if difference is not None and difference.inputs[0] == of:
            is_shift = view.origin(difference.inputs[1], MOVES) == view.origin(shift, MOVES)
            return _upstream(logarithm, ("Log", "ReduceSum"), view) if is_shift else None
    return None


def _is_along(tensor: str, reduction: OpNode, view: GraphView) -> bool:
    """Whether a reduction meets the rows that it reduced: of a square it might meet the columns."""
    while (producer := view.producer.get(tensor)) is not None and producer.op.label in ("Expand", "Identity"):
        tensor = producer.inputs[0]
    before, after = view.shape(reduction.inputs[0]), view.shape(tensor)
    if before is None or after is None:
        return False
    axes = reduced_axes(reduction, view)
    rows = tuple(1 if axis in axes else size for axis, size in enumerate(before))
    return (1,) * (len(rows) - len(after)) + tuple(after) == rows


def _upstream(tensor: str, op_types: Sequence[str], view: GraphView) -> OpNode | None:
    """The last of a chain of operators, from the one that writes a tensor upwards, through views."""
    producer = None
    for op_type in op_types:
        producer = view.producer.get(view.origin(tensor, MOVES))
        if producer is None or producer.op.label != op_type:
            return None
        tensor = producer.inputs[0]
    return producer


def _through(node: OpNode, view: GraphView) -> str:
    """The input of a view; of a maximum, the one that is not a constant."""
    varying: Sequence[str] = [t for t in node.inputs if view.tensors[t].kind is not TensorKind.CONSTANT]
    return varying[0] if varying else node.inputs[0]


def measured_ranges(
    view: GraphView, batches: Sequence[Mapping[str, NDArray[Any]]]
) -> Mapping[str, DeclaredRange]:
    """Take the ranges of the inputs that are not trained from real batches.

    A weight of one batch is another after the next step; data and masks are of one kind in every batch.
    """
    ranges: dict[str, DeclaredRange] = {}
    for name in view.data_inputs:
        values = [np.asarray(batch[name]) for batch in batches]
        finite = [value[np.isfinite(value)] for value in values]
        if values := [value for value in finite if value.size]:
            lowest = min(float(value.min()) for value in values)
            highest = max(float(value.max()) for value in values)
            ranges[name] = DeclaredRange(lowest=lowest, highest=highest)
    return MappingProxyType(ranges)
