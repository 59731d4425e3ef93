"""Hardware as cost models see it: peaks, bandwidth, caches, and how much of them kernels reach."""

import math
from dataclasses import dataclass, fields

from campo_onnx.errors import ProfileError
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.precision import Precision

CPU, CUDA, INTEL_GPU = PROCESSORS = ("cpu", "cuda", "intel_gpu")
"""Kinds of processors that graphs are planned for."""

AMPERE = (8, 0)
"""First compute capability whose tensor cores know TF32 and BF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the peaks that good kernels reach, each in (0, 1]."""

    bandwidth: float  # of the memory bandwidth
    cuda_cores: float  # of the peak without tensor cores (on a CPU: of its vector units)
    tensor_cores: float  # of the tensor-core peak, for aligned products that fill the chip
    # what is left of `tensor_cores` when dimensions are not aligned; 0 when such products do not run on
    # tensor cores at all
    unaligned: float

    def __post_init__(self) -> None:
        for name in ("bandwidth", "cuda_cores", "tensor_cores", "unaligned"):
            share = getattr(self, name)
            if not (0 < share <= 1 or (share == 0 and name == "unaligned")):
                raise ProfileError(
                    f"efficiency {name} is {share}", remedy="Give a share of the peak, in (0, 1]."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One processor with its memory.

    Raises ProfileError if a figure is not positive, or two of them contradict each other.
    """

    # short name (`"v100"`) and what people call it
    name: str
    title: str
    processor: str  # one of `PROCESSORS`
    compute_capability: tuple[int, int] | None = None  # `(major, minor)`; None for all but CUDA devices
    sm_count: int  # streaming multiprocessors (on a CPU: cores; on Intel's GPUs: Xe-cores)
    l2_bytes: int  # last-level cache
    memory_bandwidth_bytes_per_s: float  # peak of main memory
    fp32_flops_per_s: float  # peak without tensor cores
    # peaks of the vector units, or None without such arithmetic: kernels then compute in FP32
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    # dense peaks of tensor cores (on a CPU: of its matrix units) with FP32 accumulation; None where there are
    # none
    tf32_flops_per_s: float | None = None
    fp16_tensor_flops_per_s: float | None = None
    bf16_tensor_flops_per_s: float | None = None
    efficiency: Efficiency  # shares of the peaks that are reached
    source: str  # where the figures come from

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not (value > 0 and math.isfinite(value)):
                self._refuse(f"{field.name} is {value}, and must be positive")
        if self.processor not in PROCESSORS:
            self._refuse(f"processor {self.processor!r} is none of {', '.join(PROCESSORS)}")
        if (self.processor == CUDA) != (self.compute_capability is not None):
            self._refuse("a CUDA device has a compute capability, and no other device has one")
        tensor_peaks = (self.fp16_tensor_flops_per_s, self.tf32_flops_per_s, self.bf16_tensor_flops_per_s)
        if self.compute_capability is not None and self.compute_capability < AMPERE and any(tensor_peaks[1:]):
            self._refuse("TF32 and BF16 need compute capability 8.0 or newer")
        if self.fp16_tensor_flops_per_s is not None and self.fp16_flops_per_s is None:
            self._refuse("it has FP16 tensor cores, but no FP16 arithmetic")

    def _refuse(self, why: str) -> None:
        raise ProfileError(f"device {self.name!r} is inconsistent", why=why, remedy="Correct its figures.")

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.processor != CPU

    @property
    def effective_bytes_per_us(self) -> float:
        """Memory bandwidth that kernels reach."""
        return self.memory_bandwidth_bytes_per_s * self.efficiency.bandwidth / 1e6

    def multiples(self, precision: Precision) -> Multiples:
        """Multiples that the sizes of a product should be of.

        Tensor cores of GPUs load 16 bytes at a time: 8 elements of FP16 and BF16, 4 of TF32. CPUs multiply
        groups of 4 bytes along K, in tiles and in vectors: pairs in BF16.

        >>> from campo_onnx.hardware.datasheet import device
        >>> device("v100").multiples(Precision.FP16).n, device("cpu_amx").multiples(Precision.BF16).k
        (8, 2)
        """
        if self.is_gpu:
            return Multiples.of_all(16 // precision.itemsize_bytes)
        return Multiples(m=1, n=1, k=4 // precision.itemsize_bytes, channels=1, repacks_left=True)

    def vector_flops_per_s(self, precision: Precision) -> float | None:
        """Peak without tensor cores in a precision; None without such arithmetic."""
        peaks = {
            Precision.FP32: self.fp32_flops_per_s,
            Precision.FP16: self.fp16_flops_per_s,
            Precision.BF16: self.bf16_flops_per_s,
        }
        return peaks.get(precision)

    def tensor_flops_per_s(self, precision: Precision) -> float | None:
        """Dense peak of tensor cores, or of a CPU's matrix units, in a precision; None without one.

        In FP32 it is that of TF32, which a runtime may take for FP32 products.
        """
        peaks = {
            Precision.FP32: self.tf32_flops_per_s,
            Precision.FP16: self.fp16_tensor_flops_per_s,
            Precision.BF16: self.bf16_tensor_flops_per_s,
        }
        return peaks.get(precision)
