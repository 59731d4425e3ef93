"""Values close to zero that something large is made of: before a logarithm, a division, a square."""

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial

import numpy as np

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    CONTRACTIONS,
    MOVES,
    MOVES_AND_SIGNS,
    SUMS_OF_FEW,
    WEIGHTED,
    adds_products,
)
from campo_onnx.optimize.values.walk import Labels, carried, leading_to

_PROBABILITIES = having(Trait.NEAR_ZERO)
_CARRIERS = (
    MOVES_AND_SIGNS
    | having(Trait.ADDS, Trait.SCALES, Trait.EXTREME, Trait.PART)
    | op_keys("Clip Concat GatherElements GatherND ReduceProd Sqrt Where")
)
_SPREADING = MOVES_AND_SIGNS | SUMS_OF_FEW | op_keys("Concat Mul ReduceSum Slice")
_GROWING = MOVES_AND_SIGNS | op_keys("Add Mul")
_LOGARITHM = op_keys("Log")
_SUMS = op_keys("CumSum ReduceMean ReduceSum")
_GUARDED = op_keys("Add Max Sum")
_AWAY = 2.0**-7
"""A divisor that is proved to be at least this does not vanish."""


def before_logarithms(values: GraphValues) -> Mapping[str, str]:
    """Find exponentials and probabilities whose logarithm is taken, up to it.

    FP16 makes exp(-17) zero and 0.9999 one: log(p) and log(1 - p) are then infinite, or those of a guard,
    where FP32 says -17 and -9.2. A sum vanishes where all of its terms do, and so does a product of matrices
    without negative elements: a chain of them, as in a hidden Markov model, is as small as a product of all.
    """
    view = values.view

    def carries(node: OpNode) -> bool:
        if node.op in CONTRACTIONS:
            return all(r.lowest >= 0.0 for r in values.of(node.inputs))
        return node.op in _CARRIERS or (node.op in _SUMS and _may_vanish(node.outputs[0], values))

    through = frozenset(node.op for node in view.nodes if carries(node))
    leads_on = leading_to(
        view,
        lambda node: node.inputs[:1] if node.op in _LOGARITHM else (),
        through,
        data=lambda node: carried(node) if carries(node) else (),
    )
    return _from_probabilities(values, leads_on, lambda node: node.op in _LOGARITHM, carries)


def divisors(values: GraphValues) -> Mapping[str, str]:
    """Find exponentials and probabilities that something is divided by, and what computes with the quotient.

    FP16 makes exp(-17) zero: 1 / p is then infinite, or that of a guard, where FP32 says 24 million. The
    quotient is large until it is multiplied by something that vanishes as well. What vanishes with its
    divisor is needed as exactly: a mean with exponentials as weights.
    """
    view = values.view
    sums = frozenset(node.name for node in view.nodes if node.op in _SUMS or adds_products(node, values))
    leading = partial(
        leading_to,
        view,
        through=_CARRIERS | _SUMS | WEIGHTED,
        data=lambda node: carried(node) if node.name in sums or node.op in _CARRIERS else (),
    )
    leads_on = leading(lambda node: _divisors(node, view), counts=lambda t: _may_vanish(t, values))
    leads_on |= leading(lambda node: _beside_guards(node, values))
    nodes = _from_probabilities(values, leads_on, lambda node: node.name in sums)
    if not nodes:
        return nodes
    vanishes, large, small = Labels(), Labels(), _small(values)
    for name, tensor in nodes.items():
        vanishes.mark(view.node[name].outputs, tensor)

    def inverts(tensor: str) -> bool:
        producer = view.producer.get(view.origin(tensor, MOVES))
        if producer is None or (producer.op.label == "Div" and not values.is_constant(producer.inputs[0])):
            return False
        return bool(vanishes.first(_divisors(producer, view)))

    def beside(node: OpNode) -> Iterator[str]:
        if node.op.label == "Div" and node.inputs[1] in vanishes:
            yield node.inputs[0]
        elif node.op.label == "Mul":
            yield from (t for t, other in zip(node.inputs, node.inputs[::-1], strict=True) if inverts(other))

    nodes |= _from_probabilities(values, leading(beside), lambda node: node.name in sums)
    for node in view.nodes:
        divisor = vanishes.first(_divisors(node, view))
        if source := divisor or large.first(node.inputs):
            nodes[node.name] = source
            ends = node.op.label == "Mul" and not small.isdisjoint(node.inputs)
            grows = values.range(node.outputs[0]).bound > 1.0
            if grows and (divisor or (node.op in _SPREADING and not ends)):
                large.mark(node.outputs, source)
    return nodes


def _may_vanish(tensor: str, values: GraphValues) -> bool:
    r = values.range(tensor)
    return bool(tensor) and r.lowest < _AWAY and r.highest > -_AWAY


def _divisors(node: OpNode, view: GraphView) -> Iterator[str]:
    if node.op.label == "Div":
        yield node.inputs[1]
    elif node.op.label == "Reciprocal":
        yield node.inputs[0]
    elif node.op.label == "Pow":
        exponent = view.values.get(node.inputs[1])
        if exponent is not None and exponent.size and float(np.max(exponent)) < 0.0:
            yield node.inputs[0]


def _beside_guards(node: OpNode, values: GraphValues) -> Iterator[str]:
    """Terms to which so little is added that the low precision holds it for zero: they may be as small."""
    ranges = [values.range(t) for t in node.inputs if t]
    least = values.low.smallest_normal * 2.0**-values.low.fraction_bits
    if node.op in _GUARDED and any(not r.varies and 0.0 < r.magnitude < least for r in ranges):
        yield from (t for t in node.inputs if not values.is_constant(t))


def _from_probabilities(
    values: GraphValues,
    leads_on: frozenset[str],
    ends: Callable[[OpNode], bool],
    carries: Callable[[OpNode], bool] = lambda node: node.op in _CARRIERS,
) -> dict[str, str]:
    """Nodes from a probability to where it leads."""
    nodes, tensors = Labels(), Labels()
    for node in values.view.nodes if leads_on else ():
        outputs = [t for t in node.outputs if t in leads_on]
        source = tensors.first(node.inputs)
        if outputs and _comes_near_zero(node, values):
            source = outputs[0]
        elif not source or not (ends(node) or (outputs and carries(node))):
            continue
        nodes[node.name] = source
        tensors.mark(outputs, source)
    return nodes


def _comes_near_zero(node: OpNode, values: GraphValues) -> bool:
    """Whether a node gives exponentials or shares; ``2 ** x`` is one."""
    return node.op in _PROBABILITIES or (node.op.label == "Pow" and values.is_constant(node.inputs[0]))


def _small(values: GraphValues) -> frozenset[str]:
    """Probabilities, what they lack to a constant, products of them, and slopes of a tanh."""
    small: set[str] = set()
    for node in values.view.nodes:
        inputs = [t for t in node.inputs if t]
        if _comes_near_zero(node, values):
            is_small = True
        elif node.op.label == "Mul":
            is_small = small.issuperset(inputs)
        elif node.op in MOVES_AND_SIGNS or node.op.label == "Pow":
            is_small = bool(inputs) and inputs[0] in small
        else:
            is_small = node.op.label == "Sub" and values.is_constant(inputs[0]) and inputs[1] in small
        if is_small:
            small.update(filter(None, node.outputs))
    return frozenset(small)


def _falls(node: OpNode, slopes: Container[str], gradients: Container[str], values: GraphValues) -> bool:
    """Whether a node computes what a small value lacks to a constant, times a gradient, or a sum of such."""
    if node.op.label == "Mul":
        return any(t in gradients for t in node.inputs)
    if node.op.label == "Sub" and values.is_constant(node.inputs[0]):
        return node.inputs[1] in slopes
    follows = node.op in MOVES_AND_SIGNS | SUMS_OF_FEW
    data = node.inputs[:1] if node.op in MOVES_AND_SIGNS else node.inputs
    return follows and all(t in gradients for t in data)


def squares_of_slopes(values: GraphValues) -> Mapping[str, str]:
    """Find squares that are multiplied by a slope which is zero where they overflow, up to that product.

    The gradient of GELU by tanh is (1 - tanh(u)**2) * (1 + 0.134 * x**2) * x: beyond 256 FP16 takes zero
    times infinity.
    """
    view, slopes = values.view, _small(values)
    nodes, squares, gradients = Labels(), Labels(), set[str]()
    for node in view.nodes:
        if _falls(node, slopes, gradients, values):
            gradients.update(filter(None, node.outputs))
        if (view.power(node) or 0.0) >= 2.0 and not values.fits(node.outputs[0]):
            squares[node.outputs[0]] = node.outputs[0]
        elif square := squares.first(node.inputs):
            if node.op.label == "Mul" and not (
                slopes.isdisjoint(node.inputs) and gradients.isdisjoint(node.inputs)
            ):
                nodes[node.name] = square
            elif node.op in _GROWING:
                squares[node.outputs[0]] = square
    behind = {t for name in nodes for t in view.node[name].inputs if t in squares}
    for node in reversed(view.nodes if behind else ()):
        if tensor := next((t for t in node.outputs if t in behind), ""):
            nodes[node.name] = squares[tensor]
            behind.update(t for t in node.inputs if t in squares)
    return nodes
