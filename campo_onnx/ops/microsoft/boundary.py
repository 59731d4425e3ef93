"""Operators at the border of a graph: to its host, to opaque code, to other devices; and quantization."""

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import Family, Refuses, specs
from campo_onnx.ops.work import WorkKind

FRAMEWORK = Refuses(Refused.FRAMEWORK)
"""For operators whose other side is the framework, which has given or expects FP32."""


def _yield_types(signature: Signature) -> list[TensorType]:
    # The gradient that comes back for each output has its shape.
    return [signature.input(i).type for i in range(len(signature.inputs))]


_COMMUNICATION = """
    NcclAllReduce NcclAllGather NcclReduceScatter AdasumAllReduce MegatronF MegatronG Send Recv
    RecordEvent WaitEvent Group
"""

SPECS = (
    *specs(MICROSOFT, "YieldOp", Family.BOUNDARY, work=WorkKind.VIEW, ports=FRAMEWORK, shapes=_yield_types),
    *specs(MICROSOFT, "PythonOp PythonOpGrad", Family.BOUNDARY, ports=FRAMEWORK, typed_by_declaration=True),
    *specs(MICROSOFT, "TritonOp", Family.BOUNDARY),
    *specs(MICROSOFT, _COMMUNICATION, Family.BOUNDARY),
    *specs(MICROSOFT, "QuantizeLinear DequantizeLinear FakeQuant FakeQuantGrad", Family.QUANTIZATION),
)
