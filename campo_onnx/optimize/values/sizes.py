"""Sizes that constants give to values, and products of values of unknown size: too large, or too small."""

import math
from collections.abc import Iterable, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.values.graph_values import GraphValues, Verdicts
from campo_onnx.optimize.values.sum_ops import MOVES_AND_SIGNS, SCALES, SUMS, WEIGHTED, is_mean, terms_of
from campo_onnx.optimize.values.walk import Labels, leading_to

_TAIL = 16.0
"""Largest size of an activation, in multiples of the usual one."""

_LEAST_DIVISOR = 2.0**-7
_LEAST_DATA = 2.0**-10
"""Size of a small divisor: an activation, and data as it comes in."""

_MOST, _MOST_POWER = 1e30, 8.0
_LARGEST = MOVES_AND_SIGNS | having(Trait.SAME_SIZE) | op_keys("Clip GatherElements GatherND")
_VOLUMES = op_keys("ReduceProd")


def far_reaching(values: GraphValues) -> Mapping[str, str]:
    """Find nodes of the forward pass that read or write what may be too large for the low precision.

    A square overflows FP16 from 256 on: of an activation that a constant multiplies by 200, of what comes out
    of a division by a distance, of products of products.
    """
    nodes = _exponentials_weighed(values)
    sums = {
        t for name in nodes for t in values.view.node[name].outputs if values.view.node[name].op in WEIGHTED
    }
    search = _Sizes(values, sums)
    for node in values.forward_nodes:
        output = next((t for t in node.outputs if t), "")
        if not values.view.is_float32(output):
            continue
        search.add(node, output)
        if tensor := next((t for t in (output, *node.inputs) if search.overflows(t)), ""):
            nodes.setdefault(node.name, tensor)
    return nodes


def _exponentials_weighed(values: GraphValues) -> dict[str, str]:
    """Products that read exponentials of what nothing bounds, beyond FP16 from 11 on."""
    view = values.view
    to_products = leading_to(view, lambda n: n.inputs[:2] if n.op in WEIGHTED else (), MOVES_AND_SIGNS)
    nodes, exponentials = dict[str, str](), Labels()
    for node in values.forward_nodes:
        is_power = node.op.label == "Pow" and values.is_constant(node.inputs[0])
        if (is_power or node.op.label == "Exp") and not values.fits(node.outputs[0]):
            exponentials.mark(node.outputs, node.outputs[0])
        elif (source := exponentials.first(node.inputs)) and node.op in WEIGHTED | MOVES_AND_SIGNS:
            if node.op in WEIGHTED or not to_products.isdisjoint(node.outputs):
                nodes[node.name] = source
            if node.op in MOVES_AND_SIGNS:
                exponentials.mark(node.outputs, source)
    return nodes


class _Sizes:
    """The largest and, of products and powers, the smallest size of tensors of unknown size."""

    def __init__(self, values: GraphValues, large: Iterable[str]) -> None:
        self._values, self._view = values, values.view
        self._largest: dict[str, float] = dict.fromkeys(large, _MOST)
        self._smallest: dict[str, float] = {}

    def overflows(self, tensor: str) -> bool:
        return self._largest.get(tensor, 0.0) > self._values.low.largest

    def add(self, node: OpNode, output: str) -> None:
        if (largest := self._largest_of(node)) is not None:
            largest = min(largest, self._values.range(output).bound, _MOST)
            self._largest.update((t, largest) for t in node.outputs if t)
        power = self._view.power(node)
        if power is not None and power > 1.0:
            self._smallest[output] = self._small(node.inputs[0]) ** min(power, _MOST_POWER)
        elif node.op.label == "Mul":
            self._smallest[output] = math.prod(map(self._small, node.inputs))

    def _large(self, tensor: str) -> float:
        r = self._values.range(tensor)
        if self._view.is_constant(tensor) or not r.varies or tensor not in self._view.producer:
            return r.magnitude
        return self._largest.get(tensor, min(_TAIL * r.magnitude, r.bound))

    def _small(self, tensor: str) -> float:
        r = self._values.range(tensor)
        if self._view.is_constant(tensor) or not r.varies:
            return r.magnitude or 1.0
        usual = _LEAST_DIVISOR if self._large(tensor) >= _TAIL else _LEAST_DATA
        return max(r.lowest, -r.highest, self._smallest.get(tensor, usual), 1.0 / _MOST)

    def _largest_of(self, node: OpNode) -> float | None:
        """Largest size of the results; None of a node that sets their size itself."""
        inputs = [t for t in node.inputs if t]
        if node.op.label == "Mul":
            return math.prod(map(self._large, inputs))
        if node.op.label == "Div":
            return self._large(inputs[0]) / self._small(inputs[1])
        power = -1.0 if node.op.label == "Reciprocal" else self._view.power(node)
        if power is not None and power < 0.0:
            return math.pow(self._small(inputs[0]), max(power, -_MOST_POWER))
        if power:
            return math.pow(min(self._large(inputs[0]), _MOST), min(power, _MOST_POWER))
        if node.op in _VOLUMES:
            return None if self._values.range(inputs[0]).is_bounded else _MOST
        if node.op in _LARGEST:
            return max((self._large(t) for t in inputs if self._view.is_float32(t)), default=None)
        return None


_KEEPING = having(Trait.MOVES, Trait.SIGN, Trait.SAME_SIZE)

_LEAST = 1e-150
_LARGE_DIVISOR = 2.0**8
"""Size of a large divisor of which nothing is known: the product of two overflows FP16."""

_SHARE_OF_NORMAL = 0.25
"""Size of something of size 1, in smallest normal numbers, below which its smaller elements are lost."""


def shrunken_values(values: GraphValues) -> Verdicts:
    """Find nodes that read or write what constants have made smaller than the low precision holds.

    ``0.001 / x`` is 4e-6 where x is 256, up to a product with what varies, which may make up for it.
    Gradients are not meant: they have such factors, and a loss scale makes up for them.
    """
    sizes: dict[str, float] = {}
    shares: dict[str, float] = {}
    least = values.low.smallest_normal * _SHARE_OF_NORMAL
    for node in values.forward_nodes:
        size = _size(node, values, sizes)
        if size is not None and size != 1.0:
            size = min(max(size, _LEAST), 1 / _LEAST)
            sizes.update((t, size) for t in node.outputs if t and values.view.is_float32(t))
        share = _share_of_quotient(node, values, sizes, shares)
        if share is not None:
            shares.update((t, max(share, _LEAST)) for t in node.outputs if t)
        for tensor in (*node.inputs, *node.outputs):
            size = sizes.get(tensor, 1.0) * shares.get(tensor, 1.0)
            if size < least:
                yield (
                    node.name,
                    Reason.VALUE_UNDERFLOW.of(tensor=tensor, value=size, low=values.low.value, source=tensor),
                )
                break


def _share_of_quotient(
    node: OpNode, values: GraphValues, sizes: Mapping[str, float], shares: Mapping[str, float]
) -> float | None:
    """The size of a constant over a large divisor, beside that over a divisor of size 1; None of all else."""
    is_constant, inputs = values.is_constant, [t for t in node.inputs if t]
    power = -1.0 if node.op.label in ("Div", "Reciprocal") else values.view.power(node) or 0.0
    divisor = inputs[-1] if node.op.label == "Div" else next(iter(inputs), "")
    is_quotient = power < 0.0 and not is_constant(divisor) and divisor not in shares
    if is_quotient and (node.op.label != "Div" or is_constant(inputs[0])):
        largest = values.range(divisor).bound / max(sizes.get(divisor, 1.0), 1.0)
        return _raised(max(min(_LARGE_DIVISOR, largest), 1.0), power)
    if node.op in SCALES and (node.op.label == "Mul" or is_constant(divisor)):
        varying = [t for t in inputs if not is_constant(t)]
        return math.prod(shares[t] for t in varying) if varying and shares.keys() >= {*varying} else None
    return shares.get(divisor) if node.op in MOVES_AND_SIGNS else None


def _raised(size: float, power: float) -> float:
    """A power between `_LEAST` and its inverse."""
    return math.exp(max(min(power * math.log(size), -math.log(_LEAST)), math.log(_LEAST)))


def _size(node: OpNode, values: GraphValues, sizes: Mapping[str, float]) -> float | None:
    """The size of a result of inputs of size 1, but for those in `sizes`; None where a node sets its own."""
    view = values.view

    def of(tensor: str, *, constant: float | None = None) -> float:
        if values.is_constant(tensor):
            return constant if constant is not None else values.range(tensor).magnitude or 1.0
        return sizes.get(tensor, 1.0)

    inputs = [t for t in node.inputs if t]
    if node.op.label == "Mul":
        return of(inputs[0]) * of(inputs[1])
    if node.op.label == "Div":
        return of(inputs[0]) / of(inputs[1])
    power = -1.0 if node.op.label == "Reciprocal" else view.power(node)
    if power is not None and inputs[0] in sizes:
        return _raised(of(inputs[0]), power)
    alpha = abs(float(node.attributes.get("alpha", 1.0))) if node.op in WEIGHTED else 1.0
    if not any(t in sizes for t in inputs) and node.op not in SUMS and alpha == 1.0:
        return None
    if node.op in WEIGHTED:
        product = of(inputs[0], constant=1.0) * of(inputs[1], constant=1.0) * alpha
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        return max(product, of(bias) * abs(float(node.attributes.get("beta", 1.0)))) if bias else product
    if node.op in SUMS and not is_mean(node):
        return of(inputs[0]) * max(terms_of(node, view), 1)
    if node.op.label == "Sqrt":
        return math.sqrt(of(inputs[0]))
    if node.op in _KEEPING:
        return max((of(t) for t in inputs if view.is_float32(t)), default=None)
    return None
