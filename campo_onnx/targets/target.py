"""A target: hardware, the runtime on it, and the time that the runtime adds to kernels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from campo_onnx.errors import ProfileError, UsageError
from campo_onnx.hardware import datasheet
from campo_onnx.hardware.datasheet import Assumption
from campo_onnx.hardware.hardware import CPU, CUDA, Hardware
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import Runtime, Support
from campo_onnx.runtime.overhead import CpuKernels
from campo_onnx.runtime.registry import AUTO, runtime_called, runtimes_for

if TYPE_CHECKING:
    from campo_onnx.ops.signature import Signature


Assumptions: TypeAlias = Mapping[str, Assumption]
"""Figures that no data sheet states, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Hardware, and the runtime on it. :meth:`of` fills in what the runtime says of itself.

    Raises ProfileError if a time is not positive.
    """

    hardware: Hardware  # the processor
    runtime: Runtime  # what runs graphs on it
    launch_us: float  # constant time of one more kernel in the step
    host_us: float  # time of a node that launches nothing, such as Reshape
    captures: bool = False  # whether steps run as captured CUDA graphs, which these two are of

    def __post_init__(self) -> None:
        for name in ("launch_us", "host_us"):
            time_us = getattr(self, name)
            if not (time_us > 0 and math.isfinite(time_us)):
                raise ProfileError(
                    f"{name} of {self.name!r} is {time_us}",
                    why="it must be positive",
                    remedy="Give a time in us.",
                )

    @classmethod
    def of(cls, hardware: Hardware, runtime: str | Runtime = AUTO) -> "Target":
        """Put a runtime on hardware, by default the first that has kernels for it.

        Raises UsageError if the runtime has no kernels for such hardware.
        """
        able = runtimes_for(hardware.processor)
        chosen = able[0] if runtime == AUTO else runtime
        chosen = runtime_called(chosen) if isinstance(chosen, str) else chosen
        if hardware.processor not in chosen.processors:
            kinds = " and ".join(chosen.processors)
            raise UsageError(
                f"{chosen.name} does not run on {hardware.name}",
                why=f"its kernels are for {kinds}, and {hardware.name} is {hardware.processor}",
                remedy=f"Choose --runtime {able[0].name}, or another device.",
            )
        overhead = chosen.overhead(hardware.processor)
        return cls(
            hardware=hardware,
            runtime=chosen,
            launch_us=overhead.launch_us.value,
            host_us=overhead.host_us.value,
        )

    @property
    def name(self) -> str:
        """Name of the hardware."""
        return self.hardware.name

    @property
    def assumptions(self) -> Assumptions:
        """Figures that no data sheet states, by name: the runtime's, then the hardware's."""
        added = self.runtime.overhead(self.hardware.processor)
        own = {"launch_us": added.launch_us, "host_us": added.host_us}
        return own | dict(datasheet.assumptions(self.name))

    @property
    def cpu_kernels(self) -> CpuKernels:
        """Figures of the runtime's kernels on this CPU.

        A CPU without figures of its own has those of any CPU, a runtime without has the default runtime's.
        """
        overheads = (runtime.overhead(CPU) for runtime in (self.runtime, runtime_called(AUTO)))
        tables = next(overhead.kernels for overhead in overheads if overhead.kernels)
        return tables.get(self.name, tables[datasheet.ANY_CPU])

    @property
    def can_capture(self) -> bool:
        """Whether the runtime can capture a step here as a CUDA graph."""
        return self.hardware.processor == CUDA and self.runtime.capabilities.captures

    @property
    def captured(self) -> "Target":
        """The same target, running steps as captured CUDA graphs: launches cost less, and views nothing."""
        overhead = self.runtime.overhead(self.hardware.processor, captured=True)
        return replace(
            self,
            launch_us=min(self.launch_us, overhead.launch_us.value),
            host_us=min(self.host_us, overhead.host_us.value),
            captures=True,
        )

    def computes_in(self, precision: Precision) -> bool:
        """Whether there is arithmetic in a precision that the runtime takes, not FP32 between Casts."""
        if precision is Precision.FP32:
            return True
        if self.runtime.capabilities.refusal(precision):
            return False
        return bool(
            self.hardware.vector_flops_per_s(precision) or self.hardware.tensor_flops_per_s(precision)
        )

    def tensor_flops_per_s(self, precision: Precision) -> float | None:
        """Peak of tensor cores, or of a CPU's matrix units, for products in a precision; None without one."""
        if precision is Precision.FP32 and not self.runtime.capabilities.multiplies_in_tf32:
            return None
        return self.hardware.tensor_flops_per_s(precision)

    def support(self, signature: "Signature", precision: Precision) -> Support:
        """Say how the runtime runs a node in a precision here."""
        return self.runtime.support(signature, self.hardware.processor, precision)

    def sums_low(self, signature: "Signature", precision: Precision) -> bool:
        """Whether the runtime accumulates a node's sums in a low precision itself."""
        return self.runtime.sums_low(signature, self.hardware.processor, precision)


def target(device: str, runtime: str = AUTO) -> Target:
    """Find hardware by its name, with a runtime on it.

    >>> target("h200").runtime.name, target("zen4", "openvino").launch_us
    ('onnxruntime', 4.0)
    """
    return Target.of(datasheet.device(device), runtime)


@cache
def targets() -> Mapping[str, Target]:
    """All devices that come with the program, by name, each with the first runtime that has kernels for it.

    >>> targets()["v100"] == target("v100")
    True
    """
    return MappingProxyType({name: Target.of(hardware) for name, hardware in datasheet.devices().items()})
