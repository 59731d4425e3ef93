"""Control flow, containers, quantized arithmetic, text and images."""

from campo_onnx.ops.spec import Family, Refusal, specs

_CONTAINERS = """
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
    ConcatFromSequence SplitToSequence Optional OptionalGetElement OptionalHasElement
"""
_QUANTIZED = """
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger
"""
_TEXT = "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"

SPECS = (
    *specs(
        "",
        "If Loop Scan",
        Family.CONTROL_FLOW,
        ports=Refusal("control flow: bodies and what they capture stay FP32"),
    ),
    *specs("", "SequenceMap", Family.CONTROL_FLOW),
    *specs("", _CONTAINERS, Family.OTHER),
    *specs("", _QUANTIZED, Family.QUANTIZATION),
    *specs("", _TEXT, Family.OTHER),
)
