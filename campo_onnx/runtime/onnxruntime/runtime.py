"""ONNX Runtime as a :class:`~campo_onnx.runtime.api.Runtime`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LOAD_SETTINGS, Capabilities, LoadSettings, Runtime, Support
from campo_onnx.runtime.machine import CPU, CUDA, Machine
from campo_onnx.runtime.onnxruntime import providers
from campo_onnx.runtime.onnxruntime.installed import only_wheel, onnxruntime, runtime_problem
from campo_onnx.runtime.overhead import Overhead, read_overheads

if TYPE_CHECKING:
    import onnx

    from campo_onnx.ops.signature import Signature
    from campo_onnx.runtime.onnxruntime.program import BoundTensor, OnnxProgram


_CAPABILITIES = Capabilities(
    captures=True,
    takes_addresses=True,
    takes_gpu_addresses=True,
    traces_nodes=True,
    fuses_casts=False,
    has_low_cpu_kernels=False,  # it runs FP32 kernels between Casts
    multiplies_in_tf32=True,  # use_tf32 of its CUDA provider is on
    keeps_nan=True,
    own_operators=True,
)


@dataclass(frozen=True, slots=True)
class OnnxRuntime(Runtime):
    """Runs a graph node by node as it is written, on its CPU or CUDA execution provider."""

    name: str = "onnxruntime"
    processors: tuple[str, ...] = (CPU, CUDA)
    capabilities: Capabilities = _CAPABILITIES

    @property
    def version(self) -> str:
        """Version of the installed wheel."""
        return str(onnxruntime().__version__)

    @property
    def installed(self) -> str:
        """Version of the one wheel, if it is new enough; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return only_wheel()

    def problem(self, processor: str) -> str:
        """Say why it cannot run here; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return providers.cuda_problem() if processor == CUDA else runtime_problem()

    def machine(self, processor: str, threads: int = 0) -> Machine:
        """Identify this machine; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return providers.machine(processor, threads)

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        """Say what it adds to kernels; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return read_overheads(__package__)["cuda_graph" if captured else processor]

    def support(self, signature: "Signature", processor: str, precision: Precision) -> Support:
        """Say how a node runs; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.onnxruntime import kernels

        if precision is Precision.FP32:
            refuses = kernels.never_loads(signature, processor) or kernels.is_outdated(signature, processor)
            return Support.REFUSED if refuses else Support.NATIVE
        refuses = kernels.refuses_attributes(signature, processor)
        if refuses or not kernels.runs(signature.op, signature.opset, processor, precision):
            return Support.REFUSED
        has_own = kernels.has_kernel(signature.op, signature.opset, processor, precision)
        return Support.NATIVE if has_own else Support.UPCAST

    def load(
        self,
        model: "onnx.ModelProto",
        processor: str,
        *,
        threads: int = 0,
        folder: Path | None = None,
        settings: LoadSettings = LOAD_SETTINGS,
    ) -> "OnnxProgram":
        """Load a graph; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.onnxruntime.program import OnnxProgram

        return OnnxProgram(model, processor, threads, folder, settings)

    def tensor(self, shape: Sequence[int], dtype: int, processor: str) -> "BoundTensor":
        """Allocate a tensor of zeros; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.onnxruntime.program import zeros

        return zeros(shape, dtype, processor)


RUNTIME: Runtime = OnnxRuntime()
RUNTIMES = (RUNTIME,)
