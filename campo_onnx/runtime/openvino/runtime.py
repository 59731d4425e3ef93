"""OpenVINO's plugins, for CPUs and for Intel's GPUs, each as a :class:`~campo_onnx.runtime.api.Runtime`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.hardware.hardware import INTEL_GPU
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LOAD_SETTINGS, Capabilities, LoadSettings, Runtime, Support
from campo_onnx.runtime.machine import CPU, Machine, cores, cpu_name
from campo_onnx.runtime.openvino.installed import installed_version, is_new_enough, openvino, openvino_problem
from campo_onnx.runtime.overhead import Overhead, read_overheads

if TYPE_CHECKING:
    import onnx

    from campo_onnx.ops.signature import Signature
    from campo_onnx.runtime.host_tensor import HostTensor
    from campo_onnx.runtime.openvino.program import OpenVinoProgram

_CAPABILITIES = Capabilities(
    captures=False,
    takes_addresses=True,
    traces_nodes=True,
    fuses_casts=True,
    has_low_cpu_kernels=True,
    multiplies_in_tf32=False,
    keeps_nan=False,
    indexes_pools_slowly=True,
    takes_any_size=False,
    runs_each_node=False,
    rounds_as_written=False,
    refused_precisions=(
        (
            Precision.FP16,
            "its plugin for CPUs takes FP16 types out of a graph without rounding, so that a plan could be "
            "neither checked nor timed",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class OpenVino(Runtime):
    """Runs a graph on a CPU, BF16 nodes in BF16 where the CPU has units for it, FP32 nodes in FP32.

    Elementwise chains become one kernel that computes in FP32 and rounds once, at its end. A NaN does not
    survive Relu, Max and MaxPool.
    """

    name: str = "openvino"
    processors: tuple[str, ...] = (CPU,)
    capabilities: Capabilities = _CAPABILITIES

    @property
    def version(self) -> str:
        """Version of the installed wheel."""
        openvino()
        return installed_version()

    @property
    def installed(self) -> str:
        """Version of the wheel, if it is new enough; see :class:`~campo_onnx.runtime.api.Runtime`."""
        wheel = installed_version()
        return wheel if is_new_enough(wheel) else ""

    def problem(self, processor: str) -> str:
        """Say why it cannot run here; see :class:`~campo_onnx.runtime.api.Runtime`."""
        if processor != CPU:
            return "OpenVINO's plugin for CPUs runs on no GPU of NVIDIA's"
        return openvino_problem()

    def machine(self, processor: str, threads: int = 0) -> Machine:
        """Identify this machine; see :class:`~campo_onnx.runtime.api.Runtime`."""
        self._refuse_other(processor)
        return Machine(
            provider=CPU,
            device=cpu_name(),
            driver="",
            cuda="",
            ort=self.version,
            tf32=False,
            threads=threads or cores(),
            runtime=self.name,
        )

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        """Say what it adds to kernels; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return read_overheads(__package__)[CPU]

    def support(self, signature: "Signature", processor: str, precision: Precision) -> Support:
        """Say how a node runs; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.openvino import kernels

        return kernels.support(signature, precision) if processor == CPU else Support.REFUSED

    def sums_low(self, signature: "Signature", processor: str, precision: Precision) -> bool:
        """Whether sums are accumulated in BF16; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.openvino import kernels

        return kernels.sums_low(signature, precision)

    def load(
        self,
        model: "onnx.ModelProto",
        processor: str,
        *,
        threads: int = 0,
        folder: Path | None = None,
        settings: LoadSettings = LOAD_SETTINGS,
    ) -> "OpenVinoProgram":
        """Load a graph; see :class:`~campo_onnx.runtime.api.Runtime`."""
        self._refuse_other(processor)
        from campo_onnx.runtime.openvino.program import OpenVinoProgram

        return OpenVinoProgram(model, threads=threads or cores(), folder=folder, traces=settings.traces)

    def tensor(self, shape: Sequence[int], dtype: int, processor: str) -> "HostTensor":
        """Allocate a tensor of zeros; see :class:`~campo_onnx.runtime.api.Runtime`."""
        self._refuse_other(processor)
        from campo_onnx.runtime.host_tensor import HostTensor

        return HostTensor.zeros(shape, dtype)

    def _refuse_other(self, processor: str) -> None:
        if problem := self.problem(processor):
            raise DeviceUnavailableError("OpenVINO cannot be used", why=problem)


_OF_A_GPU = Capabilities(
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
    """Stands for OpenVINO on a GPU of Intel's in predictions; it only plans.

    OpenVINO's documentation says that its kernels there compute in FP32 and FP16, each in the precision that
    the graph gives it. Which kernels do could not be read from a GPU, as it was from CPUs: no figure of it is
    measured, and nothing is run.
    """

    name: str = "openvino-gpu"
    processors: tuple[str, ...] = (INTEL_GPU,)
    capabilities: Capabilities = _OF_A_GPU

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


RUNTIME = OpenVino()
RUNTIMES = (RUNTIME, OpenVinoGpu())
