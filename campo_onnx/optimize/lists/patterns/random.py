"""Random sources: they keep their FP32 draws, and what they draw is not unsafe."""

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_COMPARISONS = op_keys("Greater GreaterOrEqual Less LessOrEqual")


def random(view: GraphView, update: frozenset[str]) -> Findings:
    """Find random sources, and the comparisons that decide by them.

    Nothing downstream of a source is unsafe because of it. A comparison with a draw stays FP32 too:
    rounded, a draw close to the threshold would fall on its other side and drop another activation.
    """
    classes: dict[str, tuple[OpClass, Finding]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if spec(node.op).family is Family.RANDOM:
            classes[node.name] = (OpClass.DENY, Finding.RANDOM)
            for tensor in node.outputs:
                for use in view.consumers.get(tensor, ()):
                    contained.add(use)
                    if view.node[use.node].op in _COMPARISONS:
                        classes[use.node] = (OpClass.DENY, Finding.DRAWN_DECISION)
    return Findings(classes=classes, contained=frozenset(contained))
