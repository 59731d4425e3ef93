"""A device as the cost models see it: peaks, bandwidth, and how much of them programs reach."""

import math
from dataclasses import dataclass, fields, replace
from enum import Enum

from campo_onnx.errors import ProfileError
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import PROCESSORS, runtime_called

AMPERE = (8, 0)
"""First compute capability whose tensor cores know TF32 and BF16."""


class DeviceKind(Enum):
    """How well a device is known."""

    MEASURED = "measured"  # every node was timed on it
    CALIBRATED = "calibrated"  # cost models were fitted on it
    DATASHEET = "datasheet"  # public figures and stated assumptions


CAPTURED_LAUNCH_US = 2.0
"""Constant time of a kernel inside a captured CUDA graph.

An assumption: the host is not involved, about half a microsecond passes between two kernels (NVIDIA,
"Getting Started with CUDA Graphs": kernels of 2.9 us every 3.4 us on a V100), and the shortest kernel takes
one to two itself.
"""

CAPTURED_HOST_US = 0.01
"""Time of a node that launches nothing in such a graph: it is not there, and this is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peaks that good kernels reach, each in (0, 1].

    Parameters
    ----------
    bandwidth
        Of the memory bandwidth.
    cuda_cores
        Of the peak without tensor cores (on a CPU: of its vector units).
    tensor_cores
        Of the tensor-core peak, for aligned products that fill the chip.
    unaligned
        What is left of `tensor_cores` when dimensions are not aligned; 0 when such products
        do not run on tensor cores at all.
    """

    bandwidth: float
    cuda_cores: float
    tensor_cores: float
    unaligned: float

    def __post_init__(self) -> None:
        for name in ("bandwidth", "cuda_cores", "tensor_cores", "unaligned"):
            share = getattr(self, name)
            if not (0 < share <= 1 or (share == 0 and name == "unaligned")):
                raise ProfileError(
                    f"efficiency {name} is {share}", remedy="Give a share of the peak, in (0, 1]."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a cost estimate needs to know about a device, and about the runtime on it.

    Parameters
    ----------
    name, title
        Short name (``"v100"``) and what people call it.
    kind
        How well it is known.
    provider
        Execution provider: ``"cuda"`` or ``"cpu"``.
    compute_capability
        ``(major, minor)``; None for a CPU.
    sm_count
        Streaming multiprocessors (on a CPU: cores).
    l2_bytes
        Last-level cache.
    memory_bandwidth_bytes_per_s
        Peak of main memory.
    fp32_flops_per_s
        Peak without tensor cores.
    fp16_flops_per_s, bf16_flops_per_s
        Peaks of the vector units, or None without such arithmetic: kernels then compute in FP32.
    tf32_flops_per_s, fp16_tensor_flops_per_s, bf16_tensor_flops_per_s
        Dense peaks of tensor cores (on a CPU: of its matrix units) with FP32 accumulation; None where there
        are none.
    tf32_default
        Whether FP32 products run as TF32 unless told otherwise.
    launch_us
        Constant time of one more kernel in the step.
    host_us
        Time of a node that launches nothing, such as Reshape.
    captures
        Whether these two are of steps that run as captured CUDA graphs.
    efficiency
        Shares of the peaks that are reached.
    source
        Where the figures come from.
    runtime
        Name of the runtime that graphs run in.

    Raises
    ------
    ProfileError
        If a figure is not positive, or two of them contradict each other.
    """

    name: str
    title: str
    kind: DeviceKind
    provider: str
    compute_capability: tuple[int, int] | None = None
    sm_count: int
    l2_bytes: int
    memory_bandwidth_bytes_per_s: float
    fp32_flops_per_s: float
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    fp16_tensor_flops_per_s: float | None = None
    bf16_tensor_flops_per_s: float | None = None
    tf32_default: bool = False
    launch_us: float
    host_us: float
    captures: bool = False
    efficiency: Efficiency
    source: str
    runtime: str = DEFAULT

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not (value > 0 and math.isfinite(value)):
                if isinstance(value, bool):
                    continue
                self._refuse(f"{field.name} is {value}, and must be positive")
        if self.provider not in PROCESSORS:
            self._refuse(f"provider {self.provider!r} is neither 'cuda' nor 'cpu'")
        if self.is_gpu != (self.compute_capability is not None):
            self._refuse("a CUDA device has a compute capability, and no other device has one")
        tensor_peaks = (self.fp16_tensor_flops_per_s, self.tf32_flops_per_s, self.bf16_tensor_flops_per_s)
        if self.compute_capability is not None and self.compute_capability < AMPERE and any(tensor_peaks[1:]):
            self._refuse("TF32 and BF16 need compute capability 8.0 or newer")
        if self.fp16_tensor_flops_per_s is not None and self.fp16_flops_per_s is None:
            self._refuse("it has FP16 tensor cores, but no FP16 arithmetic")
        if self.tf32_default and self.tf32_flops_per_s is None:
            self._refuse("TF32 is its default, but no TF32 peak is given")

    def _refuse(self, why: str) -> None:
        raise ProfileError(f"device {self.name!r} is inconsistent", why=why, remedy="Correct its figures.")

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.provider == "cuda"

    @property
    def captured(self) -> "Device":
        """The same device, running steps as captured CUDA graphs: launches cost less, and views nothing."""
        return replace(
            self,
            launch_us=min(self.launch_us, CAPTURED_LAUNCH_US),
            host_us=min(self.host_us, CAPTURED_HOST_US),
            captures=True,
        )

    @property
    def effective_bytes_per_us(self) -> float:
        """Memory bandwidth that kernels reach."""
        return self.memory_bandwidth_bytes_per_s * self.efficiency.bandwidth / 1e6

    def computes_in(self, precision: Precision) -> bool:
        """Whether it has arithmetic in a precision that its runtime takes, rather than FP32 between Casts."""
        if precision is Precision.FP32:
            return True
        if runtime_called(self.runtime).capabilities.refusal(precision):
            return False
        return bool(self.vector_flops_per_s(precision) or self.tensor_flops_per_s(precision))

    def vector_flops_per_s(self, precision: Precision) -> float | None:
        """Peak without tensor cores in a precision; None without such arithmetic."""
        peaks = {
            Precision.FP32: self.fp32_flops_per_s,
            Precision.FP16: self.fp16_flops_per_s,
            Precision.BF16: self.bf16_flops_per_s,
        }
        return peaks.get(precision)

    def support(self, signature: Signature, precision: Precision) -> Support:
        """Say how the runtime runs a node in a precision here."""
        return runtime_called(self.runtime).support(signature, self.provider, precision)

    def sums_low(self, signature: Signature, precision: Precision) -> bool:
        """Whether the runtime accumulates a node's sums in a low precision itself."""
        return runtime_called(self.runtime).sums_low(signature, self.provider, precision)

    def in_runtime(self, name: str) -> "Device":
        """The same device with another runtime on it, by name.

        Raises
        ------
        UsageError
            If the runtime is unknown.
        """
        return replace(self, runtime=runtime_called(name).name)

    def tensor_flops_per_s(self, precision: Precision) -> float | None:
        """Dense peak of tensor cores, or of a CPU's matrix units, in a precision; None without one."""
        if precision is Precision.FP32:
            return self.tf32_flops_per_s if self.tf32_default else None
        peaks = {Precision.FP16: self.fp16_tensor_flops_per_s, Precision.BF16: self.bf16_tensor_flops_per_s}
        return peaks.get(precision)
