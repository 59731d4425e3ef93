"""Convolutions and their gradients, each in the form that takes the target the least time.

A portable step has Conv and ConvTranspose, and the gradient of a weight as a Conv whose kernel is the
gradient of what the convolution gave, with images and channels swapped::

    g (float[8, 64, 6, 6] x, float[8, 64, 6, 6] dy) => (float[64, 64, 3, 3] dw)
    {
        images = Transpose <perm = [1, 0, 2, 3]> (x)
        kernel = Transpose <perm = [1, 0, 2, 3]> (dy)
        taps = Conv <pads = [1, 1, 1, 1]> (images, kernel)
        dw = Transpose <perm = [1, 0, 2, 3]> (taps)
    }

becomes on ONNX Runtime's CPU provider, where `rows` numbers what each of the 3 x 3 taps reads::

    g (float[8, 64, 6, 6] x, float[8, 64, 6, 6] dy) => (float[64, 64, 3, 3] dw)
    {
        pixels = Pad (Transpose <perm = [0, 2, 3, 1]> (x), widths)
        columns = Reshape (Gather <axis = 1> (Reshape (pixels, by_image), rows), by_tap)
        lines = Reshape (Transpose <perm = [1, 0, 2]> (Reshape (dy, by_position)), by_output)
        dw = Transpose <perm = [0, 3, 1, 2]> (Reshape (MatMul (lines, columns), by_weight))
    }

:mod:`~campo_onnx.lowering.convolutions.conv_on_cpu` and
:mod:`~campo_onnx.lowering.convolutions.weight_gradient` list the forms.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx
from onnx import TensorProto

from campo_onnx.builder.compact import reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.importer import Imported
from campo_onnx.lowering.convolutions import conv_on_cpu
from campo_onnx.lowering.convolutions.patches import Geometry
from campo_onnx.lowering.convolutions.weight_gradient import weight_gradient
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import Rule, rebuilt
from campo_onnx.targets.target import Target


def convolutions(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write each convolution, and each gradient of one, in the form that is predicted to be fastest.

    For a GPU, which has kernels for the others, gradients of weights only. For a runtime that runs the
    portable form by kernels of its own, none.
    """
    device = place.target
    if device.runtime.capabilities.convolves_portable:
        return imported.model
    rules: dict[str, Rule] = {"Conv": partial(_convolution, device)}
    if not device.hardware.is_gpu:
        rules["ConvTranspose"] = partial(_transposed, device)
    return rebuilt(imported, rules, place)


def _convolution(device: Target, g: Graph, node: Node) -> Value | None:
    x, weight, *bias = node.inputs
    if x is None or weight is None or x.dtype != TensorProto.FLOAT:
        return None
    if not bias and (source := _weight_gradient(g, x, weight, node, device)) is not None:
        return source
    geometry = _geometry(node.attributes, weight.rank - 2)
    if geometry is None or device.hardware.is_gpu:
        return None
    return conv_on_cpu.forward(
        g, x, weight, bias[0] if bias else None, geometry, node.outputs[0].shape, device
    )


def _transposed(device: Target, g: Graph, node: Node) -> Value | None:
    gradient, weight, *bias = node.inputs
    if gradient is None or weight is None or gradient.dtype != TensorProto.FLOAT:
        return None
    geometry = _geometry(node.attributes, weight.rank - 2)
    if geometry is None or "output_shape" in node.attributes:
        return None
    shape = node.outputs[0].shape
    return conv_on_cpu.transposed(g, gradient, weight, bias[0] if bias else None, geometry, shape, device)


def _geometry(attributes: Mapping[str, Any], count: int) -> Geometry | None:
    """Give how a kernel moves; None where it is padded otherwise than equally at both ends."""
    geometry, pads = Geometry.of(attributes, count) or (None, ())
    return replace(geometry, pads=pads[:count]) if geometry and pads[:count] == pads[count:] else None


def _is_turned(g: Graph, image: Value, *, as_any: bool) -> bool:
    """Whether a tensor is another with its first two axes swapped, so that swapping it back takes no node.

    With `as_any`, whatever the order of the axes before: then it is another Transpose of the same tensor.
    """
    source = g.source(image)
    if source is None:
        return image.constant is not None
    if source.op_type == "Transpose":
        return as_any or list(source.attributes["perm"]) == [1, 0, *range(2, image.rank)]
    return min(image.shape[:2]) == 1 and source.op_type == "Reshape"


def _swapped(g: Graph, image: Value) -> Value:
    return transpose(g, image, [1, 0, *range(2, image.rank)])


def _weight_gradient(g: Graph, x: Value, kernel: Value, node: Node, device: Target) -> Value | None:
    """Write what a convolution gives that is the gradient of another's weight; None where it is not."""
    count, of = kernel.rank - 2, node.attributes
    groups, channels, result = int(of.get("group", 1)), x.shape[0], node.outputs[0].shape
    # Of several groups, the image says what it is.
    as_any = groups > 1 or math.prod(kernel.shape[2:]) > math.prod(result[2:])
    moves, pads = Geometry.of(of, count) or (None, ())
    if moves is None or not _is_turned(g, kernel, as_any=as_any):
        return None
    gradient = _swapped(g, kernel)
    strides, dilations, pads = moves.dilations, moves.strides, pads[:count]
    if groups > 1:
        image = _ungrouped(g, x, groups)
        if image is None or not (device.hardware.is_gpu or channels == 1):
            return None
    elif _is_turned(g, x, as_any=as_any):
        image = _uncropped(g, _swapped(g, x), gradient, result[2:], strides, dilations, pads)
    else:
        return None
    geometry = Geometry(strides=strides, pads=pads, dilations=dilations, groups=groups)
    shape = (gradient.shape[1], channels, *result[2:])
    return _swapped(g, weight_gradient(g, image, gradient, shape, geometry, device))


def _ungrouped(g: Graph, x: Value, groups: int) -> Value | None:
    """Give the images of which `x` has the channels of each group as a batch; None where it has not."""
    channels, images, *size = x.shape
    apart = reshape(g, x, (channels, groups, images // groups, *size))
    perm = [2, 1, 0, *range(3, apart.rank)]
    turn = g.producer(apart, "Transpose")
    if turn is None or list(turn.attributes["perm"]) != perm:
        return None
    return reshape(g, transpose(g, apart, perm), (images // groups, groups * channels, *size))


def _uncropped(
    g: Graph, image: Value, gradient: Value, taps: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[int],
) -> Value:  # fmt: skip
    """Give an image with the rows at the end that no stride reaches, which a portable step cuts off."""
    crop = g.producer(image, "Slice")
    whole = None if crop is None else crop.inputs[0]
    if crop is None or whole is None or len(crop.inputs) > 4:
        return image
    if any(v is None or v.constant is None for v in crop.inputs[1:]) or len(crop.inputs) < 4:
        return image
    starts, _, axes = (v.constant for v in crop.inputs[1:] if v is not None and v.constant is not None)
    reach = [
        (o - 1) * s + (k - 1) * d - p
        for o, s, k, d, p in zip(gradient.shape[2:], strides, taps, dilations, pads, strict=True)
    ]
    is_unread = all(last < n for last, n in zip(reach, image.shape[2:], strict=True))
    return whole if is_unread and not starts.any() and (axes >= 2).all() else image
