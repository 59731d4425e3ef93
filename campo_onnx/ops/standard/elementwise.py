"""Operators that compute each element from the elements at its place."""

from campo_onnx.ops.spec import SAME_AS_FIRST, Ask, Family, specs
from campo_onnx.ops.work import Stream

_EACH = Family.ELEMENTWISE

SPECS = (
    *specs("", "Add Sub Mul Neg Abs Max Min Sum Mean", _EACH, work=Stream(1)),
    *specs("", "Relu LeakyRelu PRelu Clip ThresholdedRelu Shrink", _EACH, work=Stream(1)),
    *specs("", "Equal Less LessOrEqual Greater GreaterOrEqual", _EACH, work=Stream(1)),
    *specs("", "Not And Or Xor Sign IsNaN IsInf Floor Ceil Round", _EACH, work=Stream(1)),
    *specs("", "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift", _EACH, work=Stream(1)),
    *specs("", "Div", _EACH, work=Stream(4), asks=((1, Ask.POSITIVE),)),
    *specs("", "Sqrt Reciprocal", _EACH, work=Stream(4), asks=((0, Ask.POSITIVE),)),
    *specs("", "Mod HardSigmoid HardSwish Softsign", _EACH, work=Stream(4)),
    *specs("", "Exp Erf Tanh Sigmoid", _EACH, work=Stream(10)),
    *specs("", "Log Pow", _EACH, work=Stream(10), asks=((0, Ask.POSITIVE),)),
    *specs("", "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh", _EACH, work=Stream(10)),
    *specs("", "Softplus Elu Selu Celu Mish Swish RotaryEmbedding", _EACH, work=Stream(10)),
    *specs("", "Gelu", _EACH, work=Stream(15)),
    *specs("", "SwiGLU", _EACH),
    *specs("", "Dropout", _EACH, work=Stream(10), asks=((1, Ask.SHARE),), draws=True),
    # ONNX dropped these; ONNX Runtime did not. The last two it writes into graphs that it saves.
    *specs(
        "",
        "Affine ImageScaler ParametricSoftplus ScaledTanh MemcpyFromHost MemcpyToHost",
        _EACH,
        shapes=SAME_AS_FIRST,
        standard_in_runtime=True,
    ),
    *specs("", "Crop DynamicSlice GRUUnit GivenTensorFill Scale", Family.OTHER, standard_in_runtime=True),
)
