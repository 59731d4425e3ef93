"""The user's choices: the options of ``torch.compile``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import found_calibrations
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import DeviceUnavailableError, UsageError, did_you_mean
from campo_onnx.files import cache_folder
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.lists.list_file import resolve
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, strategy_called
from campo_onnx.planning.options import Options
from campo_onnx.runtime.choice import runtimes_on_cpu
from campo_onnx.runtime.machine import CPU, DEFAULT
from campo_onnx.runtime.registry import AUTO, check_precision, default_precision, runtime_called
from campo_onnx.targets.detect import resolve_target, this_cpu
from campo_onnx.targets.target import Target, target

TORCH = "torch"
"""Torch's own compiler runs the graph, with the plan as a pass in it."""

_FALLBACKS = ("torch", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The backend's options.

    Raises UsageError if a name is unknown, or a value is none that the option takes; DeviceUnavailableError
    if the runtime cannot be used here.
    """

    # device to plan for: a name, `"auto"` for the one that the tensors are on, or a
    # `campo_onnx.targets.target.Target`
    device: str | Target = "auto"
    strategy: str = DEFAULT_STRATEGY  # name of a strategy
    # op lists, or the name of a preset or path of a list file; None takes the strategy's own
    lists: str | OpLists | None = None
    # the low precision: `"fp16"` or `"bf16"`; None takes FP16, or BF16 in a runtime without FP16
    precision: str | Precision | None = None
    keep_fp32: tuple[str, ...] = ()  # regular expressions for names or operators of nodes that stay FP32
    # folder that keeps plans and measured choices of runtimes, so that the same step is neither planned nor
    # measured again; `"auto"` is one of the user's cache, None for none
    plans: str | Path | None = AUTO
    # what becomes of operations that cannot be translated: `"torch"` runs them, `"error"` refuses the model
    fallback: str = "torch"
    # what runs graphs on a CPU: `"auto"` for the fastest of those that are installed, as measured for each
    # graph, `"onnxruntime"` or `"openvino"`. On CUDA it is ONNX Runtime. `"torch"` is torch's own compiler,
    # with the plan as a pass in it; beside it `lists`, `precision` (by default BF16) and `keep_fp32` count
    runtime: str = AUTO
    sessions: int = 32  # for how many sets of sizes a graph of dynamic sizes keeps its sessions

    def __post_init__(self) -> None:
        strategy_called(self.strategy)
        if isinstance(self.device, str) and self.device != "auto":
            target(self.device)
        if self.fallback not in _FALLBACKS:
            raise UsageError(
                f"unknown fallback {self.fallback!r}", remedy=did_you_mean(str(self.fallback), _FALLBACKS)
            )
        if not isinstance(self.sessions, int) or self.sessions < 1:
            raise UsageError(f"sessions is {self.sessions!r}", why="at least one must be kept")
        if isinstance(self.keep_fp32, str):
            raise UsageError("keep_fp32 is a single string", remedy="Give a list of regular expressions.")
        low = [p.value for p in low_precisions()]
        named = self.precision.value if isinstance(self.precision, Precision) else self.precision
        if named is not None and named not in low:
            raise UsageError(f"unknown precision {named!r}", remedy=did_you_mean(str(named), low))
        self._check_runtime()
        object.__setattr__(self, "keep_fp32", tuple(self.keep_fp32))

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> "Settings":
        """Read the options of ``torch.compile``."""
        names = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in names:
                raise UsageError(f"unknown option {name!r}", remedy=did_you_mean(str(name), names))
        return cls(**(options or {}))

    def _check_runtime(self) -> None:
        if self.runtime == TORCH:
            self._check_torch()
        if self.runtime in (AUTO, TORCH):
            return
        chosen = runtime_called(self.runtime)
        if problem := chosen.problem(CPU):
            raise DeviceUnavailableError(f"{chosen.name} cannot be used", why=problem)
        if self._named_low is not None:
            check_precision(self._named_low, chosen.name)
        if not chosen.capabilities.takes_gpu_addresses and not self._is_of_a_cpu:
            raise UsageError(
                f"runtime is {chosen.name!r} and device {self.device!r}",
                why=f"{chosen.name} runs plans for CPUs here",
                remedy='Leave device at "auto", or name a CPU (campo-onnx devices lists them).',
            )

    def _check_torch(self) -> None:
        """Refuse what says how sessions are made: there are none."""
        counted = ("runtime", "lists", "precision", "keep_fp32")
        more = [f.name for f in fields(self) if f.name not in counted and getattr(self, f.name) != f.default]
        if more:
            raise UsageError(
                f"runtime is {TORCH!r}, which does not take {', '.join(more)}",
                why="torch's own compiler runs the graph, on the device that its tensors are on",
                remedy=f"Leave it out; {', '.join(counted[1:])} count.",
            )

    @property
    def _is_of_a_cpu(self) -> bool:
        """Whether plans may be for this machine's CPU, or are for another one."""
        device = self.device
        if isinstance(device, str):
            return device == AUTO or not target(device).hardware.is_gpu
        return not device.hardware.is_gpu

    def runtimes(self, processor: str) -> tuple[str, ...]:
        """Names of the runtimes that may run a graph, the default first."""
        if processor != CPU or not self._is_of_a_cpu:
            return (DEFAULT,)
        if self.runtime != AUTO:
            return (self.runtime,)
        low = self._named_low
        return tuple(
            runtime.name
            for runtime in runtimes_on_cpu()
            if low is None or not runtime.capabilities.refusal(low)
        )

    @property
    def folder(self) -> Path | None:
        """Folder of plans and choices; None for none."""
        if self.plans == AUTO:
            return cache_folder() / "plans"
        return None if self.plans is None else Path(self.plans)

    def low(self, runtime: str = DEFAULT) -> Precision:
        """The low precision in a runtime."""
        return self._named_low or default_precision(runtime)

    @property
    def _named_low(self) -> Precision | None:
        named = self.precision
        return named if named is None or isinstance(named, Precision) else Precision(named)

    def options(self, provider: str, runtime: str = DEFAULT) -> Options:
        """Say what to plan with."""
        target, low = self._target(provider, runtime), self.low(runtime)
        costs, evidence = CostSource.DATASHEET, Evidence()
        if runtime != DEFAULT and (calibration := _calibration_of(target, low)) is not None:
            costs, evidence = CostSource.AUTO, Evidence(calibration=calibration)
        lists = self.lists or strategy_called(self.strategy).default_lists
        return Options(
            target=target,
            lists=lists if isinstance(lists, OpLists) else resolve(lists),
            strategy=self.strategy,
            low=low,
            keep_fp32=self.keep_fp32,
            costs=costs,
            evidence=evidence,
        )

    def _target(self, provider: str, runtime: str) -> Target:
        if not isinstance(self.device, str):
            return self.device if runtime == DEFAULT else Target.of(self.device.hardware, runtime)
        if self.device == "auto" and provider == CPU:
            return this_cpu(runtime)
        return resolve_target(self.device, runtime)[0]


def _calibration_of(target: Target, low: Precision) -> Calibration | None:
    """Find a calibration of a target."""
    return next((one.calibration for one in found_calibrations(target, low) if not one.refusal), None)
