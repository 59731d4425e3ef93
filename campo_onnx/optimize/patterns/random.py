"""Random sources: they keep their FP32 draws, and what they draw is no unsafe value."""

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.op_class import OpClass
from campo_onnx.optimize.patterns.findings import Findings

_COMPARISONS = frozenset(OpKey("", op) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"))


def random(view: GraphView, update: frozenset[str]) -> Findings:
    """Find random sources, and the comparisons that decide by them.

    Nothing downstream of a source is unsafe because of it. A comparison with a draw stays FP32 too:
    rounded, a draw close to the threshold would fall on its other side and drop another activation.
    """
    classes: dict[str, tuple[OpClass, str]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if spec(node.op).family is Family.RANDOM:
            classes[node.name] = (OpClass.DENY, "draws the same random numbers as in FP32")
            for tensor in node.outputs:
                for use in view.consumers.get(tensor, ()):
                    contained.add(use)
                    if view.node[use.node].op in _COMPARISONS:
                        reason = "decides by the same draws as in FP32"
                        classes[use.node] = (OpClass.DENY, reason)
    return Findings(classes=classes, contained=frozenset(contained))
