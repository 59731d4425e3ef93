"""Nodes as they occur in the layers of real networks: a generator of samples for each op."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.calibrate.networks import (
    ATTENTION,
    Random,
    Shape,
    activation,
    aligned_or_not,
    convolution,
    dense,
    feature_map,
    first_convolution,
    grouped_convolution,
    pick,
    tokens,
)
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import FLOAT, Signature, make_signature

Node: TypeAlias = Callable[[OpKey], Signature]
"""A node before its operator is named."""

Generator: TypeAlias = Callable[[Random, float], Node]


def _node(
    *inputs: Shape | tuple[int, Shape] | NDArray[Any],
    to: Shape | Sequence[Shape],
    dtype: int = FLOAT,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Node:
    """Put a node together; inputs are FP32 by their shapes, of another type, or constants."""
    outputs: Any = to if isinstance(to, list) else (to,)
    return partial(
        make_signature,
        inputs=[_typed(one) for one in inputs],
        outputs=[(dtype, shape) for shape in outputs],
        attributes={**attributes, **more},
        constants={i: one for i, one in enumerate(inputs) if isinstance(one, np.ndarray)},
    )


def _typed(value: Any) -> tuple[int, Shape]:
    if isinstance(value, np.ndarray):
        return int(helper.np_dtype_to_tensor_dtype(value.dtype)), value.shape
    return value if value and isinstance(value[-1], tuple) else (FLOAT, value)


def _ints(*values: int) -> NDArray[np.int64]:
    return np.asarray(values, np.int64)


def _number(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)


def _of_shape(draw: Callable[[Random, float], Shape], write: Callable[[Shape], Node]) -> Generator:
    """Draw nodes that a shape tells all of."""
    return lambda random, target: write(draw(random, target))


_unary = _of_shape(activation, lambda shape: _node(shape, to=shape))
_clip = _of_shape(activation, lambda shape: _node(shape, _number(0.0), _number(6.0), to=shape))
_expand = _of_shape(activation, lambda shape: _node((*shape[:-1], 1), _ints(*shape), to=shape))
_global_pool = _of_shape(feature_map, lambda shape: _node(shape, to=(*shape[:2], 1, 1)))
_batch_normalization = _of_shape(feature_map, lambda shape: _node(shape, *[shape[1:2]] * 4, to=shape))
_rows = _of_shape(tokens, lambda shape: _node(shape, to=shape, axis=-1))
_layer_normalization = _of_shape(tokens, lambda shape: _node(shape, *[shape[-1:]] * 2, to=shape, axis=-1))


def _binary(random: Random, target: float, output_dtype: int = FLOAT) -> Node:
    """Two tensors, a tensor and a bias, a tensor and a scalar."""
    shape = activation(random, target)
    channel = 1 if len(shape) == 4 else len(shape) - 1
    bias = tuple(size if i == channel else 1 for i, size in enumerate(shape))
    return _node(shape, pick(random, (shape, shape, bias, ())), to=shape, dtype=output_dtype)


def _power(random: Random, target: float) -> Node:
    shape = activation(random, target)
    return _node(shape, _number(pick(random, (2.0, 3.0, 0.5))), to=shape)


def _where(random: Random, target: float) -> Node:
    shape = activation(random, target)
    return _node((int(TensorProto.BOOL), shape), shape, pick(random, (shape, ())), to=shape)


def _matmul(random: Random, target: float) -> Node:
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
        return _node(a, b, to=(*a[:-1], b[-1]))
    rows, k, n = dense(random, target)
    return _node((rows, k), (k, n), to=(rows, n))


def _gemm(random: Random, target: float) -> Node:
    rows, k, n = dense(random, target)
    transposed = int(random.integers(2))
    return _node((rows, k), (n, k) if transposed else (k, n), (n,), to=(rows, n), transB=transposed)


def _gradient_product(random: Random, target: float) -> Node:
    """Draw the gradient of a convolution's weight or data, by what its taps see."""
    (batch, channels, size, _), (filters, _, kernel, _), pad, stride = convolution(random, target)
    positions, seen = batch * ((size + 2 * pad - kernel) // stride + 1) ** 2, channels * kernel**2
    m, k, n = pick(random, ((filters, positions, seen), (positions, filters, seen)))
    return _node((m, k), (k, n), to=(m, n))


def _weight_gradient(random: Random, target: float) -> Node:
    """Draw the gradient of a dense layer's weight."""
    rows, k, n = dense(random, target)
    return _node((rows, k), (rows, n), to=(k, n), transA=1, transB=0)


def _conv_transpose(random: Random, target: float) -> Node:
    data, (filters, channels, kernel, _), pad, stride = convolution(random, target)
    size = stride * (data[2] - 1) + kernel - 2 * pad
    weight, result = (channels, filters, kernel, kernel), (data[0], filters, size, size)
    return _node(data, weight, to=result, attributes=_window(kernel, pad, stride))


def _grouped_conv(random: Random, target: float) -> Node:
    data, weight, pad, stride, groups = grouped_convolution(random, target)
    return _convolved(data, weight, pad, stride, group=groups)


def _grouped_conv_transpose(random: Random, target: float) -> Node:
    """Draw what gives the gradient of the data of a grouped convolution."""
    data, weight, pad, stride, groups = grouped_convolution(random, target)
    size = (data[2] + 2 * pad - weight[2]) // stride + 1
    restored = stride * (size - 1) + weight[2] - 2 * pad
    image, result = (data[0], weight[0], size, size), (*data[:2], restored, restored)
    return _node(image, weight, to=result, attributes=_window(weight[2], pad, stride), group=groups)


def _kernel_gradient(random: Random, target: float) -> Node:
    """Draw the gradient of a convolution's weight, whose kernel is as large as an image."""
    if random.random() < 0.5:
        (batch, channels, size, _), (filters, _, kernel, _), pad, stride = convolution(random, target)
        return _of_images((channels, batch, size), filters, kernel, pad, stride)
    (batch, filters, size, _), (_, width, kernel, _), pad, stride, groups = grouped_convolution(
        random, target
    )
    return _of_images((width, groups * batch, size), filters, kernel, pad, stride, groups)


def _thin_gradient(random: Random, target: float) -> Node:
    """Draw the gradient of a first layer's weight at a batch of one to three: it adds up so many channels."""
    channels, filters, size, kernel, stride = first_convolution(random, target)
    return _of_images((channels, int(random.integers(1, 4)), size), filters, kernel, kernel // 2, stride)


def _of_images(
    data: tuple[int, int, int], filters: int, kernel: int, pad: int, stride: int, groups: int = 1
) -> Node:
    """Write a weight's gradient as a convolution of square images (channels, batch, size).

    Its kernels are the gradients of what the layer makes of them; a batch counts the images of all groups.
    """
    channels, batch, size = data
    image = (size + 2 * pad - kernel) // stride + 1
    taps = size + 2 * pad - stride * (image - 1)
    window = {"kernel_shape": [image] * 2, "pads": [pad] * 4, "dilations": [stride] * 2, "group": groups}
    gradient, result = (filters, batch // groups, image, image), (channels, filters, taps, taps)
    return _node((channels, batch, size, size), gradient, to=result, attributes=window)


def _convolved(data: Shape, weight: Shape, pad: int, stride: int, **more: int) -> Node:
    size = (data[2] + 2 * pad - weight[2]) // stride + 1
    result = (data[0], weight[0], size, size)
    return _node(data, weight, to=result, attributes=_window(weight[2], pad, stride), **more)


def _window(kernel: int, pad: int, stride: int) -> dict[str, Any]:
    return {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}


def _pool(random: Random, target: float) -> Node:
    shape = feature_map(random, target)
    kernel, stride = pick(random, ((2, 2), (3, 2), (3, 1)))
    size = (shape[2] - kernel) // stride + 1
    return _node(shape, to=(*shape[:2], size, size), kernel_shape=[kernel] * 2, strides=[stride] * 2)


def _reduction(random: Random, target: float) -> Node:
    shape = activation(random, target)
    axes = pick(random, ([0, 2, 3], [2, 3], [1]) if len(shape) == 4 else ([2], [0, 1], [0]))
    reduced = tuple(1 if i in axes else size for i, size in enumerate(shape))
    return _node(shape, _ints(*axes), to=reduced, keepdims=1)


def _transpose(random: Random, target: float) -> Node:
    shape = activation(random, target)
    perms = (
        ([0, 2, 3, 1], [1, 0, 2, 3], [0, 2, 1, 3]) if len(shape) == 4 else ([0, 2, 1], [1, 0, 2], [2, 1, 0])
    )
    perm = pick(random, perms)
    return _node(shape, to=tuple(shape[i] for i in perm), perm=perm)


def _concat(random: Random, target: float) -> Node:
    parts = int(random.integers(2, 5))
    shape = activation(random, target / parts)
    return _node(*[shape] * parts, to=(shape[0], shape[1] * parts, *shape[2:]), axis=1)


def _split(random: Random, target: float) -> Node:
    batch, sequence, width = tokens(random, target)
    parts = int(random.integers(2, 4))
    each = [(batch, sequence, width)] * parts
    return _node((batch, sequence, width * parts), to=each, axis=2, num_outputs=parts)


def _slice(random: Random, target: float) -> Node:
    shape = activation(random, target)
    start, end = shape[-1] // 4, shape[-1]
    return _node(shape, _ints(start), _ints(end), _ints(len(shape) - 1), to=(*shape[:-1], end - start))


def _pad(random: Random, target: float) -> Node:
    shape = feature_map(random, target)
    return _node(shape, _ints(0, 0, 1, 1, 0, 0, 1, 1), to=(*shape[:2], shape[2] + 2, shape[3] + 2))


def _gather(random: Random, target: float) -> Node:
    batch, sequence, width = tokens(random, target)
    table = (int(pick(random, (1000, 8192, 30522))), width)
    return _node(table, (int(TensorProto.INT64), (batch, sequence)), to=(batch, sequence, width))


_COMPARE = partial(_binary, output_dtype=int(TensorProto.BOOL))

_Rows: TypeAlias = tuple[tuple[Generator, str], ...]

_QUICK: _Rows = (
    (_matmul, "MatMul"),
    (_gemm, "Gemm"),
    (lambda random, target: _convolved(*convolution(random, target)), "Conv"),
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

FURTHER_ON_CPU: Mapping[str, tuple[Generator, ...]] = MappingProxyType(
    {
        "MatMul": (_gradient_product,),
        "Gemm": (_weight_gradient,),
        "Conv": (_grouped_conv, _kernel_gradient, _thin_gradient),
        "ConvTranspose": (_grouped_conv_transpose,),
    }
)
FURTHER_ON_GPU: Mapping[str, tuple[Generator, ...]] = MappingProxyType({"Gemm": (_weight_gradient,)})
"""By op label: what else is drawn, above all what gradients of weights are made of: on a CPU
also grouped and depthwise convolutions, on a GPU products that add up over all positions of a batch."""
