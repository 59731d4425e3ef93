"""Costs without a device at hand: a roofline over public figures."""

from collections.abc import Mapping
from functools import cache

from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import CONSTANT
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.roofline import Estimate, cast_us_per_element, node_time
from campo_onnx.targets.target import Target


def estimate(view: GraphView, ports: Mapping[str, Ports], target: Target, precision: Precision) -> CostTable:
    """Estimate every node of a graph, and Casts, on a device."""

    @cache
    def both(signature: Signature, own: Ports) -> tuple[Estimate, Estimate]:
        fp32 = node_time(signature, own, target, Precision.FP32)
        return fp32, node_time(signature, own, target, precision)

    nodes = {}
    for node in view.nodes:
        if node.op == CONSTANT:
            fp32 = low = Estimate(0.0, False)
        else:
            fp32, low = both(view.signature(node.name), ports[node.name])
        nodes[node.name] = NodeCost(
            node=node.name,
            fp32_us=fp32.time_us,
            low_us=low.time_us,
            on_tensor_cores=low.on_tensor_cores and not ports[node.name].refusal,
            source=CostSource.DATASHEET,
        )
    cast = CastModel(r_us=cast_us_per_element(target, precision), c_i_us=target.launch_us)
    return CostTable(target=target, source=CostSource.DATASHEET, nodes=nodes, cast=cast)
