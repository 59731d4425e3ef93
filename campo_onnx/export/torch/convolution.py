"""Convolutions and their gradients.

The gradient of the input is a transposed convolution. That of the weight has two forms:

- ``"conv"``: a convolution of the input with the output's gradient as kernel, batch and channels
  swapped. One node, but its kernel is as large as an image.
- ``"matmul"``: the input as each tap of the kernel sees it, times the output's gradient. More nodes,
  but the work is one matrix product, the shape tensor cores are made for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from campo_onnx.export.compact import concat, crop, matmul, pad, reduce, reshape, transpose
from campo_onnx.export.graph import Graph
from campo_onnx.export.torch.operands import aten, pair
from campo_onnx.export.translation import Expected, Translation, table
from campo_onnx.export.value import Value

WeightGradient: TypeAlias = Literal["matmul", "conv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a kernel moves over an image; one number per spatial axis.

    Parameters
    ----------
    strides, pads, dilations
        As in ONNX, but with equal padding at both ends.
    groups
        Number of groups of channels.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def attributes(self) -> dict[str, Any]:
        """As attributes of Conv and ConvTranspose."""
        return {
            "strides": list(self.strides),
            "pads": [*self.pads, *self.pads],
            "dilations": list(self.dilations),
            "group": self.groups,
        }


def _convolution(
    g: Graph, expected: Expected, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int],
    groups: int,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    geometry = _geometry(count, stride, padding, dilation, groups)
    if transposed:
        extra = pair(output_padding, count)
        return g.op("ConvTranspose", x, weight, bias, output_padding=extra, **geometry.attributes)
    return g.op("Conv", x, weight, bias, **geometry.attributes)


def _geometry(
    count: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Geometry:
    strides, pads, dilations = (tuple(pair(values, count)) for values in (stride, padding, dilation))
    return Geometry(strides=strides, pads=pads, dilations=dilations, groups=groups)


def _convolution_backward(
    form: WeightGradient, g: Graph, expected: Expected, gradient: Value, x: Value, weight: Value,
    bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    geometry = _geometry(weight.rank - 2, stride, padding, dilation, groups)
    of_input = of_weight = of_bias = None
    if wanted[0] and transposed:
        of_input = g.op("Conv", gradient, weight, **geometry.attributes)
    elif wanted[0]:
        of_input = _input_gradient(g, gradient, x, weight, geometry)
    if wanted[1]:
        # In a transposed convolution the input and the output's gradient change roles.
        image, kernel = (gradient, x) if transposed else (x, gradient)
        of_weight = _weight_gradient(form, g, image, kernel, weight.shape, geometry)
    if wanted[2]:
        axes = [axis for axis in range(gradient.rank) if axis != 1]
        of_bias = reduce(g, "ReduceSum", gradient, axes, keepdims=False)
    return of_input, of_weight, of_bias


def _input_gradient(g: Graph, gradient: Value, x: Value, weight: Value, geometry: Geometry) -> Value:
    # Rows at the end that the strides never reached get no gradient: output_padding adds them.
    unreached = [
        n - ((o - 1) * s - 2 * p + d * (k - 1) + 1)
        for n, o, s, p, d, k in zip(
            x.shape[2:], gradient.shape[2:], geometry.strides, geometry.pads, geometry.dilations,
            weight.shape[2:], strict=True,
        )
    ]  # fmt: skip
    return g.op("ConvTranspose", gradient, weight, output_padding=unreached, **geometry.attributes)


def _weight_gradient(
    form: WeightGradient, g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry
) -> Value:
    if form == "matmul" and geometry.groups == 1:
        return _weight_gradient_by_matmul(g, x, gradient, shape, geometry)
    return _weight_gradient_by_conv(g, x, gradient, shape, geometry)


def _weight_gradient_by_matmul(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry
) -> Value:
    """Multiply (outputs, positions) by (positions, taps * channels)."""
    spatial = list(range(2, x.rank))
    sizes = gradient.shape[2:]
    padded = pad(g, x, (0, 0, *geometry.pads), (0, 0, *geometry.pads))
    columns = transpose(g, padded, [0, *spatial, 1])
    # One axis after the other: the taps of a k by k kernel take 2 k slices instead of k * k.
    for i, taps in enumerate(shape[2:]):
        columns = _gathered_taps(
            g, columns, i + 1, taps, sizes[i], geometry.strides[i], geometry.dilations[i]
        )
    columns = reshape(g, columns, (gradient.shape[0] * math.prod(sizes), columns.shape[-1]))
    rows = reshape(g, transpose(g, gradient, [0, *spatial, 1]), (columns.shape[0], shape[0]))
    product = matmul(g, transpose(g, rows, [1, 0]), columns)
    # The axis whose taps were gathered last is the outermost.
    by_tap = reshape(g, product, (shape[0], *shape[:1:-1], shape[1]))
    return transpose(g, by_tap, [0, x.rank - 1, *range(x.rank - 2, 0, -1)])


def _gathered_taps(
    g: Graph, image: Value, axis: int, taps: int, size: int, stride: int, dilation: int
) -> Value:
    """Lay what each tap of the kernel sees along `axis` side by side among the channels."""
    seen = []
    for tap in range(taps):
        starts, ends, steps = [0] * image.rank, list(image.shape), [1] * image.rank
        starts[axis], steps[axis] = tap * dilation, stride
        ends[axis] = starts[axis] + (size - 1) * stride + 1
        seen.append(crop(g, image, starts, ends, steps))
    return concat(g, seen, image.rank - 1)


def _weight_gradient_by_conv(
    g: Graph, x: Value, gradient: Value, shape: tuple[int, ...], geometry: Geometry
) -> Value:
    """Convolve the input with the gradient: batch and channels swap, and so do stride and dilation."""
    spatial, groups = list(range(2, x.rank)), geometry.groups
    batch, channels = x.shape[:2]
    split = reshape(g, x, (batch, groups, channels // groups, *x.shape[2:]))
    turned = transpose(g, split, [2, 1, 0, *(axis + 1 for axis in spatial)])
    image = reshape(g, turned, (channels // groups, groups * batch, *x.shape[2:]))
    # The end is padded, or cropped where no stride reached, so that as many taps come out as there are.
    ends = tuple(
        (k - 1) * d + (o - 1) * s + 1 - n - p
        for k, d, o, s, n, p in zip(
            shape[2:], geometry.dilations, gradient.shape[2:], geometry.strides, x.shape[2:], geometry.pads,
            strict=True,
        )
    )  # fmt: skip
    image = pad(g, image, (0,) * x.rank, (0, 0, *(min(0, end) for end in ends)))
    kernel = transpose(g, gradient, [1, 0, *spatial])
    taps = g.op(
        "Conv",
        image,
        kernel,
        strides=list(geometry.dilations),
        dilations=list(geometry.strides),
        pads=[*geometry.pads, *(max(0, end) for end in ends)],
        group=groups,
    )
    return transpose(g, taps, [1, 0, *spatial])


def translations(weight_gradient: WeightGradient) -> Mapping[Any, Translation]:
    """Give the translations with one form of the weight's gradient."""
    return table(
        (aten.convolution.default, _convolution),
        (aten.convolution_backward.default, partial(_convolution_backward, weight_gradient)),
    )
