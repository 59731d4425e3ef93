"""Where a lowered graph is to run, as far as passes ask."""

from dataclasses import dataclass

from campo_onnx.ops.kernels import is_registered
from campo_onnx.ops.key import OpKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A runtime and the processor that it runs on.

    Parameters
    ----------
    runtime
        Name of the runtime: ``"onnxruntime"`` or ``"openvino"``.
    processor
        ``"cpu"`` or ``"cuda"``.
    """

    runtime: str
    processor: str

    def runs(self, op: OpKey, opset: int) -> bool:
        """Whether the runtime has the operator in the version that an opset holds.

        Only ONNX Runtime registers kernels by version; OpenVINO converts every version it reads.
        """
        return self.runtime != "onnxruntime" or is_registered(op, opset, self.processor)

    def trains_dropout(self, opset: int) -> bool:
        """Whether the runtime has the training mode of Dropout."""
        return self.runtime != "openvino" and self.runs(OpKey("", "Dropout"), opset)
