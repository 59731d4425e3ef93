"""A training step of any number of nodes, named as the exporter names them."""

from onnx import ModelProto
from onnx import TensorProto as T
from onnx import helper as h

_SIZE = 256
_OPS = ("MatMul", "Add", "Relu", "Mul")


def large_model(nodes: int) -> ModelProto:
    """Layers of products and element-wise operators, in a chain."""
    op_nodes, weights, last = [], [], "x"
    for number in range(nodes - 1):
        op = _OPS[number % len(_OPS)]
        name = f"layers.{number // 450}.block{number // 30 % 15}/{'grad/' if number % 3 else ''}{op}_{number}"
        weight = f"param.w{number // 30}"
        if number % 30 == 0:
            weights.append(h.make_tensor_value_info(weight, T.FLOAT, [_SIZE, _SIZE]))
        op_nodes.append(h.make_node(op, [last] if op == "Relu" else [last, weight], [f"t{number}"], name))
        last = f"t{number}"
    op_nodes.append(h.make_node("ReduceSum", [last], ["loss"], "loss", keepdims=0))
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [_SIZE, _SIZE]), *weights]
    outputs = [h.make_tensor_value_info("loss", T.FLOAT, [])]
    graph = h.make_graph(op_nodes, "large", inputs, outputs)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)
