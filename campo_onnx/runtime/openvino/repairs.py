"""Repairs of a graph that OpenVINO has read: forms that its plugin gets wrong, or takes far too long for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from campo_onnx.runtime.openvino.convolutions import (
    CONVOLUTIONS,
    GROUPED,
    part_group_weights,
    repair_convolution,
)
from campo_onnx.runtime.openvino.installed import ov
from campo_onnx.runtime.openvino.rewriting import bodies_of, constant, numbers, rank_of, replace

_BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
_ABOVE_MINUS_INFINITY = frozenset({"Relu", "Sigmoid", "Tanh", "Exp", "Softmax"})
# Layouts of results as the plugin chooses them, and images that it takes long to copy from one to the other.
_CHANNELS_LAST = frozenset({*CONVOLUTIONS, "ConvolutionBackpropData", *GROUPED})
_PLANAR = frozenset({"MVN", "Reshape", "Softmax", "Transpose"})
_SLOW_CHANNELS, _SLOW_PIXELS = range(16, 65), 128


def repair(graph: Any) -> None:
    """Write such forms in others that the plugin gets right and fast, in the bodies of a graph as well.

    The ``openvino.Model`` is changed in place. Names of nodes and tensors stay.
    """
    for node in graph.get_ops():
        for body in bodies_of(node):
            repair(body)
        if node.get_type_name() == "Reshape" and rank_of(node.output(0)) == 0:
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
        elif node.get_type_name() in CONVOLUTIONS:
            repair_convolution(node)
    folding = ov.passes.Manager()
    folding.register_pass(ov.passes.ConstantFolding())
    folding.run_passes(graph)
    _part_constants(graph)
    part_group_weights(graph)
    _transpose_images(graph)


def _squeeze(node: Any) -> None:
    """Write a Reshape to a scalar as Squeeze: behind a product it crashes the plugin, with the process."""
    source = node.input_value(0)
    if (rank := rank_of(source)) is not None:
        replace(node, ov.opset13.squeeze(source, ov.opset13.constant(np.arange(rank))))


def _round(node: Any) -> None:
    """Round a constant to BF16 to nearest: OpenVINO cuts bits off where the last one that stays is 0."""
    source = node.input_value(0).get_node()
    if (
        source.get_type_name() == "Constant"
        and source.get_element_type() == ov.Type.f32
        and node.get_element_type() == ov.Type.bf16
    ):
        replace(node, constant(ov.Type.bf16, source.data.astype(_BF16).view(np.float16)))


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
        replace(node, ov.opset13.reshape(ov.opset13.convert(row, "f32"), shape, special_zero=False))


def _stabilize(node: Any) -> None:
    """Let the first of equal values come first, as ONNX has it."""
    settings = node.get_attributes()
    if settings["sort"] != "none":
        names = ("axis", "mode", "sort", "index_element_type")
        data, count = node.input_values()
        replace(node, ov.opset13.topk(data, count, *(settings[name] for name in names), stable=True))


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
        is_positive = ov.opset13.greater(ov.opset13.convert(state, "f32"), numbers(ov.Type.f32, 0.0))
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
    halves = ov.opset13.multiply(data, numbers(kind, 0.5))
    if len(node.outputs()) > 1 and node.output(1).get_target_inputs():
        halves = ov.opset13.maximum(halves, numbers(kind, 0.75 * np.finfo(np.float32).min))
    node.input(0).replace_source_output(halves.output(0))
    whole = ov.opset13.multiply(node.output(0), numbers(kind, 2.0))
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
            replace(node, ov.opset13.reshape(first, shape, special_zero=False))
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
                copy = constant(node.get_element_type(), node.data)
                copy.set_friendly_name(node.get_friendly_name())
                reader.replace_source_output(copy.output(0))
            taken.add(address)
