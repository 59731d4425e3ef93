"""Control flow, containers, quantized arithmetic, text and images."""

from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.schema import one_type_ports
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Family, Refuses, specs

_CONTAINERS = """
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
    ConcatFromSequence SplitToSequence Optional OptionalGetElement OptionalHasElement
"""
_QUANTIZED = "DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger"
_TEXT = "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"


def _linear_ports(signature: Signature, precision: Precision) -> Ports:
    # The scale decides the type of the result, unless that is stated.
    if signature.attribute("output_dtype", 0):
        return Ports(refusal=Refused.STATED_TYPE.of())
    return one_type_ports(signature, precision)


SPECS = (
    *specs("", "If Loop Scan", Family.CONTROL_FLOW, ports=Refuses(Refused.CONTROL_FLOW)),
    *specs("", "SequenceMap", Family.CONTROL_FLOW),
    *specs("", _CONTAINERS, Family.OTHER),
    *specs("", "QuantizeLinear DequantizeLinear", Family.QUANTIZATION, ports=_linear_ports),
    *specs("", _QUANTIZED, Family.QUANTIZATION),
    *specs("", _TEXT, Family.OTHER),
)
