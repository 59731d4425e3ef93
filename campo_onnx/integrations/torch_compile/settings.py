"""What a user may choose: the options of ``torch.compile``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.hardware import datasheet
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.lists.list_file import resolve
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, strategy_called
from campo_onnx.planning.options import Options
from campo_onnx.targets.detect import resolve_target
from campo_onnx.targets.target import Target, target

_FALLBACKS = ("torch", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The backend's options.

    Parameters
    ----------
    device
        Device to plan for: a name, ``"auto"`` for the one that the tensors are on, or a
        :class:`~campo_onnx.targets.target.Target`.
    strategy
        Name of a strategy.
    lists
        Op lists, or the name of a preset or path of a list file; None takes the strategy's own.
    precision
        The low precision: ``"fp16"`` or ``"bf16"``.
    keep_fp32
        Regular expressions for names or operators of nodes that stay FP32.
    plans
        Folder that keeps plans, so that the same step is not planned again; None for none.
    fallback
        What becomes of operations that cannot be translated: ``"torch"`` runs them, ``"error"``
        refuses the model.
    sessions
        For how many sets of sizes a graph of dynamic sizes keeps its sessions.

    Raises
    ------
    UsageError
        If a name is unknown, or a value is none that the option takes.
    """

    device: str | Target = "auto"
    strategy: str = DEFAULT_STRATEGY
    lists: str | OpLists | None = None
    precision: str | Precision = Precision.FP16
    keep_fp32: tuple[str, ...] = ()
    plans: str | Path | None = None
    fallback: str = "torch"
    sessions: int = 32

    def __post_init__(self) -> None:
        strategy_called(self.strategy)
        if isinstance(self.device, str) and self.device != "auto":
            datasheet.device(self.device)
        if self.fallback not in _FALLBACKS:
            raise UsageError(
                f"unknown fallback {self.fallback!r}", remedy=did_you_mean(str(self.fallback), _FALLBACKS)
            )
        if not isinstance(self.sessions, int) or self.sessions < 1:
            raise UsageError(f"sessions is {self.sessions!r}", why="at least one must be kept")
        if isinstance(self.keep_fp32, str):
            raise UsageError("keep_fp32 is a single string", remedy="Give a list of regular expressions.")
        low = [p.value for p in low_precisions()]
        given = self.precision.value if isinstance(self.precision, Precision) else str(self.precision)
        if given not in low:
            raise UsageError(f"unknown precision {given!r}", remedy=did_you_mean(given, low))
        object.__setattr__(self, "keep_fp32", tuple(self.keep_fp32))

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> "Settings":
        """Read the options of ``torch.compile``.

        Raises
        ------
        UsageError
            If one is unknown, or not what it should be.
        """
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                raise UsageError(f"unknown option {name!r}", remedy=did_you_mean(str(name), known))
        return cls(**(options or {}))

    @property
    def low(self) -> Precision:
        """The low precision."""
        return self.precision if isinstance(self.precision, Precision) else Precision(self.precision)

    def options(self, provider: str) -> Options:
        """Say what to plan with.

        Parameters
        ----------
        provider
            Where the tensors are: ``"cpu"`` or ``"cuda"``.
        """
        lists = self.lists or strategy_called(self.strategy).default_lists
        return Options(
            target=self._target(provider),
            lists=lists if isinstance(lists, OpLists) else resolve(lists),
            strategy=self.strategy,
            low=self.low,
            keep_fp32=self.keep_fp32,
        )

    def _target(self, provider: str) -> Target:
        if not isinstance(self.device, str):
            return self.device
        if self.device == "auto" and provider == "cpu":
            return target("cpu")
        return resolve_target(self.device)[0]
