"""Convolutions that OpenVINO's plugin gets wrong, crashes on, or takes far too long for, in other forms."""

from functools import cache
from typing import Any

import numpy as np

from campo_onnx.hardware.processor import this_processor
from campo_onnx.runtime.openvino.installed import ov
from campo_onnx.runtime.openvino.rewriting import numbers, rank_of, replace, sizes_of

CONVOLUTIONS = {"Convolution": "convolution", "GroupConvolution": "group_convolution"}
GROUPED = frozenset({"GroupConvolution", "GroupConvolutionBackpropData"})
_TILE_DEPTH = 32  # numbers in BF16 that a row of a tile of AMX holds
_WIDE_KERNEL, _NARROW_RESULT = 96, 4


@cache
def _has_tiles() -> bool:
    """Whether BF16 runs on AMX here, or may: outside Linux nobody tells."""
    processor = this_processor()
    return processor is None or "amx_bf16" in processor.features


def has_open_window(node: Any) -> bool:
    """Say whether a convolution or pool reads images whose sizes are known when a step runs.

    Those of a batch may be. Forms that are repaired are told by the other sizes.
    """
    images, weights = [node.input_value(0), node.output(0)], list(node.input_values()[1:2])
    if None in map(rank_of, images + weights):
        return True
    sizes = [size for port in images for size in sizes_of(port)[1:]]
    return None in sizes + [size for port in weights for size in sizes_of(port)]


def repair_convolution(node: Any) -> None:
    """Write a convolution in a form that the plugin computes rightly.

    It ends the process where a window reads nothing but padding, and in BF16 is wrong over groups of images
    of one plane: there padding becomes zeros of the data. Elsewhere zeros are added to the end of the kernel.
    The stride of a kernel of one number moves to the convolution or pool before it, pads or not, which then
    takes other numbers. Where each row of the result is one column, on tiles or of one channel, the stride is
    taken for the distance between rows. Where channels are few, a whole row of the kernel is multiplied at
    once on tiles, and if it fills them, weights are laid out otherwise than they are read.

    Elsewhere BF16 takes 1.5 to 5 times as long as FP32 for one channel under a kernel of 96 columns and more,
    unless the result has four columns at most: a weight's gradient at a batch of one. FP32 computes that.
    """
    data, weights = node.input_values()
    if has_open_window(node):  # which is refused
        return
    is_low, is_grouped = node.get_element_type() == ov.Type.bf16, node.get_type_name() == "GroupConvolution"
    runs_on_tiles = is_low and _has_tiles()
    settings = node.get_attributes()
    strides, begins, ends = (list(settings[name]) for name in ("strides", "pads_begin", "pads_end"))
    dilations, rank = settings["dilations"], len(strides)
    channels, *kernel = weights.get_shape()[-1 - rank :]
    image, results = (
        [size for size in sizes_of(port)[2:] if size is not None] for port in (data, node.output(0))
    )
    is_plane = is_low and is_grouped and rank == 3 and image[0] == 1 < kernel[0]
    if is_plane or any(map(_is_blind, image, kernel, results, strides, dilations, begins)):
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True), start=2):
            data = _with_zeros(data, axis, begin, end)
        begins, ends = [0] * rank, [0] * rank
    longer = list(kernel)
    if results[-1] == 1 and strides[-1] > 1 and max(results) > 1 and (runs_on_tiles or channels == 1):
        width = data.get_partial_shape()[-1].get_length() + begins[-1] + ends[-1]
        longer[-1] = 1 + -(-(width - 1) // dilations[-1])
        ends[-1] += (longer[-1] - 1) * dilations[-1] + 1 - width
        strides[-1] = 1
    axes = zip(strides, begins, ends, strict=True)
    is_padded = any(stride > 1 and begin + end for stride, begin, end in axes)
    if is_padded and set(longer) == {1} and not is_grouped:
        longer[-1] += 1
        ends[-1] += dilations[-1]
    axis = -1 if longer[-1] > 1 or rank == 1 else -2
    depth = channels * longer[axis]
    is_few = channels % 2 == 0 and channels < _TILE_DEPTH // 2
    fills_tiles = dilations[axis] == 1 and depth > _TILE_DEPTH and depth % _TILE_DEPTH == 0
    if runs_on_tiles and is_few and fills_tiles:
        longer[axis] += 1
        ends[axis] += 1
    if longer != kernel:
        weights = _with_zeros(weights, axis, 0, longer[axis] - kernel[axis])
    form = strides, begins, ends
    is_slow = longer[-1] >= _WIDE_KERNEL and results[-1] > _NARROW_RESULT
    if is_low and not runs_on_tiles and not is_grouped and rank == 2 and channels == 1 and is_slow:
        data, weights = (ov.opset13.convert(tensor, "f32") for tensor in (data, weights))
        wide = ov.opset13.convolution(data, weights, *form, dilations)
        replace(node, ov.opset13.convert(wide, "bf16"))
    elif longer != kernel or form != tuple(settings[name] for name in ("strides", "pads_begin", "pads_end")):
        write = getattr(ov.opset13, CONVOLUTIONS[node.get_type_name()])
        replace(node, write(data, weights, *form, dilations))


def _with_zeros(tensor: Any, axis: int, begin: int, end: int) -> Any:
    """Write zeros around a tensor along an axis; a Pad in front of a convolution becomes its padding.

    The first dimension alone may be one that is known when a step runs.
    """

    def zeros(size: int) -> list[Any]:
        rows, *sizes = sizes_of(tensor)
        shape = [1 if rows is None else rows, *sizes]
        shape[axis] = size
        written = numbers(tensor.get_element_type(), np.zeros(shape))
        if rows is None:
            first = ov.opset13.constant(np.array([0]))
            count = ov.opset13.gather(ov.opset13.shape_of(tensor), first, ov.opset13.constant(0))
            ones = ov.opset13.constant(np.ones(len(sizes), np.int64))
            written = ov.opset13.tile(written, ov.opset13.concat([count, ones], 0))
        return [written] if size else []

    parts = [*zeros(begin), tensor, *zeros(end)]
    return ov.opset13.concat(parts, axis).output(0) if begin or end else tensor


def _is_blind(size: int, kernel: int, results: int, stride: int, dilation: int, begin: int) -> bool:
    """Whether a window reads nothing but padding along an axis."""
    starts = np.arange(results) * stride - begin
    places = starts[:, None] + np.arange(kernel) * dilation
    return bool(((places < 0) | (places >= size)).all(axis=1).any())


def part_group_weights(graph: Any) -> None:
    """Let grouped convolutions that share weights reshape them differently, so that each keeps its Reshape.

    A factor behind the convolution is multiplied into the weights in front of the Reshape, for everybody who
    reads that: the gradient of the input would get the factor of the forward pass. Equal ones become one.
    """
    readers: dict[tuple[str, int], int] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() not in GROUPED:
            continue
        reshape = node.input_value(1).get_node()
        if reshape.get_type_name() != "Reshape" or not reshape.get_output_partial_shape(0).is_static:
            continue
        source = reshape.input_value(0)
        key = (source.get_node().get_name(), source.get_index())
        shape = list(reshape.get_output_shape(0))
        inferred, keeps_zeros = readers.get(key, 0) % len(shape), readers.get(key, 0) // len(shape) % 2
        readers[key] = readers.get(key, 0) + 1
        shape[inferred] = -1
        own = ov.opset13.reshape(source, ov.opset13.constant(np.array(shape)), bool(keeps_zeros))
        node.input(1).replace_source_output(own.output(0))
