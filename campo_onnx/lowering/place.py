"""The target that a graph is lowered for, and the opset that it will have."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from campo_onnx.builder.target import Target as Form
from campo_onnx.builder.target import target_here
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import CPU, Machine
from campo_onnx.targets.detect import target_or_any_gpu
from campo_onnx.targets.target import Target, target

CONVOLUTIONS_IN_BF16 = 22
"""The first opset in which Conv, ConvTranspose and pooling admit BF16."""


@dataclass(slots=True)
class Choices:
    """Choices among forms, made the first time and the same from then on."""

    _made: list[Any] = field(default_factory=list)
    _next: int | None = None

    def again(self) -> None:
        """Begin with the first choice, if there is one."""
        self._next = 0 if self._made else None

    def __call__(self, choose: Callable[[], Any]) -> Any:
        """Choose as the last time, which asked in the same order."""
        if self._next is None:
            self._made.append(choose())
            return self._made[-1]
        if self._next == len(self._made):
            raise UnsupportedModelError("other sizes have choices that the example has not")
        self._next += 1
        return self._made[self._next - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A target, and what a graph for it is to be."""

    target: Target
    opset: int = CONVOLUTIONS_IN_BF16
    sizes_change: bool = False
    choices: Choices | None = None  # choices that were made at other sizes

    @classmethod
    def on(cls, machine: Machine) -> "Place":
        """The runtime and the processor of a machine; of a GPU without figures, with those of any."""
        return cls(target=target_or_any_gpu(machine))

    @classmethod
    def on_a_cpu(cls) -> "Place":
        """The default runtime on any CPU, where graphs are emulated."""
        return cls(target=target(CPU))

    def runs(self, signature: Signature, opset: int | None = None) -> bool:
        """Whether the runtime takes a node in FP32, were its graph of an opset, by default :attr:`opset`."""
        at = replace(signature, opset=self.opset if opset is None else opset)
        return self._support(at, Precision.FP32) is not Support.REFUSED

    def computes(self, op_type: str, low: Precision, opset: int = CONVOLUTIONS_IN_BF16) -> bool:
        """Whether the runtime has a kernel of a standard operator in a low precision.

        >>> from campo_onnx.targets.target import target
        >>> cuda = Place(target=target("h200"))
        >>> cuda.computes("Conv", Precision.BF16), cuda.computes("Pad", Precision.BF16)
        (True, False)
        """
        support = self._support(make_signature(OpKey("", op_type), (), (), opset=opset), low)
        return support in (Support.NATIVE, Support.STORAGE)

    @property
    def operators(self) -> Form:
        """The operators that passes may write beside those of the standard."""
        runtime = self.target.runtime
        if not runtime.capabilities.own_operators:
            return "standard"
        return target_here(self.target.hardware.processor, runtime.installed)

    def _support(self, signature: Signature, precision: Precision) -> Support:
        return self.target.support(signature, precision)
