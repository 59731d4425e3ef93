"""One node on its own: everything that functions of an operator may look at.

Nodes that share a signature share their ports, their work, their cost, and are timed once.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from campo_onnx.ops.key import OpKey

Shape: TypeAlias = tuple[int, ...]

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One input or output of a node.

    Parameters
    ----------
    name
        Position-based name, ``x0`` or ``y1``; a tensor that is read twice has the name of its first
        position both times.
    dtype
        ``TensorProto.DataType``; 0 when unknown or not a tensor.
    shape
        Static dimensions, or None when unknown.
    """

    name: str
    dtype: int
    shape: Shape | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Signature:
    """An op with its attributes, and types, shapes and deciding constants of its tensors.

    Two signatures are equal exactly when their keys are.

    Parameters
    ----------
    op, opset
        The operator and the version of its domain.
    inputs, outputs
        By position; None is one that is left out.
    attributes
        Python and NumPy values; graphs are left out.
    constants
        By input position: values that decide what the node does (axes, shapes, pads, exponents),
        as opposed to data.
    has_body
        Whether the node runs graphs of its own or captures tensors (If, Loop, Scan).
    """

    op: OpKey
    opset: int
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    constants: Mapping[int, NDArray[Any]] = field(default_factory=lambda: _EMPTY)
    has_body: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))

    @cached_property
    def key(self) -> str:
        """The signature as one line of JSON: equal exactly for equal signatures."""
        row = {
            "op": self.op.label,
            "opset": self.opset,
            "attributes": {name: _text(value) for name, value in sorted(self.attributes.items())},
            "inputs": [self._operand_text(i, operand) for i, operand in enumerate(self.inputs)],
            "outputs": [_type_text(operand) for operand in self.outputs],
        }
        if self.has_body:
            row["has_body"] = True
        return json.dumps(row, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self.key == other.key

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def _operand_text(self, position: int, operand: Operand | None) -> str:
        text = _type_text(operand)
        if operand is not None and operand.name != f"x{position}":
            text += f"@{operand.name}"  # the same tensor as at an earlier position
        value = self.constants.get(position)
        return text if value is None else f"{text}={_array_text(value)}"

    def with_shapes(
        self, inputs: Mapping[int, Shape] = _EMPTY, outputs: Mapping[int, Shape] = _EMPTY
    ) -> "Signature":
        """The same node on tensors of other shapes, by position.

        A tensor that is read twice and changes at one of its positions becomes two tensors.
        """
        return replace(
            self,
            inputs=_reshaped(self.inputs, inputs, "x"),
            outputs=_reshaped(self.outputs, outputs, "y"),
        )


def _reshaped(
    operands: tuple[Operand | None, ...], shapes: Mapping[int, Shape], prefix: str
) -> tuple[Operand | None, ...]:
    changed: dict[tuple[str, Shape | None], str] = {}
    result: list[Operand | None] = []
    for position, operand in enumerate(operands):
        if operand is None:
            result.append(None)
            continue
        shape = shapes.get(position, operand.shape)
        name = changed.setdefault((operand.name, shape), f"{prefix}{position}")
        result.append(Operand(name=name, dtype=operand.dtype, shape=shape))
    return tuple(result)


def _type_text(operand: Operand | None) -> str:
    if operand is None:
        return "-"
    shape = "?" if operand.shape is None else ",".join(map(str, operand.shape))
    return f"{operand.dtype}[{shape}]"


def _array_text(value: NDArray[Any]) -> str:
    """An array as text: its values where they are few, else a digest of all of them."""
    if value.size <= 64:
        return f"{value.dtype}{list(value.shape)}{json.dumps(value.tolist(), default=str)}"
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return f"{value.dtype}{list(value.shape)}#{digest}"


def _text(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _array_text(value)
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    return value if isinstance(value, (int, float, str)) else repr(value)
