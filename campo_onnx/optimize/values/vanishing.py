"""Values close to zero that something large is made of: before a logarithm, a division, a square."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.range import UNKNOWN, ValueRange
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.sum_ops import MOVES, MOVES_AND_SIGNS, NARROW, SIGNS, carried

_PROBABILITIES = having(Trait.NEAR_ZERO)
_CARRIERS = (
    MOVES
    | SIGNS
    | frozenset(
        OpKey("", op)
        for op in (
            *("Add", "Clip", "Concat", "Div", "Gather", "GatherElements", "GatherND", "Max", "Min", "Mul"),
            *("ReduceMax", "ReduceMin", "ReduceProd", "Slice", "Split", "Sqrt", "Sub", "Sum", "Where"),
        )
    )
)
_SPREADING = (
    MOVES | SIGNS | {OpKey("", op) for op in ("Add", "Concat", "Mul", "ReduceSum", "Slice", "Sub", "Sum")}
)
_MOVING = MOVES_AND_SIGNS
_AWAY = 2.0**-7
"""A divisor that is proved to be at least this does not vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanishing:
    """Nodes that stay FP32, each with the tensor that comes close to zero.

    Parameters
    ----------
    before_logarithms
        Exponentials and probabilities whose logarithm is taken, up to it.
    divisors
        Those that something is divided by, the quotient, and what computes with it until it is
        multiplied by something that vanishes as well.
    """

    before_logarithms: Mapping[str, str]
    divisors: Mapping[str, str]


def vanishing_values(view: GraphView, ranges: Mapping[str, ValueRange]) -> Vanishing:
    """Find exponentials and probabilities whose logarithm or reciprocal is taken.

    FP16 makes exp(-17) zero and 0.9999 one: log(p), log(1 - p) and 1 / p are then infinite, or those of a
    guard, where FP32 says -17, -9.2 and 24 million.

    Parameters
    ----------
    view, ranges
        The graph, and what is known of its values.
    """
    logarithms = _leading_to(view, {n.inputs[0] for n in view.nodes if n.op == OpKey("", "Log")}, ranges)
    quotients = _leading_to(view, {t for n in view.nodes for t in _divisors(n, view)}, ranges, away=_AWAY)
    return Vanishing(
        before_logarithms=_before(view, logarithms, {OpKey("", "Log")}), divisors=_divided(view, quotients)
    )


def _divisors(node: OpNode, view: GraphView) -> Iterator[str]:
    if node.op == OpKey("", "Div"):
        yield node.inputs[1]
    elif node.op == OpKey("", "Reciprocal"):
        yield node.inputs[0]
    elif node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        if exponent is not None and exponent.size and float(np.max(exponent)) < 0.0:
            yield node.inputs[0]


def _leading_to(
    view: GraphView, starts: set[str], ranges: Mapping[str, ValueRange], *, away: float = 0.0
) -> frozenset[str]:
    """Tensors whose values come through to one of `starts`, but for those proved to be beyond `away`."""
    found: set[str] = set()

    def add(tensor: str) -> None:
        known = ranges.get(tensor, UNKNOWN)
        if tensor and not (away and (known.lowest >= away or known.highest <= -away)):
            found.add(tensor)

    for tensor in starts:
        add(tensor)
    if not found:
        return frozenset()
    for node in reversed(view.nodes):
        if node.op in _CARRIERS and any(t in found for t in node.outputs):
            for tensor in carried(node):
                add(tensor)
    return frozenset(found)


def _before(view: GraphView, leads_on: frozenset[str], ends: set[OpKey]) -> dict[str, str]:
    """Nodes from a probability to where its logarithm is taken."""
    found: dict[str, str] = {}
    source: dict[str, str] = {}
    for node in view.nodes:
        outputs = [t for t in node.outputs if t in leads_on]
        read = next((source[t] for t in node.inputs if t in source), "")
        if outputs and node.op in _PROBABILITIES:
            read = outputs[0]
        elif not read or not (node.op in ends or (outputs and node.op in _CARRIERS)):
            continue
        found[node.name] = read
        source.update(dict.fromkeys(outputs, read))
    return found


def _divided(view: GraphView, leads_on: frozenset[str]) -> dict[str, str]:
    """Nodes from a probability to where something is divided by it, and on to where the quotient ends."""
    found = _before(view, leads_on, set())
    if not found:
        return found
    vanishes = {t: found[n.name] for n in view.nodes if n.name in found for t in n.outputs if t}
    small = _small(view)
    large: dict[str, str] = {}
    for node in view.nodes:
        divisor = next((vanishes[t] for t in _divisors(node, view) if t in vanishes), "")
        read = divisor or next((large[t] for t in node.inputs if t in large), "")
        if not read:
            continue
        found[node.name] = read
        ends = node.op == OpKey("", "Mul") and any(t in small for t in node.inputs)
        if divisor or (node.op in _SPREADING and not ends):
            large.update(dict.fromkeys((t for t in node.outputs if t), read))
    return found


def _small(view: GraphView) -> frozenset[str]:
    """Probabilities, what they lack to a constant, products of them, and slopes of a tanh."""
    found: set[str] = set()
    for node in view.nodes:
        inputs = [t for t in node.inputs if t]
        if node.op in _PROBABILITIES:
            is_small = True
        elif node.op in _MOVING or node.op == OpKey("", "Mul"):
            is_small = bool(inputs) and all(t in found for t in inputs[: 1 if node.op in _MOVING else None])
        elif node.op == OpKey("", "Pow"):
            is_small = inputs[0] in found
        else:
            is_constant = bool(inputs) and view.tensors[inputs[0]].kind is TensorKind.CONSTANT
            is_small = node.op == OpKey("", "Sub") and is_constant and inputs[1] in found
        if is_small:
            found.update(t for t in node.outputs if t)
    return frozenset(found)


def squares_of_slopes(view: GraphView, ranges: Mapping[str, ValueRange], low: Precision) -> Mapping[str, str]:
    """Find squares that are multiplied by a slope which is zero where they overflow, up to that product.

    The gradient of GELU by tanh is (1 - tanh(u)**2) * (1 + 0.134 * x**2) * x: beyond 256 FP16 takes zero
    times infinity.

    Parameters
    ----------
    view, ranges
        The graph, and what is known of its values.
    low
        The low precision.

    Returns
    -------
    mapping
        The square, by node name.
    """
    if low.largest > NARROW:
        return {}
    slopes = _small(view)
    squares: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in view.nodes:
        if _is_square(node, view) and not ranges.get(node.outputs[0], UNKNOWN).bound <= low.largest:
            squares[node.outputs[0]] = node.outputs[0]
            continue
        read = next((squares[t] for t in node.inputs if t in squares), "")
        if not read:
            continue
        if node.op == OpKey("", "Mul") and any(t in slopes for t in node.inputs):
            found[node.name] = read
        elif node.op in _MOVING or node.op in (OpKey("", "Mul"), OpKey("", "Add")):
            squares[node.outputs[0]] = read
    asked = {t for name in found for t in view.node[name].inputs if t in squares}
    for node in reversed(view.nodes if asked else ()):
        if met := next((t for t in node.outputs if t in asked), ""):
            found[node.name] = squares[met]
            asked.update(t for t in node.inputs if t in squares)
    return found


def _is_square(node: OpNode, view: GraphView) -> bool:
    if node.op == OpKey("", "Pow"):
        exponent = view.values.get(node.inputs[1])
        return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) >= 2
    return node.op == OpKey("", "Mul") and node.inputs[0] == node.inputs[1]
