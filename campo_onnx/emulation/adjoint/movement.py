"""Derivatives of operators that move, choose and sum elements."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from campo_onnx.builder.compact import full, pad, reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint.rule import Call, NoRuleError, Rule, of_shape, total


def _reshape(g: Graph, call: Call) -> Sequence[Value]:
    return [reshape(g, call.gradient, call.input(0).shape)]


def _transpose(g: Graph, call: Call) -> Sequence[Value]:
    rank = call.input(0).rank
    order = call.attributes.get("perm", tuple(reversed(range(rank))))
    return [g.op("Transpose", call.gradient, perm=[int(i) for i in np.argsort(order)])]


def _scattered(g: Graph, x: Value, places: Value, gradient: Value) -> Value:
    """Add gradients up at places among the elements of a tensor."""
    flat = full(g, (x.elements,), 0, TensorProto.FLOAT)
    sums = g.op(
        "ScatterElements",
        flat,
        reshape(g, places, (gradient.elements,)),
        reshape(g, gradient, (gradient.elements,)),
        axis=0,
        reduction="add",
    )
    return reshape(g, sums, x.shape)


def _chosen(g: Graph, call: Call) -> Sequence[Value]:
    """Let the operator choose among the numbers of the elements, and add its gradient up there."""
    x = call.input(0)
    counted = g.op("Range", *(g.scalar(n, TensorProto.INT64) for n in (0, x.elements, 1)))
    places = g.op(call.op_type, reshape(g, counted, x.shape), *call.inputs[1:], **call.attributes)
    return [_scattered(g, x, places, call.gradient)]


def _split(g: Graph, call: Call) -> Sequence[Value]:
    parts = [
        full(g, output.shape, 0, TensorProto.FLOAT) if gradient is None else gradient
        for output, gradient in zip(call.outputs, call.gradients, strict=True)
        if output is not None
    ]
    return [g.op("Concat", *parts, axis=call.attributes.get("axis", 0))]


def _concat(g: Graph, call: Call) -> Sequence[Value]:
    axis = call.attributes["axis"]
    sizes = g.integers([call.input(i).shape[axis] for i in range(len(call.inputs))])
    if len(call.inputs) == 1:
        return [call.gradient]
    return g.ops("Split", call.gradient, sizes, outputs=len(call.inputs), axis=axis)


def _gather(g: Graph, call: Call) -> Sequence[Value]:
    if call.attributes.get("axis", 0):
        return _chosen(g, call)
    x, places = call.input(0), call.input(1)
    rows = reshape(g, places, (*places.shape, 1))
    return [g.op("ScatterND", full(g, x.shape, 0, TensorProto.FLOAT), rows, call.gradient, reduction="add")]


def _scatter(g: Graph, call: Call, *, read: str) -> Sequence[Value | None]:
    """Updates are read where they were written; what they replaced has no gradient."""
    reduction = call.attributes.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise NoRuleError(f"{call.op_type} with reduction {reduction}")
    places, gradient = call.input(1), call.gradient
    axis = {"axis": call.attributes.get("axis", 0)} if read == "GatherElements" else {}
    of_updates = g.op(read, gradient, places, **axis)
    if reduction == "add":
        return [gradient, None, of_updates]
    gone = full(g, call.input(2).shape, 0, TensorProto.FLOAT)
    return [g.op(call.op_type, gradient, places, gone, **axis), None, of_updates]


def _pad(g: Graph, call: Call) -> Sequence[Value]:
    if call.attributes.get("mode", "constant") != "constant":
        return _chosen(g, call)
    pads = call.input(1).constant
    if pads is None or len(call.inputs) > 3:
        raise NoRuleError("Pad by computed numbers")
    rank = call.input(0).rank
    ends = [size - int(after) for size, after in zip(call.output.shape, pads[rank:], strict=True)]
    return [cropped(g, call.gradient, [int(n) for n in pads[:rank]], ends)]


def cropped(g: Graph, x: Value, starts: Sequence[int], ends: Sequence[int]) -> Value:
    """Take what lies between bounds along each axis; negative starts and far ends add zeros."""
    widths = [end - size for end, size in zip(ends, x.shape, strict=True)]
    return pad(g, x, [-start for start in starts], widths)


def _reduced(g: Graph, call: Call) -> tuple[Value, Value, int]:
    """Lay gradient and result out as if the summed axes were still there, and count the elements summed."""
    x = call.input(0)
    axes = call.attributes.get("axes")
    if len(call.inputs) > 1 and call.inputs[1] is not None:
        stored = call.input(1).constant
        if stored is None:
            raise NoRuleError(f"{call.op_type} along computed axes")
        axes = [int(i) for i in stored]
    if not axes:
        axes = [] if call.attributes.get("noop_with_empty_axes") else range(x.rank)
    summed = {axis % x.rank for axis in axes}
    shape = tuple(1 if i in summed else size for i, size in enumerate(x.shape))
    count = math.prod(x.shape[i] for i in summed)
    return reshape(g, call.gradient, shape), reshape(g, call.output, shape), count


def _mean(g: Graph, call: Call) -> Sequence[Value]:
    gradient, _, count = _reduced(g, call)
    return [g.op("Expand", gradient * (1.0 / count), g.integers(call.input(0).shape))]


def _largest(g: Graph, call: Call) -> Sequence[Value]:
    """The gradient of ReduceMax and ReduceMin: shared by all elements that are the result."""
    gradient, result, _ = _reduced(g, call)
    chosen = g.op("Cast", g.op("Equal", call.input(0), result), to=TensorProto.FLOAT)
    axes = [i for i, (a, b) in enumerate(zip(result.shape, chosen.shape, strict=True)) if a != b]
    return [chosen * (gradient / total(g, chosen, axes))]


def _length(g: Graph, call: Call) -> Sequence[Value]:
    gradient, result, _ = _reduced(g, call)
    return [call.input(0) * (gradient / result)]


def _max_pool(g: Graph, call: Call) -> Sequence[Value]:
    if call.attributes.get("storage_order", 0):
        raise NoRuleError("MaxPool of columns")
    _, places = g.ops("MaxPool", call.input(0), outputs=2, **call.attributes)
    return [_scattered(g, call.input(0), places, call.gradient)]


def _max_unpool(g: Graph, call: Call) -> Sequence[Value]:
    flat = reshape(g, call.gradient, (call.gradient.elements,))
    return [g.op("Gather", flat, call.input(1))]


def _average_pool(g: Graph, call: Call) -> Sequence[Value]:
    """The gradient of averages is a transposed convolution of each channel by ones."""
    x, kernel = call.input(0), tuple(call.attributes["kernel_shape"])
    spatial = len(kernel)
    pads = tuple(call.attributes.get("pads", (0,) * 2 * spatial))
    if call.attributes.get("ceil_mode") or call.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise NoRuleError("AveragePool of incomplete windows")
    strides = list(call.attributes.get("strides", (1,) * spatial))
    gradient = call.gradient * (1.0 / math.prod(kernel))
    if any(pads) and not call.attributes.get("count_include_pad"):
        inside = full(g, x.shape, 1, TensorProto.FLOAT)
        counted = {**call.attributes, "count_include_pad": 1}
        gradient = gradient / g.op("AveragePool", inside, **counted)
    channels = x.shape[1]
    ones = g.constant(np.ones((channels, 1, *kernel), np.float32))
    spread = g.op("ConvTranspose", gradient, ones, strides=strides, group=channels)
    starts = (0, 0, *pads[:spatial])
    return [cropped(g, spread, starts, [s + size for s, size in zip(starts, x.shape, strict=True)])]


def _global_average(g: Graph, call: Call) -> Sequence[Value]:
    x = call.input(0)
    mean = call.gradient * (1.0 / math.prod(x.shape[2:]))
    return [g.op("Expand", mean, g.integers(x.shape))]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Reshape", "Unsqueeze", "Squeeze", "Flatten"), _reshape),
    **dict.fromkeys(("Slice", "GatherElements", "GatherND", "Tile", "DepthToSpace", "SpaceToDepth"), _chosen),
    "Transpose": _transpose,
    "Split": _split,
    "Concat": _concat,
    "Gather": _gather,
    "ScatterElements": lambda g, call: _scatter(g, call, read="GatherElements"),
    "ScatterND": lambda g, call: _scatter(g, call, read="GatherND"),
    "Pad": _pad,
    "ReduceSum": lambda g, call: [g.op("Expand", _reduced(g, call)[0], g.integers(call.input(0).shape))],
    "ReduceMean": _mean,
    "ReduceMax": _largest,
    "ReduceMin": _largest,
    "ReduceSumSquare": lambda g, call: [call.input(0) * _reduced(g, call)[0] * 2.0],
    "ReduceL2": _length,
    "Expand": lambda g, call: [of_shape(g, call.gradient, call.input(0).shape)],
    "Trilu": lambda g, call: [
        g.op("Trilu", call.gradient, *call.inputs[1:], upper=call.attributes.get("upper", 1))
    ],
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
}
