"""Random sources: they keep their FP32 draws, and what they draw is no unsafe value."""

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.patterns.findings import Findings

_SOURCES = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def random(view: GraphView, update: frozenset[str]) -> Findings:
    """Find random sources; nothing downstream of one is unsafe because of it."""
    classes: dict[str, tuple[OpClass, str]] = {}
    contained: set[Use] = set()
    for node in view.nodes:
        if not node.op.domain and node.op.op_type in _SOURCES:
            classes[node.name] = (OpClass.DENY, "draws the same random numbers as in FP32")
            for tensor in node.outputs:
                contained.update(view.consumers.get(tensor, ()))
    return Findings(classes=classes, contained=frozenset(contained))
