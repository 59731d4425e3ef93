"""Execution of each operator by OpenVINO's CPU plugin: a table read from what it executed.

``scripts/probe_openvino.py`` writes it: models of one node are compiled, and the executed graph tells their
kernels. The plugin types any version of an operator in BF16; ONNX's schemas say from which opset a graph may.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import onnx

from campo_onnx.ir.bodies import read_body
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.sort import bodies, with_bodies
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Support

RELEASE = "2026.4.1"
"""The release that the table was read from."""

COLUMNS = ("domain", "op_type", "fp32", "bf16", "sums_low")


class Row(NamedTuple):
    """Support of one operator."""

    fp32: Support
    bf16: Support
    sums_low: bool  # whether sums of BF16 values are accumulated in BF16


@cache
def table() -> Mapping[OpKey, Row]:
    """All rows, by operator."""
    with files(__package__).joinpath("kernels.csv").open(encoding="utf-8") as lines:
        return {
            OpKey(row["domain"], row["op_type"]): Row(
                Support(row["fp32"]), Support(row["bf16"]), row["sums_low"] == "1"
            )
            for row in csv.DictReader(lines)
        }


def support(signature: Signature, precision: Precision) -> Support:
    """Say how a node runs in a precision.

    An operator that is not in the table is refused: nobody tried it. FP16 types are removed without rounding,
    so nothing runs in FP16.
    """
    row = table().get(signature.op)
    if row is None or _refused(signature):
        return Support.REFUSED
    if precision is Precision.FP32:
        return row.fp32
    if precision is not Precision.BF16 or _crawls(signature):
        return Support.REFUSED
    return row.bf16


def sums_low(signature: Signature, precision: Precision) -> bool:
    """Say whether a node's sums are accumulated in the low precision itself."""
    row = table().get(signature.op)
    if precision is not Precision.BF16 or row is None or not row.sums_low:
        return False
    return signature.op.op_type not in _SCATTERS or signature.attribute("reduction", "none") != "none"


def _crawls(signature: Signature) -> bool:
    """Whether a node's kernel in BF16 takes 15 to 80 times as long as that in FP32, whatever its size.

    So do depthwise transposed convolutions with a stride, the gradients of strided depthwise ones: measured
    in ``benchmarks/results/measured.md`` and by ``campo-onnx calibrate``. A model fitted to shapes
    smooths such a cliff over.
    """
    if signature.op != OpKey("", "ConvTranspose") or signature.attribute("group", 1) == 1:
        return False
    kernel = signature.input(1).shape
    strides = signature.attribute("strides", ())
    return (kernel is None or kernel[1] == 1) and any(stride > 1 for stride in strides)


_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
"""Only with a reduction do they sum."""


def _refused(signature: Signature) -> bool:
    """Whether the plugin takes the operator, but not with this node's settings, or computes something else.

    ``tests/runtime/openvino/test_values.py`` holds every case of the onnx package against ONNX Runtime.
    """
    rule = _RULES.get(signature.op.op_type) if not signature.op.domain else None
    return rule is not None and rule(signature)


def computed_otherwise(model: onnx.ModelProto, folder: Path | None = None) -> list[str]:
    """List the nodes that the plugin loads, and computes otherwise than ONNX says, with their operators."""
    if not any(node.op_type in _RULES for node in with_bodies(model.graph.node)):
        return []
    imported = import_model(model, any_type=True, folder=folder)
    return list(_otherwise(imported.model.graph.node, imported.view))


def _otherwise(nodes: Sequence[onnx.NodeProto], view: GraphView) -> Iterator[str]:
    for proto, node in zip(nodes, view.nodes, strict=True):
        if _refused(view.signature(node.name)):
            yield f"{node.name!r} ({node.op})"
        for body in bodies(proto):
            inside = read_body(body, view, [None] * len(body.input))
            if inside is not None:
                yield from _otherwise(inside.graph.node, inside.view)
            else:  # nothing tells the types by which forms differ
                unsure = (n for n in with_bodies(body.node) if n.op_type in _RULES)
                yield from (f"{n.name!r} ({n.op_type})" for n in unsure)


def _never_turns(signature: Signature) -> bool:
    """Whether a constant says so: a state that a turn would make longer has its length, and any values."""
    turns, goes_on = (signature.constants.get(i) for i in range(2))
    return (turns is not None and not turns.any()) or (goes_on is not None and not goes_on.any())


def _is_trained(signature: Signature) -> bool:
    training = signature.constants.get(2)
    return signature.input(2).dtype != 0 and (training is None or bool(training.any()))


def _gathers_from_part(signature: Signature) -> bool:
    data, indices = signature.input(0).shape, signature.input(1).shape
    if data is None or indices is None:
        return False
    axis = signature.attribute("axis", 0) % len(data)
    return any(d != i for k, (d, i) in enumerate(zip(data, indices, strict=True)) if k != axis)


def _pools_otherwise(signature: Signature) -> bool:
    """Whether indices count by columns, or rounding up leaves a window that the plugin takes otherwise.

    ONNX drops one that lies beyond the data, and counts no number beyond data and padding in an average.
    """
    if signature.attribute("storage_order", 0) and signature.output(1).dtype:
        return True
    data, pooled = signature.input(0).shape, signature.output(0).shape
    if not signature.attribute("ceil_mode", 0):
        return False
    if data is None or pooled is None:
        return True
    kernel = signature.attribute("kernel_shape", ())
    ones, zeros = (1,) * len(kernel), (0,) * 2 * len(kernel)
    strides, dilations = signature.attribute("strides", ones), signature.attribute("dilations", ones)
    pads = signature.attribute("pads", zeros)
    rooms = [  # for further windows after the first
        size + pads[k] + pads[k + len(kernel)] - dilations[k] * (kernel[k] - 1) - 1
        for k, size in enumerate(data[2:])
    ]
    if tuple(-(-room // strides[k]) + 1 for k, room in enumerate(rooms)) != tuple(pooled[2:]):
        return True
    counts_padding = signature.op.op_type == "AveragePool" and signature.attribute("count_include_pad", 0)
    return bool(counts_padding) and any(room % strides[k] for k, room in enumerate(rooms))


def _pads_otherwise(signature: Signature) -> bool:
    """Whether the value is computed, or axes are given that are not all axes in order: neither is read."""
    if signature.input(2).dtype != 0 and 2 not in signature.constants:
        return True
    axes, data = signature.constants.get(3), signature.input(0).shape
    if signature.input(3).dtype == 0:
        return False
    return axes is None or data is None or axes.tolist() != list(range(len(data)))


def _normalizes_otherwise(signature: Signature) -> bool:
    """Whether several axes are one, as in all opsets before 13: those from the attribute's on."""
    data = signature.input(0).shape
    if signature.opset >= 13 or data == ():
        return False
    return data is None or math.prod(data[signature.attribute("axis", 1) % len(data) + 1 :]) != 1


def _transposes_otherwise(signature: Signature) -> bool:
    """Whether padding follows from the size of the output: it is divided otherwise, or not subtracted.

    Where some size is known when a step runs alone, no padding follows from the others.
    """
    sizes, padding = signature.attribute("output_shape", ()), str(signature.attribute("auto_pad", "NOTSET"))
    data, weight = signature.input(0).shape, signature.input(1).shape
    if data is None or weight is None:
        return "SAME" in padding
    if not sizes or "SAME_LOWER" in padding:
        return False
    ones, zeros = (1,) * len(sizes), (0,) * len(sizes)
    strides, dilations = signature.attribute("strides", ones), signature.attribute("dilations", ones)
    added = signature.attribute("output_padding", zeros)
    totals = (
        strides[k] * (data[2 + k] - 1) + added[k] + (weight[2 + k] - 1) * dilations[k] + 1 - size
        for k, size in enumerate(sizes[-len(data) + 2 :])
    )
    return any(total > 0 for total in totals)


def _resizes_otherwise(signature: Signature) -> bool:
    """Whether one number is taken from elsewhere than PyTorch does, or an attribute is not read."""
    policy = str(signature.attribute("keep_aspect_ratio_policy", "stretch"))
    is_cubic = "cubic" in str(signature.attribute("mode", "nearest"))
    if signature.attribute("antialias", 0) or "stretch" not in policy:
        return True
    if is_cubic and signature.attribute("exclude_outside", 0):
        return True
    data, resized = signature.input(0).shape, signature.output(0).shape
    if "pytorch_half_pixel" not in str(signature.attribute("coordinate_transformation_mode", "half_pixel")):
        return False
    return data is None or resized is None or any(n != m == 1 for n, m in zip(data, resized, strict=True))


def _reduces_otherwise(signature: Signature) -> bool:
    """Whether axes in an attribute are not read, or magnitudes and logarithms over no axes are not taken."""
    if signature.opset in range(13, 18) and signature.op.op_type != "ReduceL2":
        return bool(signature.attribute("axes", ()))
    is_plain = signature.op.op_type == "ReduceLogSumExp"
    return bool(signature.attribute("noop_with_empty_axes", 0)) and not is_plain


def _gates_otherwise(signature: Signature) -> bool:
    """Whether an LSTM has peepholes, or couples two gates, or batches come first: neither is read."""
    is_plain = signature.input(7).dtype == 0 and not signature.attribute("input_forget", 0)
    return not is_plain or _orders_otherwise(signature)


def _orders_otherwise(signature: Signature) -> bool:
    """Whether the batch comes before the time, which is not read."""
    return bool(signature.attribute("layout", 0))


_RULES: Mapping[str, Callable[[Signature], bool]] = MappingProxyType(
    {
        "Attention": lambda signature: signature.input(4).dtype != 0,  # with a past, causal masks are others
        "AveragePool": _pools_otherwise,
        "BlackmanWindow": lambda signature: True,  # 3 % off
        "ConvTranspose": _transposes_otherwise,
        "DFT": lambda signature: True,  # the axis of real and imaginary parts is another
        "Dropout": _is_trained,
        "GRU": _orders_otherwise,
        "GatherElements": _gathers_from_part,
        "Hardmax": _normalizes_otherwise,
        "LpPool": _pools_otherwise,
        # The plugin takes the whole part of the bias.
        "LRN": lambda signature: not float(signature.attribute("bias", 1.0)).is_integer(),
        "Loop": _never_turns,
        "LSTM": _gates_otherwise,
        "MaxPool": _pools_otherwise,
        "Pad": _pads_otherwise,
        "PRelu": lambda signature: True,  # a slope as long as the channels is one slope a channel
        "QuantizeLinear": lambda signature: True,  # a Clip behind the pair is rounded as well
        "RNN": _orders_otherwise,
        "ReduceL1": _reduces_otherwise,
        "ReduceL2": _reduces_otherwise,
        "ReduceLogSum": _reduces_otherwise,
        "ReduceLogSumExp": _reduces_otherwise,
        "Resize": _resizes_otherwise,
        "Softmax": _normalizes_otherwise,
    }
)
