"""Repairs of a graph that OpenVINO has read: forms that its plugin gets wrong, or takes far too long for."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.hardware.processor import this_processor
from campo_onnx.runtime.openvino.installed import ov

_BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
_CONVOLUTIONS = {"Convolution": "convolution", "GroupConvolution": "group_convolution"}
_GROUPED = frozenset({"GroupConvolution", "GroupConvolutionBackpropData"})
_ABOVE_MINUS_INFINITY = frozenset({"Relu", "Sigmoid", "Tanh", "Exp", "Softmax"})
_TILE_DEPTH = 32  # numbers in BF16 that a row of a tile of AMX holds
# Layouts of results as the plugin chooses them, and images that it takes long to copy from one to the other.
_CHANNELS_LAST = frozenset({*_CONVOLUTIONS, "ConvolutionBackpropData", *_GROUPED})
_PLANAR = frozenset({"MVN", "Reshape", "Softmax", "Transpose"})
_SLOW_CHANNELS, _SLOW_PIXELS = range(16, 65), 128
_WIDE_KERNEL, _NARROW_RESULT = 96, 4


def repair(graph: Any) -> None:
    """Write such forms in others that the plugin gets right and fast, in the bodies of a graph as well.

    The ``openvino.Model`` is changed in place. Names of nodes and tensors stay.
    """
    for node in graph.get_ops():
        for body in _bodies(node):
            repair(body)
        if node.get_type_name() == "Reshape" and _rank(node.output(0)) == 0:
            _squeeze(node)
        elif node.get_type_name() == "Convert":
            _round(node)
            _cast_apart(node)
        elif node.get_type_name() == "TopK":
            _stabilize(node)
        elif node.get_type_name() == "Loop":
            _keep_unread_states(node)
        elif _may_lose_infinity(node):
            _keep_infinity(node)
        elif node.get_type_name() in _CONVOLUTIONS:
            _repair_convolution(node)
    folding = ov.passes.Manager()
    folding.register_pass(ov.passes.ConstantFolding())
    folding.run_passes(graph)
    _part_constants(graph)
    _part_group_weights(graph)
    _transpose_images(graph)


def _squeeze(node: Any) -> None:
    """Write a Reshape to a scalar as Squeeze: behind a product it crashes the plugin, with the process."""
    source = node.input_value(0)
    if (rank := _rank(source)) is not None:
        _replace(node, ov.opset13.squeeze(source, ov.opset13.constant(np.arange(rank))))


def _round(node: Any) -> None:
    """Round a constant to BF16 to nearest: OpenVINO cuts bits off where the last one that stays is 0."""
    source = node.input_value(0).get_node()
    if (
        source.get_type_name() == "Constant"
        and source.get_element_type() == ov.Type.f32
        and node.get_element_type() == ov.Type.bf16
    ):
        _replace(node, _constant(ov.Type.bf16, source.data.astype(_BF16).view(np.float16)))


def _cast_apart(node: Any) -> None:
    """Cast the result of a Gather as one row of numbers, so that the plugin does not do it in the Gather.

    There it converts element by element, which takes 16 to 40 times as long as both nodes.
    """
    gather = node.input_value(0)
    kinds = gather.get_element_type(), node.get_element_type()
    is_static = gather.get_partial_shape().is_static
    if gather.get_node().get_type_name() == "Gather" and kinds == (ov.Type.bf16, ov.Type.f32) and is_static:
        shape = ov.opset13.constant(np.array(gather.get_shape(), np.int64))
        row = ov.opset13.reshape(gather, ov.opset13.constant(np.array([-1])), special_zero=False)
        _replace(node, ov.opset13.reshape(ov.opset13.convert(row, "f32"), shape, special_zero=False))


def _stabilize(node: Any) -> None:
    """Let the first of equal values come first, as ONNX has it."""
    settings = node.get_attributes()
    if settings["sort"] != "none":
        names = ("axis", "mode", "sort", "index_element_type")
        data, count = node.input_values()
        _replace(node, ov.opset13.topk(data, count, *(settings[name] for name in names), stable=True))


def _keep_unread_states(loop: Any) -> None:
    """Let the body read every state: the plugin drops the first value of others.

    A loop that takes no turn gives that. What is read is always true and chooses between a result and
    itself; nothing tells the plugin so.
    """
    body = loop.get_function()
    for description in loop.get_input_descriptions():
        place = getattr(description, "body_value_index", None)
        state = body.get_parameters()[description.body_parameter_index]
        if place is None or state.output(0).get_target_inputs():
            continue
        is_positive = ov.opset13.greater(ov.opset13.convert(state, "f32"), _numbers(ov.Type.f32, 0.0))
        either = ov.opset13.logical_or(is_positive, ov.opset13.logical_not(is_positive))
        row = ov.opset13.reshape(either, ov.opset13.constant(np.array([-1])), special_zero=False)
        is_true = ov.opset13.reduce_logical_and(row, ov.opset13.constant(np.arange(1)))
        result = body.get_results()[place]
        value = result.input_value(0)
        result.input(0).replace_source_output(ov.opset13.select(is_true, value, value).output(0))


def _may_lose_infinity(node: Any) -> bool:
    """Whether a reduction or pool begins with the largest or lowest finite number, and may end with it."""
    operator = node.get_type_name()
    if operator not in ("ReduceMax", "ReduceMin", "MaxPool"):
        return False
    kind, source = node.get_output_element_type(0), node.input_value(0).get_node().get_type_name()
    is_bounded = operator != "ReduceMin" and source in _ABOVE_MINUS_INFINITY
    begins_with_infinity = operator == "MaxPool" and kind == ov.Type.bf16
    return bool(kind.is_real()) and not is_bounded and not begins_with_infinity


def _keep_infinity(node: Any) -> None:
    """Let the maximum of nothing but -inf be -inf: the plugin begins with the lowest finite number.

    Halves are compared, of which no finite one is that low: twice the number that it begins with is -inf. A
    row of attention that is masked whole is told by its maximum. Its place is 0 there, wherever the row is,
    unless -inf is a number between those two.
    """
    kind, data = node.get_output_element_type(0), node.input_value(0)
    readers = node.output(0).get_target_inputs()
    halves = ov.opset13.multiply(data, _numbers(kind, 0.5))
    if len(node.outputs()) > 1 and node.output(1).get_target_inputs():
        halves = ov.opset13.maximum(halves, _numbers(kind, 0.75 * np.finfo(np.float32).min))
    node.input(0).replace_source_output(halves.output(0))
    whole = ov.opset13.multiply(node.output(0), _numbers(kind, 2.0))
    whole.set_friendly_name(node.get_friendly_name())
    names = node.output(0).get_names()
    for reader in readers:
        reader.replace_source_output(whole.output(0))
    node.output(0).set_names(set())
    whole.output(0).set_names(names)
    if not names:
        _subtract_finite(whole, data, readers)


def _subtract_finite(extreme: Any, data: Any, readers: Any) -> None:
    """Let ReduceLogSumExp of nothing but -inf be -inf: as OpenVINO reads it, -inf is subtracted from -inf.

    Only a maximum without a name is one that OpenVINO made for it. Clamped to the lowest finite number, the
    maximum leaves -inf as the differences, 0 as the sum of their exponentials, and -inf as its logarithm.
    """
    least, most = np.finfo(np.float32).min, np.finfo(np.float32).max
    for reader in readers:
        node = reader.get_node()
        if node.get_type_name() == "Subtract" and reader.get_index() == 1 and node.input_value(0) == data:
            reader.replace_source_output(ov.opset13.clamp(extreme, least, most).output(0))


@cache
def _has_tiles() -> bool:
    """Whether BF16 runs on AMX here, or may: outside Linux nobody tells."""
    processor = this_processor()
    return processor is None or "amx_bf16" in processor.features


def _repair_convolution(node: Any) -> None:
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
    if any(port.get_partial_shape().is_dynamic for port in (data, weights, node.output(0))):
        return
    is_low, is_grouped = node.get_element_type() == ov.Type.bf16, node.get_type_name() == "GroupConvolution"
    runs_on_tiles = is_low and _has_tiles()
    settings = node.get_attributes()
    strides, begins, ends = (list(settings[name]) for name in ("strides", "pads_begin", "pads_end"))
    dilations, rank = settings["dilations"], len(strides)
    channels, *kernel = weights.get_shape()[-1 - rank :]
    image, results = data.get_shape()[-rank:], node.get_output_shape(0)[-rank:]
    is_plane = is_low and is_grouped and rank == 3 and image[0] == 1 < kernel[0]
    if is_plane or any(map(_is_blind, image, kernel, results, strides, dilations, begins)):
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True), start=2):
            data = _with_zeros(data, axis, begin, end)
        begins, ends = [0] * rank, [0] * rank
    longer = list(kernel)
    if results[-1] == 1 and strides[-1] > 1 and max(results) > 1 and (runs_on_tiles or channels == 1):
        width = data.get_shape()[-1] + begins[-1] + ends[-1]
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
        _replace(node, ov.opset13.convert(wide, "bf16"))
    elif longer != kernel or form != tuple(settings[name] for name in ("strides", "pads_begin", "pads_end")):
        write = getattr(ov.opset13, _CONVOLUTIONS[node.get_type_name()])
        _replace(node, write(data, weights, *form, dilations))


def _with_zeros(tensor: Any, axis: int, begin: int, end: int) -> Any:
    """Write zeros around a tensor along an axis; a Pad in front of a convolution becomes its padding."""

    def zeros(size: int) -> list[Any]:
        shape = list(tensor.get_shape())
        shape[axis] = size
        return [_numbers(tensor.get_element_type(), np.zeros(shape))] if size else []

    parts = [*zeros(begin), tensor, *zeros(end)]
    return ov.opset13.concat(parts, axis).output(0) if begin or end else tensor


def _is_blind(size: int, kernel: int, results: int, stride: int, dilation: int, begin: int) -> bool:
    """Whether a window reads nothing but padding along an axis."""
    starts = np.arange(results) * stride - begin
    places = starts[:, None] + np.arange(kernel) * dilation
    return bool(((places < 0) | (places >= size)).all(axis=1).any())


def _part_group_weights(graph: Any) -> None:
    """Let grouped convolutions that share weights reshape them differently, so that each keeps its Reshape.

    A factor behind the convolution is multiplied into the weights in front of the Reshape, for everybody who
    reads that: the gradient of the input would get the factor of the forward pass. Equal ones become one.
    """
    readers: dict[tuple[str, int], int] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() not in _GROUPED:
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


def _transpose_images(graph: Any) -> None:
    """Let Transposes bring the channels of an FP32 image to the front before it is reshaped.

    The plugin's own copy out of the layout of a convolution takes eight times as long for 16 to 64 channels
    of 128 pixels and more, in FP32 alone. The first Transpose moves nothing: the image lies in its order.
    """
    images: set[tuple[str, int]] = set()
    for node in graph.get_ordered_ops():
        if any(not port.get_partial_shape().is_static for port in (*node.inputs(), *node.outputs())):
            continue
        operator, sources = node.get_type_name(), [port.get_source_output() for port in node.inputs()]
        before = [one for one in sources if _key(one) in images]
        if operator == "Reshape" and before and _is_slow(before[0]):
            batch, channels, *image = before[0].get_shape()
            last = ov.opset13.transpose(before[0], ov.opset13.constant([0, *range(2, len(image) + 2), 1]))
            rows = ov.opset13.constant(np.array([batch, np.prod(image), channels]))
            first = ov.opset13.transpose(
                ov.opset13.reshape(last, rows, False), ov.opset13.constant([0, 2, 1])
            )
            shape = ov.opset13.constant(np.array(node.get_output_shape(0), np.int64))
            _replace(node, ov.opset13.reshape(first, shape, special_zero=False))
        elif operator in _CHANNELS_LAST or (operator not in _PLANAR and _is_image_of(before, node)):
            images.add(_key(node.output(0)))


def _is_image_of(images: Sequence[Any], node: Any) -> bool:
    """Whether a result has the channels of an image that it is computed from: it has its layout, too."""
    shape = node.get_output_shape(0)
    return any(len(one.get_shape()) == len(shape) and one.get_shape()[:2] == shape[:2] for one in images)


def _is_slow(image: Any) -> bool:
    batch, channels, *pixels = image.get_shape()
    is_slow = channels in _SLOW_CHANNELS and batch * np.prod(pixels) >= _SLOW_PIXELS
    return is_slow and len(pixels) in (2, 3) and image.get_element_type() == ov.Type.f32


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _part_constants(graph: Any) -> None:
    """Give each reader of a constant one of its own.

    The plugin keeps weights in the layouts of their kernels by address and layout. Of a square matrix that a
    product reads as it is and another transposed, or of filters that a Conv and a ConvTranspose read, the
    second would get the layout of the first.
    """
    taken: set[int] = set()
    matrices = (
        node
        for node in graph.get_ordered_ops()
        if node.get_type_name() == "Constant"
        and len(node.get_output_shape(0)) > 1
        and node.get_element_type().bitwidth >= 8
    )
    for node in matrices:
        address = node.data.ctypes.data
        for reader in node.output(0).get_target_inputs():
            if address in taken:
                copy = _constant(node.get_element_type(), node.data)
                copy.set_friendly_name(node.get_friendly_name())
                reader.replace_source_output(copy.output(0))
            taken.add(address)


def _constant(kind: Any, values: NDArray[Any]) -> Any:
    """Make a constant in memory of its own; numpy knows BF16 as two bytes each."""
    tensor = ov.Tensor(kind, ov.Shape(list(values.shape)))
    tensor.data[...] = values
    return ov.opset13.constant(tensor)


def _numbers(kind: Any, values: Any) -> Any:
    """Write numbers in a type, which are folded later."""
    return ov.opset13.convert(ov.opset13.constant(np.asarray(values, np.float32)), kind)


def _replace(node: Any, by: Any) -> None:
    by.set_friendly_name(node.get_friendly_name())
    for old, new in zip(node.outputs(), by.outputs(), strict=True):
        names = old.get_names()
        old.replace(new)
        new.set_names(names)


def _rank(output: Any) -> int | None:
    rank = output.get_partial_shape().rank
    return rank.get_length() if rank.is_static else None


def _bodies(node: Any) -> Iterator[Any]:
    match node.get_type_name():
        case "If":
            yield from (node.get_function(branch) for branch in range(2))
        case "Loop" | "TensorIterator":
            yield node.get_function()
