"""Choice among forms of one computation: the least time that a device's figures predict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from onnx import TensorProto, numpy_helper

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Node, Value
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.lowering.convolutions.cpu_price import node_us
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, operands
from campo_onnx.targets.roofline import node_time
from campo_onnx.targets.target import Target

_ROOM_BYTES = 1 << 30
"""Largest tensor that a form for a CPU may make, where another makes none so large."""

Name = TypeVar("Name", bound=str)
Form = Callable[..., Value]
"""``(graph, *values) -> value``."""


def cheapest(g: Graph, forms: Mapping[Name, Form], values: Sequence[Value], device: Target) -> Name:
    """Choose a form.

    Of equally fast forms the first is taken.
    """
    chosen = g.choice(lambda: _cheapest(g, forms, values, device))
    if chosen not in forms:
        raise UnsupportedModelError(f"the form {chosen!r} of a convolution does not hold at all sizes")
    return chosen


def _cheapest(g: Graph, forms: Mapping[Name, Form], values: Sequence[Value], device: Target) -> Name:
    prices = {name: _price(g, form, values, device) for name, form in forms.items()}
    if not device.hardware.is_gpu:
        room_bytes = max(_ROOM_BYTES, min(price.largest_bytes for price in prices.values()))
        prices = {name: price for name, price in prices.items() if price.largest_bytes <= room_bytes}
    return min(prices, key=lambda name: prices[name].time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Cost of a form."""

    time_us: float
    largest_bytes: float


def _price(g: Graph, form: Form, values: Sequence[Value], device: Target) -> Price:
    scratch = Graph(opset=g.opset, target=g.target)
    result = form(scratch, *(scratch.input(f"x{i}", v.dtype, v.shape) for i, v in enumerate(values)))
    signatures = [_signature(node, g.opset) for node in scratch.nodes_behind(result)]
    sizes = (operand.nbytes for signature in signatures for operand in signature.operands)
    return Price(time_us=sum(_time(s, device) for s in signatures), largest_bytes=max(sizes, default=0.0))


def _time(signature: Signature, device: Target) -> float:
    if not device.hardware.is_gpu:
        return node_us(signature, device)
    # The step is planned behind this, so what a form takes in FP16 counts as much.
    ports = ports_of(signature, Precision.FP16)
    return sum(node_time(signature, ports, device, low).time_us for low in (Precision.FP32, Precision.FP16))


def _signature(node: Node, opset: int) -> Signature:
    types = [("", 0, None) if v is None else (v.name, v.dtype, v.shape) for v in node.inputs]
    constants = {i: v.constant for i, v in enumerate(node.inputs) if v is not None and v.constant is not None}
    attributes = {
        name: numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
        for name, value in node.attributes.items()
    }
    op = OpKey.parse(node.op_type)
    return Signature(
        op=op,
        opset=1 if op.domain else opset,
        inputs=operands("x", types),
        outputs=operands("y", [(v.name, v.dtype, v.shape) for v in node.outputs]),
        attributes=attributes,
        constants={i: np.asarray(value) for i, value in constants.items() if value.size <= 64},
    )
