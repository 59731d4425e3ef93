"""Nodes as they occur in the layers of real networks, one maker per op, at about a given size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ir.view import FLOAT

Shape: TypeAlias = tuple[int, ...]
Random: TypeAlias = np.random.Generator

# (channels, height = width) of feature maps and (sequence, width) of token layers: ResNet-50, VGG-16,
# GoogLeNet, DenseNet-121, MobileNet, SSD, Mask R-CNN, U-Net, BERT base and large, RNN-T, DLRM.
_MAPS = (
    *((64, 112), (64, 56), (256, 56), (512, 28), (1024, 14), (2048, 7), (128, 28), (256, 14), (512, 7)),
    *((64, 224), (128, 112), (256, 28), (192, 28), (480, 14), (832, 7), (96, 35), (288, 35), (768, 17)),
    *((32, 112), (144, 56), (576, 14), (960, 7), (24, 56), (116, 28), (232, 14), (512, 38), (256, 19)),
)
_TOKENS = (
    *((128, 768), (128, 1024), (384, 768), (384, 1024), (512, 768), (128, 3072), (384, 4096), (64, 512)),
    *((1, 128), (1, 256), (1, 512), (1, 1024), (32, 320), (100, 1024), (16, 2048), (1, 4096)),
)
# (width in, width out) of dense layers.
_DENSE = (
    *((768, 768), (768, 3072), (3072, 768), (1024, 1024), (1024, 4096), (4096, 1024), (2048, 1000)),
    *((13, 512), (512, 256), (256, 64), (479, 1024), (1024, 1024), (1024, 512), (4096, 4096), (320, 1280)),
)
# (heads, sequence, width of a head) of attention.
_ATTENTION = (
    (12, 128, 64),
    (12, 384, 64),
    (16, 128, 64),
    (16, 384, 64),
    (8, 64, 64),
    (12, 512, 64),
    (16, 512, 80),
)
# (channels in, channels out, height = width, kernel, stride) of convolutions.
_CONVS = (
    *((3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 128, 56, 1, 1)),
    *((128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1), (512, 2048, 7, 1, 1)),
    *(
        (3, 64, 224, 3, 1),
        (64, 128, 112, 3, 1),
        (256, 512, 28, 3, 1),
        (3, 32, 149, 3, 2),
        (192, 64, 35, 1, 1),
    ),
    *(
        (48, 64, 35, 5, 1),
        (288, 384, 35, 3, 2),
        (128, 32, 28, 3, 1),
        (512, 128, 14, 1, 1),
        (96, 24, 56, 1, 1),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A node before its tensors have names: types of inputs (None: left out) and outputs."""

    inputs: tuple[tuple[int, Shape] | None, ...]
    outputs: tuple[Shape, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, NDArray[Any]] = field(default_factory=dict)
    output_dtype: int = FLOAT


Maker: TypeAlias = Callable[[Random, float], Draft]


def _floats(*shapes: Shape) -> tuple[tuple[int, Shape], ...]:
    return tuple((FLOAT, shape) for shape in shapes)


def _ints(values: list[int]) -> tuple[tuple[int, Shape], NDArray[Any]]:
    return (int(TensorProto.INT64), (len(values),)), np.asarray(values, np.int64)


def _pick(random: Random, table: tuple[Any, ...]) -> Any:
    return table[int(random.integers(len(table)))]


def _nudged(random: Random, size: int) -> int:
    """Every other size as it is, the others off the multiples of 8."""
    return size if random.random() < 0.5 or size < 16 else size - int(random.integers(1, 8))


def _together(random: Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every other time all on multiples of 8, as one size off them is enough to lose tensor cores."""
    if random.random() < 0.5:
        return tuple(-(-size // 8) * 8 for size in sizes)
    nudged = tuple(_nudged(random, size) for size in sizes)
    return nudged if nudged != sizes or any(size % 8 for size in sizes) else (*sizes[:-1], sizes[-1] + 1)


def _map(random: Random, target: float) -> Shape:
    """A feature map (N, C, H, W) of about `target` elements; small ones are cut, large ones batched."""
    channels, size = _pick(random, _MAPS)
    while channels * size * size > target and size > 4:
        size = max(4, size // 2)
    while channels * size * size > target and channels > 4:
        channels = max(4, channels // 2)
    return (max(1, round(target / (channels * size * size))), _nudged(random, channels), size, size)


def _tokens(random: Random, target: float) -> Shape:
    """Activations (B, S, W) of about `target` elements."""
    sequence, width = _pick(random, _TOKENS)
    while sequence * width > target and sequence > 1:
        sequence //= 2
    while sequence * width > target and width > 16:
        width //= 2
    return (max(1, round(target / (sequence * width))), sequence, _nudged(random, width))


def _any(random: Random, target: float) -> Shape:
    return _map(random, target) if random.random() < 0.5 else _tokens(random, target)


def _unary(random: Random, target: float, attributes: Mapping[str, Any] | None = None) -> Draft:
    shape = _any(random, target)
    return Draft(inputs=_floats(shape), outputs=(shape,), attributes=attributes or {})


def _binary(random: Random, target: float, output_dtype: int = FLOAT) -> Draft:
    """Two tensors, a tensor and a bias, a tensor and a scalar."""
    shape = _any(random, target)
    channel = 1 if len(shape) == 4 else len(shape) - 1
    bias = tuple(size if i == channel else 1 for i, size in enumerate(shape))
    other = _pick(random, (shape, shape, bias, ()))
    return Draft(inputs=_floats(shape, other), outputs=(shape,), output_dtype=output_dtype)


def _power(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    value = np.asarray(_pick(random, (2.0, 3.0, 0.5)), np.float32)
    return Draft(inputs=_floats(shape, ()), outputs=(shape,), values={1: value})


def _clip(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    low, high = np.asarray(0.0, np.float32), np.asarray(6.0, np.float32)
    return Draft(inputs=_floats(shape, (), ()), outputs=(shape,), values={1: low, 2: high})


def _where(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    condition = (int(TensorProto.BOOL), shape)
    return Draft(inputs=(condition, *_floats(shape, _pick(random, (shape, ())))), outputs=(shape,))


def _matmul(random: Random, target: float) -> Draft:
    if random.random() < 0.5:
        heads, sequence, width = _pick(random, _ATTENTION)
        while heads * sequence * width > target and sequence > 16:
            sequence //= 2
        batch = max(1, round(target / (heads * sequence * width)))
        sequence, width = _together(random, (sequence, width))
        if random.random() < 0.5:  # scores, else their product with the values
            a, b = (batch, heads, sequence, width), (batch, heads, width, sequence)
        else:
            a, b = (batch, heads, sequence, sequence), (batch, heads, sequence, width)
        return Draft(inputs=_floats(a, b), outputs=((*a[:-1], b[-1]),))
    rows, k, n = _dense(random, target)
    return Draft(inputs=_floats((rows, k), (k, n)), outputs=((rows, n),))


def _gemm(random: Random, target: float) -> Draft:
    rows, k, n = _dense(random, target)
    transposed = bool(random.integers(2))
    weight = (n, k) if transposed else (k, n)
    return Draft(
        inputs=_floats((rows, k), weight, (n,)), outputs=((rows, n),), attributes={"transB": int(transposed)}
    )


def _dense(random: Random, target: float) -> tuple[int, int, int]:
    k, n = _pick(random, _DENSE)
    while k * n > target and max(k, n) > 16:
        k, n = max(8, k // 2), max(8, n // 2)
    rows, k, n = _together(random, (max(1, round(target / max(k, n))), k, n))
    return rows, k, n


def _convolution(random: Random, target: float) -> tuple[Shape, Shape, int, int]:
    """Shapes of data and filters, padding and stride."""
    channels, filters, size, kernel, stride = _pick(random, _CONVS)
    while channels * size * size > target and size > 7:
        size = max(7, size // 2)
    while channels * size * size > target and channels > 8:
        channels, filters = max(8, channels // 2), max(8, filters // 2)
    batch = max(1, round(target / (channels * size * size)))
    channels, filters = _together(random, (channels, filters))
    return (batch, channels, size, size), (filters, channels, kernel, kernel), kernel // 2, stride


def _conv(random: Random, target: float) -> Draft:
    data, weight, pad, stride = _convolution(random, target)
    size = (data[2] + 2 * pad - weight[2]) // stride + 1
    return Draft(
        inputs=_floats(data, weight),
        outputs=((data[0], weight[0], size, size),),
        attributes={"kernel_shape": list(weight[2:]), "pads": [pad] * 4, "strides": [stride] * 2},
    )


def _conv_transpose(random: Random, target: float) -> Draft:
    data, weight, pad, stride = _convolution(random, target)
    filters, channels, kernel, _ = weight
    size = stride * (data[2] - 1) + kernel - 2 * pad
    return Draft(
        inputs=_floats(data, (channels, filters, kernel, kernel)),
        outputs=((data[0], filters, size, size),),
        attributes={"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2},
    )


def _pool(random: Random, target: float) -> Draft:
    shape = _map(random, target)
    kernel, stride = _pick(random, ((2, 2), (3, 2), (3, 1)))
    size = (shape[2] - kernel) // stride + 1
    return Draft(
        inputs=_floats(shape),
        outputs=((*shape[:2], size, size),),
        attributes={"kernel_shape": [kernel] * 2, "strides": [stride] * 2},
    )


def _global_pool(random: Random, target: float) -> Draft:
    shape = _map(random, target)
    return Draft(inputs=_floats(shape), outputs=((*shape[:2], 1, 1),))


def _batch_normalization(random: Random, target: float) -> Draft:
    shape = _map(random, target)
    statistics = _floats(*[(shape[1],)] * 4)
    return Draft(inputs=(*_floats(shape), *statistics), outputs=(shape,))


def _layer_normalization(random: Random, target: float) -> Draft:
    shape = _tokens(random, target)
    return Draft(inputs=_floats(shape, shape[-1:], shape[-1:]), outputs=(shape,), attributes={"axis": -1})


def _rows(random: Random, target: float) -> Draft:
    shape = _tokens(random, target)
    return Draft(inputs=_floats(shape), outputs=(shape,), attributes={"axis": -1})


def _reduction(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    axes = _pick(random, ([0, 2, 3], [2, 3], [1]) if len(shape) == 4 else ([2], [0, 1], [0]))
    kept = tuple(1 if i in axes else size for i, size in enumerate(shape))
    entry, value = _ints(list(axes))
    return Draft(
        inputs=(*_floats(shape), entry), outputs=(kept,), values={1: value}, attributes={"keepdims": 1}
    )


def _transpose(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    perms = (
        ([0, 2, 3, 1], [1, 0, 2, 3], [0, 2, 1, 3]) if len(shape) == 4 else ([0, 2, 1], [1, 0, 2], [2, 1, 0])
    )
    perm = _pick(random, perms)
    return Draft(inputs=_floats(shape), outputs=(tuple(shape[i] for i in perm),), attributes={"perm": perm})


def _concat(random: Random, target: float) -> Draft:
    parts = int(random.integers(2, 5))
    shape = _any(random, target / parts)
    joined = (shape[0], shape[1] * parts, *shape[2:])
    return Draft(inputs=_floats(*[shape] * parts), outputs=(joined,), attributes={"axis": 1})


def _split(random: Random, target: float) -> Draft:
    batch, sequence, width = _tokens(random, target)
    parts = int(random.integers(2, 4))
    whole = (batch, sequence, width * parts)
    return Draft(
        inputs=_floats(whole),
        outputs=((batch, sequence, width),) * parts,
        attributes={"axis": 2, "num_outputs": parts},
    )


def _slice(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    axis = len(shape) - 1
    start, end = shape[axis] // 4, shape[axis]
    entries = [_ints([number]) for number in (start, end, axis)]
    return Draft(
        inputs=(*_floats(shape), *(entry for entry, _ in entries)),
        outputs=((*shape[:-1], end - start),),
        values={i: value for i, (_, value) in enumerate(entries, start=1)},
    )


def _expand(random: Random, target: float) -> Draft:
    shape = _any(random, target)
    source = tuple(1 if i == len(shape) - 1 else size for i, size in enumerate(shape))
    entry, value = _ints(list(shape))
    return Draft(inputs=(*_floats(source), entry), outputs=(shape,), values={1: value})


def _pad(random: Random, target: float) -> Draft:
    batch, channels, height, width = _map(random, target)
    entry, value = _ints([0, 0, 1, 1, 0, 0, 1, 1])
    return Draft(
        inputs=(*_floats((batch, channels, height, width)), entry),
        outputs=((batch, channels, height + 2, width + 2),),
        values={1: value},
    )


def _gather(random: Random, target: float) -> Draft:
    batch, sequence, width = _tokens(random, target)
    table = (int(_pick(random, (1000, 8192, 30522))), width)
    return Draft(
        inputs=(*_floats(table), (int(TensorProto.INT64), (batch, sequence))),
        outputs=((batch, sequence, width),),
    )


_COMPARE = partial(_binary, output_dtype=int(TensorProto.BOOL))

# Most important ones first: a short calibration takes the head of the list.
_ROWS: tuple[tuple[Maker, str], ...] = (
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

MAKERS: Mapping[str, Maker] = MappingProxyType(
    {label: maker for maker, labels in _ROWS for label in labels.split()}
)
"""By op label: what makes a node of about so many elements."""
