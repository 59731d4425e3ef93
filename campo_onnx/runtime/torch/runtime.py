"""PyTorch's compiler as a :class:`~campo_onnx.runtime.api.Runtime`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LOAD_SETTINGS, Capabilities, LoadSettings, Runtime, Support, Tensor
from campo_onnx.runtime.gpu import visible_gpu
from campo_onnx.runtime.machine import CPU, CUDA, Machine, cores, cpu_name
from campo_onnx.runtime.overhead import Overhead, read_overheads
from campo_onnx.runtime.torch.installed import OLDEST, installed_version, release_of, torch_problem

if TYPE_CHECKING:
    import onnx

    from campo_onnx.ops.signature import Signature
    from campo_onnx.runtime.torch.program import TorchProgram

_CAPABILITIES = Capabilities(
    captures=True,
    takes_addresses=True,
    traces_nodes=True,
    fuses_casts=True,
    has_low_cpu_kernels=True,
    multiplies_in_tf32=False,  # it is told to compute FP32 in FP32
    keeps_nan=True,
    takes_any_size=False,
    runs_each_node=False,
    usual_precision=Precision.BF16,  # on CPUs FP16 takes up to 90 times as long as FP32
    rounds_as_written=False,
    convolves_portable=True,
    is_chosen_unasked=False,
)


@dataclass(frozen=True, slots=True)
class Torch(Runtime):
    """Translates a graph to torch's operations and runs what TorchInductor makes of them.

    Products, convolutions and attention are calls of libraries, in the types of the graph. All else becomes
    generated kernels, which compute in FP32 and read and write tensors in the types of the graph.
    """

    name: str = "torch"
    processors: tuple[str, ...] = (CPU, CUDA)
    capabilities: Capabilities = _CAPABILITIES

    @property
    def version(self) -> str:
        """Version of the installed wheel."""
        self._refuse(CPU)
        return installed_version()

    @property
    def installed(self) -> str:
        """Version of the wheel, if it is new enough; see :class:`~campo_onnx.runtime.api.Runtime`."""
        wheel = installed_version()
        return wheel if wheel and release_of(wheel) >= OLDEST else ""

    def problem(self, processor: str) -> str:
        """Say why it cannot run here; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return torch_problem() or (_cuda_problem() if processor == CUDA else "")

    def machine(self, processor: str, threads: int = 0) -> Machine:
        """Identify this machine; see :class:`~campo_onnx.runtime.api.Runtime`."""
        self._refuse(processor)
        if processor == CPU:
            device, driver, cuda, count = cpu_name(), "", "", threads or cores()
        else:
            gpu = visible_gpu().gpu
            device, driver = ("an NVIDIA GPU", "unknown") if gpu is None else (gpu.name, gpu.driver)
            cuda, count = _cuda_version(), 0
        return Machine(
            provider=processor,
            device=device,
            driver=driver,
            cuda=cuda,
            ort=self.version,
            tf32=False,
            threads=count,
            runtime=self.name,
        )

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        """Say what it adds to kernels; see :class:`~campo_onnx.runtime.api.Runtime`."""
        return read_overheads(__package__)["cuda_graph" if captured else processor]

    def support(self, signature: "Signature", processor: str, precision: Precision) -> Support:
        """Say how a node runs; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.torch import kernels

        if processor not in self.processors:
            return Support.REFUSED
        return kernels.support(signature, processor, precision)

    def sums_low(self, signature: "Signature", processor: str, precision: Precision) -> bool:
        """Whether sums are accumulated in the low precision; see :class:`~campo_onnx.runtime.api.Runtime`."""
        from campo_onnx.runtime.torch import kernels

        return kernels.sums_low(signature, precision)

    def load(
        self,
        model: "onnx.ModelProto",
        processor: str,
        *,
        threads: int = 0,
        folder: Path | None = None,
        settings: LoadSettings = LOAD_SETTINGS,
    ) -> "TorchProgram":
        """Load a graph; see :class:`~campo_onnx.runtime.api.Runtime`."""
        self._refuse(processor)
        from campo_onnx.runtime.torch.program import TorchProgram

        return TorchProgram(model, processor, threads=threads or cores(), folder=folder, settings=settings)

    def tensor(self, shape: Sequence[int], dtype: int, processor: str) -> Tensor:
        """Allocate a tensor of zeros; see :class:`~campo_onnx.runtime.api.Runtime`."""
        if processor == CPU:
            from campo_onnx.runtime.host_tensor import HostTensor

            return HostTensor.zeros(shape, dtype)
        self._refuse(processor)
        from campo_onnx.runtime.torch.memory import GpuMemory

        return GpuMemory.zeros(shape, dtype, processor)

    def _refuse(self, processor: str) -> None:
        if problem := self.problem(processor):
            raise DeviceUnavailableError("torch cannot be used", why=problem)


@cache
def _cuda_problem() -> str:
    import torch

    if torch.version.cuda is None:
        return "the installed PyTorch was built for CPUs only"
    return (
        "" if torch.cuda.is_available() else visible_gpu().problem or "PyTorch finds no GPU that it can use"
    )


@cache
def _cuda_version() -> str:
    import torch

    return str(torch.version.cuda)


RUNTIME = Torch()
RUNTIMES = (RUNTIME,)
