"""Constants, fills, random sources, and what is asked of shapes and indices."""

from functools import partial

from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.schema import attribute_ports, fp32_positions
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Ask, Family, Refuses, specs
from campo_onnx.ops.work import Stream, WorkKind


def _shape_only_ports(signature: Signature, _: Precision) -> Ports:
    return Ports(any_inputs=fp32_positions(signature)[0], refusal=Refused.SHAPE_ONLY.of())


# The type of the output stands in an attribute.
_DTYPE, _VALUE = (partial(attribute_ports, attribute=name) for name in ("dtype", "value"))

SPECS = (
    *specs("", "Constant", Family.SOURCE, work=WorkKind.NONE, ports=Refuses(Refused.CONSTANT)),
    *specs("", "ConstantOfShape", Family.SOURCE, work=Stream(0), ports=_VALUE),
    *specs("", "EyeLike", Family.SOURCE, work=Stream(0), ports=_DTYPE),
    *specs("", "OneHot", Family.SOURCE, work=Stream(0), asks=((0, Ask.INDEX_BELOW_DEPTH),)),
    *specs("", "Range", Family.SOURCE, work=Stream(0)),
    *specs("", "AffineGrid HannWindow HammingWindow BlackmanWindow MelWeightMatrix", Family.SOURCE),
    *specs(
        "",
        "RandomUniform RandomUniformLike RandomNormal RandomNormalLike Bernoulli",
        Family.RANDOM,
        work=Stream(10),
        ports=_DTYPE,
        draws=True,
    ),
    *specs("", "Multinomial", Family.RANDOM, draws=True),
    *specs("", "Shape Size", Family.SHAPE, work=WorkKind.NONE, ports=_shape_only_ports),
    *specs("", "NonZero", Family.SHAPE, work=Stream(0)),
    *specs("", "NonMaxSuppression Unique", Family.SHAPE),
)
