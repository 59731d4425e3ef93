"""OpenVINO's plugin for Intel's GPUs as a :class:`~campo_onnx.runtime.api.Runtime` that only plans.

OpenVINO's documentation says that its kernels there compute in FP32 and FP16, each in the precision that the
graph gives it. Which kernels do could not be read from a GPU, as it was from CPUs: no figure of it is
measured, and nothing is run.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from campo_onnx.hardware.hardware import INTEL_GPU
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import Capabilities, Runtime, Support
from campo_onnx.runtime.overhead import Overhead, read_overheads

if TYPE_CHECKING:
    from campo_onnx.ops.signature import Signature

_CAPABILITIES = Capabilities(
    captures=False,
    takes_addresses=False,
    traces_nodes=False,
    fuses_casts=False,
    has_low_cpu_kernels=False,
    multiplies_in_tf32=False,
    keeps_nan=False,
    takes_any_size=False,
    refused_precisions=(
        (Precision.BF16, "its documentation names FP32 and FP16 as the precisions of its kernels on GPUs"),
    ),
)


@dataclass(frozen=True, slots=True)
class OpenVinoGpu(Runtime):
    """Stands for OpenVINO on a GPU of Intel's in predictions."""

    name: str = "openvino-gpu"
    processors: tuple[str, ...] = (INTEL_GPU,)
    capabilities: Capabilities = _CAPABILITIES

    def problem(self, processor: str) -> str:
        """Say why it cannot run; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return "OpenVINO's steps on Intel's GPUs are predicted, not run"

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        """Say what it adds to kernels; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return read_overheads(__package__)[INTEL_GPU]

    def support(self, signature: "Signature", processor: str, precision: Precision) -> Support:
        """Say how a node runs; see :class:`~campo_onnx.runtime.api.Runtime`.

        All of OpenVINO's plugins read ONNX operators by the same code: what is refused for a CPU is refused.
        Nodes run in FP16 whose BF16 variant has a kernel of its own on CPUs; all others stay FP32.
        """
        from campo_onnx.runtime.openvino import kernels

        if processor != INTEL_GPU or self.capabilities.refusal(precision):
            return Support.REFUSED
        if precision is Precision.FP32:
            return kernels.support(signature, precision)
        on_cpu = kernels.support(signature, Precision.BF16)
        return on_cpu if on_cpu in (Support.NATIVE, Support.STORAGE) else Support.REFUSED

    def sums_low(self, signature: "Signature", processor: str, precision: Precision) -> bool:
        """Whether sums may be accumulated in FP16; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.openvino import kernels

        return precision is not Precision.FP32 and kernels.sums_low(signature, Precision.BF16)
