"""Nodes as they occur in the layers of real networks: a generator of samples for each op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.calibrate.networks import (
    ATTENTION,
    Random,
    Shape,
    activation,
    aligned_or_not,
    convolution,
    dense,
    feature_map,
    grouped_convolution,
    pick,
    tokens,
)
from campo_onnx.ir.view import FLOAT


@dataclass(frozen=True, kw_only=True)
class SampledNode:
    """A node before its tensors have names: types of inputs (None: left out) and outputs."""

    inputs: tuple[tuple[int, Shape] | None, ...]
    outputs: tuple[Shape, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, NDArray[Any]] = field(default_factory=dict)
    output_dtype: int = FLOAT

    def __post_init__(self) -> None:
        for name in ("attributes", "values"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


Generator: TypeAlias = Callable[[Random, float], SampledNode]


def _floats(*shapes: Shape) -> tuple[tuple[int, Shape], ...]:
    return tuple((FLOAT, shape) for shape in shapes)


def _ints(values: list[int]) -> tuple[tuple[int, Shape], NDArray[Any]]:
    return (int(TensorProto.INT64), (len(values),)), np.asarray(values, np.int64)


def _unary(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    return SampledNode(inputs=_floats(shape), outputs=(shape,))


def _binary(random: Random, target: float, output_dtype: int = FLOAT) -> SampledNode:
    """Two tensors, a tensor and a bias, a tensor and a scalar."""
    shape = activation(random, target)
    channel = 1 if len(shape) == 4 else len(shape) - 1
    bias = tuple(size if i == channel else 1 for i, size in enumerate(shape))
    other = pick(random, (shape, shape, bias, ()))
    return SampledNode(inputs=_floats(shape, other), outputs=(shape,), output_dtype=output_dtype)


def _power(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    value = np.asarray(pick(random, (2.0, 3.0, 0.5)), np.float32)
    return SampledNode(inputs=_floats(shape, ()), outputs=(shape,), values={1: value})


def _clip(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    low, high = np.asarray(0.0, np.float32), np.asarray(6.0, np.float32)
    return SampledNode(inputs=_floats(shape, (), ()), outputs=(shape,), values={1: low, 2: high})


def _where(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    condition = (int(TensorProto.BOOL), shape)
    return SampledNode(inputs=(condition, *_floats(shape, pick(random, (shape, ())))), outputs=(shape,))


def _matmul(random: Random, target: float) -> SampledNode:
    if random.random() < 0.5:
        heads, sequence, width = pick(random, ATTENTION)
        while heads * sequence * width > target and sequence > 16:
            sequence //= 2
        batch = max(1, round(target / (heads * sequence * width)))
        sequence, width = aligned_or_not(random, (sequence, width))
        if random.random() < 0.5:  # scores, else their product with the values
            a, b = (batch, heads, sequence, width), (batch, heads, width, sequence)
        else:
            a, b = (batch, heads, sequence, sequence), (batch, heads, sequence, width)
        return SampledNode(inputs=_floats(a, b), outputs=((*a[:-1], b[-1]),))
    rows, k, n = dense(random, target)
    return SampledNode(inputs=_floats((rows, k), (k, n)), outputs=((rows, n),))


def _gemm(random: Random, target: float) -> SampledNode:
    rows, k, n = dense(random, target)
    transposed = bool(random.integers(2))
    weight = (n, k) if transposed else (k, n)
    return SampledNode(
        inputs=_floats((rows, k), weight, (n,)), outputs=((rows, n),), attributes={"transB": int(transposed)}
    )


def _gradient_product(random: Random, target: float) -> SampledNode:
    """Draw the gradient of a convolution's weight or data, by what its taps see."""
    (batch, channels, size, _), (filters, _, kernel, _), pad, stride = convolution(random, target)
    positions, seen = batch * ((size + 2 * pad - kernel) // stride + 1) ** 2, channels * kernel**2
    m, k, n = pick(random, ((filters, positions, seen), (positions, filters, seen)))
    return SampledNode(inputs=_floats((m, k), (k, n)), outputs=((m, n),))


def _weight_gradient(random: Random, target: float) -> SampledNode:
    """Draw the gradient of a dense layer's weight."""
    rows, k, n = dense(random, target)
    return SampledNode(
        inputs=_floats((rows, k), (rows, n)), outputs=((k, n),), attributes={"transA": 1, "transB": 0}
    )


def _conv(random: Random, target: float) -> SampledNode:
    return _convolved(*convolution(random, target), {})


def _conv_transpose(random: Random, target: float) -> SampledNode:
    data, (filters, channels, kernel, _), pad, stride = convolution(random, target)
    size = stride * (data[2] - 1) + kernel - 2 * pad
    return SampledNode(
        inputs=_floats(data, (channels, filters, kernel, kernel)),
        outputs=((data[0], filters, size, size),),
        attributes=_window(kernel, pad, stride),
    )


def _grouped_conv(random: Random, target: float) -> SampledNode:
    data, weight, pad, stride, groups = grouped_convolution(random, target)
    return _convolved(data, weight, pad, stride, {"group": groups})


def _grouped_conv_transpose(random: Random, target: float) -> SampledNode:
    """Draw what gives the gradient of the data of a grouped convolution."""
    data, weight, pad, stride, groups = grouped_convolution(random, target)
    size = (data[2] + 2 * pad - weight[2]) // stride + 1
    restored = stride * (size - 1) + weight[2] - 2 * pad
    return SampledNode(
        inputs=_floats((data[0], weight[0], size, size), weight),
        outputs=((*data[:2], restored, restored),),
        attributes={**_window(weight[2], pad, stride), "group": groups},
    )


def _kernel_gradient(random: Random, target: float) -> SampledNode:
    """Draw the gradient of a convolution's weight, whose kernel is as large as an image."""
    if random.random() < 0.5:
        (batch, channels, size, _), (filters, _, kernel, _), pad, stride = convolution(random, target)
        data, groups = (channels, batch, size, size), 1
    else:
        (batch, filters, size, _), (_, width, kernel, _), pad, stride, groups = grouped_convolution(
            random, target
        )
        data = (width, groups * batch, size, size)
    image = (size + 2 * pad - kernel) // stride + 1
    taps = size + 2 * pad - stride * (image - 1)
    attributes = {"kernel_shape": [image] * 2, "pads": [pad] * 4, "dilations": [stride] * 2, "group": groups}
    return SampledNode(
        inputs=_floats(data, (filters, batch, image, image)),
        outputs=((data[0], filters, taps, taps),),
        attributes=attributes,
    )


def _convolved(data: Shape, weight: Shape, pad: int, stride: int, more: Mapping[str, int]) -> SampledNode:
    size = (data[2] + 2 * pad - weight[2]) // stride + 1
    return SampledNode(
        inputs=_floats(data, weight),
        outputs=((data[0], weight[0], size, size),),
        attributes={**_window(weight[2], pad, stride), **more},
    )


def _window(kernel: int, pad: int, stride: int) -> dict[str, Any]:
    return {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}


def _pool(random: Random, target: float) -> SampledNode:
    shape = feature_map(random, target)
    kernel, stride = pick(random, ((2, 2), (3, 2), (3, 1)))
    size = (shape[2] - kernel) // stride + 1
    return SampledNode(
        inputs=_floats(shape),
        outputs=((*shape[:2], size, size),),
        attributes={"kernel_shape": [kernel] * 2, "strides": [stride] * 2},
    )


def _global_pool(random: Random, target: float) -> SampledNode:
    shape = feature_map(random, target)
    return SampledNode(inputs=_floats(shape), outputs=((*shape[:2], 1, 1),))


def _batch_normalization(random: Random, target: float) -> SampledNode:
    shape = feature_map(random, target)
    statistics = _floats(*[(shape[1],)] * 4)
    return SampledNode(inputs=(*_floats(shape), *statistics), outputs=(shape,))


def _layer_normalization(random: Random, target: float) -> SampledNode:
    shape = tokens(random, target)
    return SampledNode(
        inputs=_floats(shape, shape[-1:], shape[-1:]), outputs=(shape,), attributes={"axis": -1}
    )


def _rows(random: Random, target: float) -> SampledNode:
    shape = tokens(random, target)
    return SampledNode(inputs=_floats(shape), outputs=(shape,), attributes={"axis": -1})


def _reduction(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    axes = pick(random, ([0, 2, 3], [2, 3], [1]) if len(shape) == 4 else ([2], [0, 1], [0]))
    reduced = tuple(1 if i in axes else size for i, size in enumerate(shape))
    entry, value = _ints(list(axes))
    return SampledNode(
        inputs=(*_floats(shape), entry), outputs=(reduced,), values={1: value}, attributes={"keepdims": 1}
    )


def _transpose(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    perms = (
        ([0, 2, 3, 1], [1, 0, 2, 3], [0, 2, 1, 3]) if len(shape) == 4 else ([0, 2, 1], [1, 0, 2], [2, 1, 0])
    )
    perm = pick(random, perms)
    return SampledNode(
        inputs=_floats(shape), outputs=(tuple(shape[i] for i in perm),), attributes={"perm": perm}
    )


def _concat(random: Random, target: float) -> SampledNode:
    parts = int(random.integers(2, 5))
    shape = activation(random, target / parts)
    joined = (shape[0], shape[1] * parts, *shape[2:])
    return SampledNode(inputs=_floats(*[shape] * parts), outputs=(joined,), attributes={"axis": 1})


def _split(random: Random, target: float) -> SampledNode:
    batch, sequence, width = tokens(random, target)
    parts = int(random.integers(2, 4))
    whole = (batch, sequence, width * parts)
    return SampledNode(
        inputs=_floats(whole),
        outputs=((batch, sequence, width),) * parts,
        attributes={"axis": 2, "num_outputs": parts},
    )


def _slice(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    axis = len(shape) - 1
    start, end = shape[axis] // 4, shape[axis]
    entries = [_ints([number]) for number in (start, end, axis)]
    return SampledNode(
        inputs=(*_floats(shape), *(entry for entry, _ in entries)),
        outputs=((*shape[:-1], end - start),),
        values={i: value for i, (_, value) in enumerate(entries, start=1)},
    )


def _expand(random: Random, target: float) -> SampledNode:
    shape = activation(random, target)
    source = tuple(1 if i == len(shape) - 1 else size for i, size in enumerate(shape))
    entry, value = _ints(list(shape))
    return SampledNode(inputs=(*_floats(source), entry), outputs=(shape,), values={1: value})


def _pad(random: Random, target: float) -> SampledNode:
    batch, channels, height, width = feature_map(random, target)
    entry, value = _ints([0, 0, 1, 1, 0, 0, 1, 1])
    return SampledNode(
        inputs=(*_floats((batch, channels, height, width)), entry),
        outputs=((batch, channels, height + 2, width + 2),),
        values={1: value},
    )


def _gather(random: Random, target: float) -> SampledNode:
    batch, sequence, width = tokens(random, target)
    table = (int(pick(random, (1000, 8192, 30522))), width)
    return SampledNode(
        inputs=(*_floats(table), (int(TensorProto.INT64), (batch, sequence))),
        outputs=((batch, sequence, width),),
    )


_COMPARE = partial(_binary, output_dtype=int(TensorProto.BOOL))

_Rows: TypeAlias = tuple[tuple[Generator, str], ...]

_QUICK: _Rows = (
    (_matmul, "MatMul"),
    (_gemm, "Gemm"),
    (_conv, "Conv"),
    (_conv_transpose, "ConvTranspose"),
    (_binary, "Add Mul Sub Div"),
    (_unary, "Relu Gelu"),
    (_rows, "Softmax LogSoftmax"),
    (_layer_normalization, "LayerNormalization"),
    (_batch_normalization, "BatchNormalization"),
    (_reduction, "ReduceSum ReduceMean"),
    (_transpose, "Transpose"),
    (_pool, "MaxPool"),
    (_where, "Where"),
    (_unary, "Erf Exp Sqrt Tanh Sigmoid Reciprocal Neg"),
    (_COMPARE, "LessOrEqual"),
)
_FURTHER: _Rows = (
    (_concat, "Concat"),
    (_unary, "Log LeakyRelu Elu Softplus Abs"),
    (_power, "Pow"),
    (_clip, "Clip"),
    (_pool, "AveragePool"),
    (_global_pool, "GlobalAveragePool"),
    (_reduction, "ReduceMax ReduceMin"),
    (_slice, "Slice"),
    (_split, "Split"),
    (_expand, "Expand"),
    (_pad, "Pad"),
    (_gather, "Gather"),
    (_binary, "Max Min"),
    (_COMPARE, "Less Greater Equal"),
)


def _labels(rows: _Rows) -> tuple[str, ...]:
    return tuple(label for _, labels in rows for label in labels.split())


QUICK_OPS = _labels(_QUICK)
"""Labels of the ops that training steps spend their time in: a short calibration measures these."""

SAMPLED_OPS = (*QUICK_OPS, *_labels(_FURTHER))
"""Labels of all ops that can be sampled, most important ones first."""

GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {label: generator for generator, labels in (*_QUICK, *_FURTHER) for label in labels.split()}
)
"""By op label: what draws a node of about so many elements."""

_FURTHER_ON_CPU: Mapping[str, tuple[Generator, ...]] = MappingProxyType(
    {
        "MatMul": (_gradient_product,),
        "Gemm": (_weight_gradient,),
        "Conv": (_grouped_conv, _kernel_gradient),
        "ConvTranspose": (_grouped_conv_transpose,),
    }
)
_FURTHER_ON_GPU: Mapping[str, tuple[Generator, ...]] = MappingProxyType({"Gemm": (_weight_gradient,)})
FURTHER = MappingProxyType({"cpu": _FURTHER_ON_CPU, "gpu": _FURTHER_ON_GPU})
"""By processor and op label: what else is drawn, above all what gradients of weights are made of: on a CPU
also grouped and depthwise convolutions, on a GPU products that add up over all positions of a batch. The
calibration of an H200 that has none predicts 228 us in FP16 for a product of which half took 40."""
