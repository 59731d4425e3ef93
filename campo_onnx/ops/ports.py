"""The inputs and outputs of a node that change type when the node changes precision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto

from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refusal, Refused
from campo_onnx.ops.signature import Operand, Signature

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The FP32 inputs and outputs of a node that become low together with it."""

    # low_inputs, low_outputs: positions among the node's inputs and outputs. All others keep their type.
    low_inputs: frozenset[int] = frozenset()
    low_outputs: frozenset[int] = frozenset()
    # FP32 inputs the node reads in whatever precision is there (Shape, Size): they never cause a Cast.
    any_inputs: frozenset[int] = frozenset()
    # Name of the attribute that states the output's type (`to` of Cast, `value` of ConstantOfShape, `dtype`
    # of RandomUniform), if there is one.
    attribute: str | None = None
    refusal: Refusal | None = None
    # Whether a node that cannot be chosen to go low makes its outputs low all the same where everybody who
    # reads them would cast them: a Cast from integers then casts to what they want.
    follows_readers: bool = False

    def low_among(self, inputs: Sequence[_T], outputs: Sequence[_T]) -> Iterator[_T]:
        """Give those of a node's inputs and outputs that become low."""
        yield from (inputs[i] for i in sorted(self.low_inputs))
        yield from (outputs[i] for i in sorted(self.low_outputs))


NO_FP32 = Ports(refusal=Refused.NO_FP32.of())
"""Ports of every node that neither reads nor makes FP32; such nodes have no precision to choose."""


def low_attribute(value: Any, ports: Ports, precision: Precision) -> Any:
    """Value of ``ports.attribute`` that makes a node's output low.

    It is a data type for ``to`` and ``dtype``, a one-element tensor for ``value``.

    `value`: what the attribute holds in the given graph; None where it is left out.
    """
    if ports.attribute != "value":
        return precision.onnx_dtype
    number = 0.0 if value is None else float(np.ravel(value)[0])
    # As bytes: OpenVINO takes the bits of a BF16 value that is written in another way for a whole number.
    dtype = onnx.helper.tensor_dtype_to_np_dtype(precision.onnx_dtype)
    return onnx.numpy_helper.from_array(np.array([number]).astype(dtype), "value")


def lowered(signature: Signature, ports: Ports, precision: Precision) -> Signature | None:
    """Return the same node in a low precision; None where it has no such variant."""
    if ports.refusal:
        return None
    low_names = set(map(_name, ports.low_among(signature.inputs, signature.outputs)))

    def low(operand: Operand | None) -> Operand | None:
        if operand is None or operand.name not in low_names:
            return operand
        return operand._replace(dtype=precision.onnx_dtype)

    attributes = dict(signature.attributes)
    if ports.attribute is not None:
        value = low_attribute(attributes.get(ports.attribute), ports, precision)
        attributes[ports.attribute] = (
            onnx.numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(precision.onnx_dtype)
    return replace(
        signature,
        inputs=tuple(map(low, signature.inputs)),
        outputs=tuple(map(low, signature.outputs)),
        attributes=attributes,
        constants={
            i: value.astype(dtype) if _name(signature.inputs[i]) in low_names else value
            for i, value in signature.constants.items()
        },
    )


def _name(operand: Operand | None) -> str | None:
    return None if operand is None else operand.name
