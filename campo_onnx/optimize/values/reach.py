"""Reach of values: products, powers and quotients of values of unknown size, times constants."""

import math
from collections.abc import Iterable, Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES_AND_SIGNS, WEIGHTED
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
