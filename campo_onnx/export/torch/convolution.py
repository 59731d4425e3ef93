"""Convolutions and their gradients.

The gradient of the input is a transposed convolution; :mod:`campo_onnx.lowering.convolutions` has that of the
weight, and what a CPU does faster.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from campo_onnx.builder.compact import sum_per_channel
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, pair
from campo_onnx.export.translation import Expected, Translation, UntranslatableError, table
from campo_onnx.lowering.convolutions import conv_on_cpu
from campo_onnx.lowering.convolutions.conv_on_cpu import input_gradient
from campo_onnx.lowering.convolutions.patches import Geometry
from campo_onnx.lowering.convolutions.weight_gradient import WeightGradient, weight_gradient
from campo_onnx.targets.target import Target, target


def _convolution(
    device: Target, g: Graph, expected: Expected, x: Value, weight: Value, bias: Value | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    geometry = _geometry(count, stride, padding, dilation, groups)
    if transposed and any(o >= s for o, s in zip(pair(output_padding, count), geometry.strides, strict=True)):
        # ONNX Runtime has no kernel for it, and the gradient would come out for a larger image.
        raise UntranslatableError(
            "output_padding that is not smaller than the stride",
            remedy="Give less of it, and pad the result with torch.nn.functional.pad.",
        )
    if _is_for_cpu(g, device):
        on_cpu = conv_on_cpu.transposed if transposed else conv_on_cpu.forward
        return on_cpu(g, x, weight, bias, geometry, expected.shape)
    if transposed:
        extra = pair(output_padding, count)
        return g.op("ConvTranspose", x, weight, bias, output_padding=extra, **geometry.attributes)
    return g.op("Conv", x, weight, bias, **geometry.attributes)


def _is_for_cpu(g: Graph, device: Target) -> bool:
    return g.target == "cpu" or (g.target != "cuda" and not device.hardware.is_gpu)


def _geometry(
    count: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Geometry:
    strides, pads, dilations = (tuple(pair(values, count)) for values in (stride, padding, dilation))
    return Geometry(strides=strides, pads=pads, dilations=dilations, groups=groups)


def _convolution_backward(
    form: WeightGradient, device: Target, g: Graph, expected: Expected, gradient: Value, x: Value,
    weight: Value, bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    geometry = _geometry(weight.rank - 2, stride, padding, dilation, groups)
    of_input = of_weight = of_bias = None
    if _is_for_cpu(g, device):
        device = target("cpu")
    if wanted[0] and _is_for_cpu(g, device):
        on_cpu = conv_on_cpu.forward if transposed else conv_on_cpu.transposed
        of_input = on_cpu(g, gradient, weight, None, geometry, x.shape)
    elif wanted[0] and transposed:
        of_input = g.op("Conv", gradient, weight, **geometry.attributes)
    elif wanted[0]:
        of_input = input_gradient(g, gradient, weight, geometry, x.shape)
    if wanted[1]:
        # In a transposed convolution the input and the output's gradient change roles.
        image, kernel = (gradient, x) if transposed else (x, gradient)
        of_weight = weight_gradient(form, g, image, kernel, weight.shape, geometry, device)
    if wanted[2]:
        of_bias = sum_per_channel(g, gradient)
    return of_input, of_weight, of_bias


def translations(weight_gradient: WeightGradient, device: Target) -> Mapping[Any, Translation]:
    """Give the translations with a form of the weight's gradient, chosen for a device."""
    return table(
        (aten.convolution.default, partial(_convolution, device)),
        (aten.convolution_backward.default, partial(_convolution_backward, weight_gradient, device)),
    )
