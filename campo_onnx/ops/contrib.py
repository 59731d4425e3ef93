"""The operators of ONNX Runtime's training build that ONNX has no schema for.

Which of their inputs and outputs share the data's type, probed against ONNX Runtime 1.19.2, the
last release with a training build.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision

ALL = range(1 << 16)
"""Every position of a variadic list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribPorts:
    """Positions that change type with the node, and the precisions the training build takes.

    Parameters
    ----------
    inputs, outputs
        Positions that share the data's type.
    training_kernels
        Low precisions the training build's schema admits; empty for an operator that the release
        wheels carry too (the kernel table knows those).
    """

    inputs: range | tuple[int, ...]
    outputs: range | tuple[int, ...] = (0,)
    training_kernels: frozenset[Precision] = frozenset()


_BOTH = frozenset({Precision.FP16, Precision.BF16})
_FP16 = frozenset({Precision.FP16})


def _training(
    inputs: range | tuple[int, ...], outputs: range | tuple[int, ...] = (0,), *, bf16: bool = True
) -> ContribPorts:
    return ContribPorts(inputs=inputs, outputs=outputs, training_kernels=_BOTH if bf16 else _FP16)


_MICROSOFT: dict[str, ContribPorts] = {
    "BatchNormInternal": _training((0,)),
    "BatchNormalizationGrad": _training((0, 1)),
    "BiasDropout": _training((0, 1, 2)),
    "BiasGelu": ContribPorts(inputs=(0, 1)),
    "BiasGeluGrad_dX": _training((0, 1, 2)),
    "ConcatTraining": _training(ALL),
    "ConvGrad": _training((0, 1, 2), (0, 1, 2), bf16=False),
    "DivGrad": _training((0, 1, 2), (0, 1), bf16=False),
    "DropoutGrad": _training((0,)),
    "FastGelu": ContribPorts(inputs=(0, 1)),
    "FastGeluGrad": _training((0, 1)),
    "FusedMatMul": ContribPorts(inputs=(0, 1)),
    "GatherGrad": _training((2,)),
    "Gelu": ContribPorts(inputs=(0,)),
    "GeluGrad": _training((0, 1)),
    "LayerNormalizationGrad": _training((0, 1, 2), (0, 1, 2)),
    "LogSoftmaxGrad_13": _training((0, 1)),
    "QuickGelu": ContribPorts(inputs=(0,)),
    "QuickGeluGrad": _training((0, 1)),
    "ReduceSumTraining": _training((0,), bf16=False),
    "ReluGrad": _training((0, 1)),
    "SigmoidGrad": _training((0, 1)),
    "SliceGrad": _training((0,)),
    "SoftmaxGrad_13": _training((0, 1)),
    "SplitTraining": _training((0,), ALL),
    "TanhGrad": _training((0, 1)),
    "TransposeMatMul": ContribPorts(inputs=(0, 1)),
}

CONTRIB_PORTS: Mapping[OpKey, ContribPorts] = MappingProxyType(
    {OpKey("com.microsoft", op_type): ports for op_type, ports in _MICROSOFT.items()}
    # ONNX Runtime registers MaxPool's gradient in the standard domain, where ONNX has no such op. It
    # has an FP32 kernel only: release 1.19.2 crashes on loading a graph with a low one.
    | {OpKey("", "MaxPoolGrad"): ContribPorts(inputs=(0,))}
)
