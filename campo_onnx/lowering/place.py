"""The runtime and processor that a graph is lowered for."""

from dataclasses import dataclass, replace

from campo_onnx.builder.target import Target as Form
from campo_onnx.builder.target import target_here
from campo_onnx.hardware.datasheet import matching
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import DEFAULT, Machine
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.targets.detect import target_of
from campo_onnx.targets.target import Target
from campo_onnx.targets.target import target as target_called

CONVOLUTIONS_IN_BF16 = 22
"""The first opset in which Conv, ConvTranspose and pooling admit BF16."""

_SLOW_POOL_PLACES = frozenset({"openvino"})
"""Runtimes whose kernel of MaxPool with indices is a reference implementation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A runtime and the processor that it runs on.

    Parameters
    ----------
    runtime
        Name of the runtime.
    processor
        ``"cpu"`` or ``"cuda"``.
    opset
        The opset that the graph will have.
    target
        Whose figures choose among forms of one computation; None for those of any processor of its kind.
    sizes_change
        Whether the graph is to be the same at other sizes.
    """

    runtime: str
    processor: str
    opset: int = CONVOLUTIONS_IN_BF16
    target: Target | None = None
    sizes_change: bool = False

    @classmethod
    def of(cls, target: Target) -> "Place":
        """The runtime and the processor of a target."""
        return cls(runtime=target.runtime.name, processor=target.hardware.processor, target=target)

    @classmethod
    def on(cls, machine: Machine) -> "Place":
        """The runtime and the processor of a machine; of a GPU without figures, no more than that."""
        if machine.is_gpu and matching(machine.device) is None:
            return cls(runtime=machine.runtime, processor=machine.provider)
        return cls.of(target_of(machine))

    def runs(self, signature: Signature, opset: int | None = None) -> bool:
        """Whether the runtime takes a node in FP32, were its graph of an opset, by default :attr:`opset`."""
        at = replace(signature, opset=self.opset if opset is None else opset)
        return self._support(at, Precision.FP32) is not Support.REFUSED

    def computes(self, op_type: str, low: Precision, opset: int = CONVOLUTIONS_IN_BF16) -> bool:
        """Whether the runtime has a kernel of a standard operator in a low precision.

        Examples
        --------
        >>> cuda = Place(runtime="onnxruntime", processor="cuda")
        >>> cuda.computes("Conv", Precision.BF16), cuda.computes("Pad", Precision.BF16)
        (True, False)
        """
        support = self._support(make_signature(OpKey("", op_type), (), (), opset=opset), low)
        return support in (Support.NATIVE, Support.STORAGE)

    @property
    def operators(self) -> Form:
        """The operators that passes may write beside those of the standard."""
        if self.runtime != DEFAULT:
            return "standard"
        return target_here(self.processor, runtime_called(DEFAULT).installed)

    @property
    def figures(self) -> Target:
        """Figures to choose by among forms of one computation."""
        return self.target or target_called("v100" if self.processor == "cuda" else "cpu")

    @property
    def finds_places_slowly(self) -> bool:
        """Whether MaxPool with indices takes several times as long as comparisons do."""
        return self.runtime in _SLOW_POOL_PLACES

    def _support(self, signature: Signature, precision: Precision) -> Support:
        return runtime_called(self.runtime).support(signature, self.processor, precision)
