"""The precisions a node can run in."""

from enum import Enum

from onnx import TensorProto


class Precision(Enum):
    """A floating-point format, with what ONNX calls it and what it can hold."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def onnx_dtype(self) -> int:
        """The ``TensorProto.DataType`` of this precision."""
        return _ONNX_DTYPE[self]

    @property
    def itemsize_bytes(self) -> int:
        """Size of one element."""
        return 4 if self is Precision.FP32 else 2

    @property
    def largest(self) -> float:
        """Largest finite magnitude."""
        return _LARGEST[self]

    @property
    def smallest_normal(self) -> float:
        """Smallest magnitude that keeps all its significand bits."""
        return _SMALLEST_NORMAL[self]


_ONNX_DTYPE: dict[Precision, int] = {
    Precision.FP32: int(TensorProto.FLOAT),
    Precision.FP16: int(TensorProto.FLOAT16),
    Precision.BF16: int(TensorProto.BFLOAT16),
}
_LARGEST = {
    Precision.FP32: 3.4028234663852886e38,
    Precision.FP16: 65504.0,
    Precision.BF16: 3.3895313892515355e38,
}
_SMALLEST_NORMAL = {
    Precision.FP32: 2.0**-126,
    Precision.FP16: 2.0**-14,
    Precision.BF16: 2.0**-126,
}
