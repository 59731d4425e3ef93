"""A graph whose author means harm: names that would break out of a page that wrote them as markup."""

from onnx import ModelProto
from onnx import TensorProto as T
from onnx import helper as h

NAMES = (
    "</script><script>window.broken=1</script>",
    "<!--<script>",
    "<img src=x onerror=window.broken=2>",
    "a\u202egnp.exe",
    "line\u2028and\u2029paragraph",
    "{{ 7 * 7 }}{% raw %}",
    "]]>&lt;b&gt;'\"`",
    "null\x00and\x1b[31mescape",
    "long/" + "x" * 3000,
    "__proto__",
    "constructor/toString",
)


def model() -> ModelProto:
    """A chain of products under those names, each followed by an addition, so that some go low."""
    size = 512
    nodes, inputs, last = [], [h.make_tensor_value_info("x", T.FLOAT, [size, size])], "x"
    for number, name in enumerate(NAMES):
        weight = f"param.w{number}"
        inputs.append(h.make_tensor_value_info(weight, T.FLOAT, [size, size]))
        nodes.append(h.make_node("MatMul", [last, weight], [name], name))
        last = name
    nodes.append(h.make_node("ReduceSum", [last], ["loss"], "loss", keepdims=0))
    outputs = [h.make_tensor_value_info("loss", T.FLOAT, [])]
    graph = h.make_graph(nodes, NAMES[0], inputs, outputs)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)
