"""ScatterElements that computes the gradient of a max pooling: it places values, it hardly adds."""

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.ops.registry import moving
from campo_onnx.ops.spec import Movement
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_VIEWS = moving(Movement.VIEW)


def max_pool_gradient(view: GraphView, update: frozenset[str]) -> Findings:
    """Find scatters at the indices of a MaxPool.

    The scatter itself stays FP32, since FP16 has no atomic addition everywhere. But at most
    ceil(kernel / stride) terms an axis meet in one element, so what it makes is no less safe than
    what it was given, and spreads nothing.
    """
    classes: dict[str, tuple[OpClass, Finding]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if node.op.label == "ScatterElements" and _is_pool_index(node.inputs[1], view):
            classes[node.name] = (OpClass.DENY, Finding.MAX_POOL_GRADIENT)
            contained.update(view.consumers.get(node.outputs[0], ()))
    return Findings(classes=classes, contained=frozenset(contained))


def _is_pool_index(tensor: str, view: GraphView) -> bool:
    tensor = view.origin(tensor, _VIEWS)
    producer = view.producer.get(tensor)
    return producer is not None and producer.op.label == "MaxPool" and tensor == producer.outputs[1]
