"""Reach of values: products, powers and quotients of values of unknown size, times constants."""

import math
from collections.abc import Mapping

from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import MOVES_AND_SIGNS

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
    reached: dict[str, float] = {}
    nodes: dict[str, str] = {}
    for node in values.forward_nodes:
        output = next((t for t in node.outputs if t), "")
        if not values.view.is_float32(output):
            continue
        if (reach := _reach(node, values, reached)) is not None:
            reach = min(reach, values.range(output).bound, _MOST)
            reached.update((t, reach) for t in node.outputs if t)
        if tensor := next(
            (t for t in (output, *node.inputs) if reached.get(t, 0.0) > values.low.largest), ""
        ):
            nodes[node.name] = tensor
    return nodes


def _reach(node: OpNode, values: GraphValues, reached: Mapping[str, float]) -> float | None:
    """Largest size of the results; None of a node that sets their size itself."""
    view = values.view

    def of(tensor: str) -> float:
        r = values.range(tensor)
        if view.is_constant(tensor) or not r.varies or tensor not in view.producer:
            return r.magnitude
        return reached.get(tensor, min(_TAIL * r.magnitude, r.bound))

    inputs = [t for t in node.inputs if t]
    if node.op.label == "Mul":
        return of(inputs[0]) * of(inputs[1])
    if node.op.label == "Div":
        divisor = values.range(inputs[1])
        if view.is_constant(inputs[1]):
            return of(inputs[0]) / (divisor.magnitude or 1.0)
        least = _LEAST_DIVISOR if of(inputs[1]) >= _TAIL else _LEAST_DATA
        return of(inputs[0]) / max(divisor.lowest, -divisor.highest, least)
    if (power := view.power(node)) is not None and power > 0.0:
        return math.pow(min(of(inputs[0]), _MOST), min(power, _MOST_POWER))
    if node.op in _VOLUMES:
        return None if values.range(inputs[0]).is_bounded else _MOST
    if node.op in _LARGEST:
        return max((of(t) for t in inputs if view.is_float32(t)), default=None)
    return None
