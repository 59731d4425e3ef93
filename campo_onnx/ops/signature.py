"""One node on its own: everything that functions of an operator may look at.

Nodes that share a signature share their ports, their work, their cost, and are timed once.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ops.key import OpKey

Shape: TypeAlias = tuple[int, ...]

FLOAT = int(TensorProto.FLOAT)

_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_VALUES_KEPT = 64  # shapes, axes, pads and exponents change what a node does; data does not
_HALF_BYTE = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1})


@cache
def itemsize_bytes(dtype: int) -> float:
    """Bytes of one element as stored: half a byte for 4-bit types, 0 when unknown or text."""
    if dtype in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 0.0
    return 0.5 if dtype in _HALF_BYTE else float(onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize)


class TensorType(NamedTuple):
    """The ``TensorProto.DataType`` (0: unknown) and static shape of a tensor."""

    dtype: int = 0
    shape: Shape | None = None


class Operand(NamedTuple):
    """One input or output of a node."""

    # Position-based name, `x0` or `y1`; a tensor that is read twice has the name of its first position both
    # times.
    name: str
    dtype: int = 0  # `TensorProto.DataType`; 0 when unknown or not a tensor
    shape: Shape | None = None

    @property
    def type(self) -> TensorType:
        """Its type and shape alone."""
        return TensorType(self.dtype, self.shape)

    @property
    def elements(self) -> int:
        """Number of elements; 0 when the shape is unknown."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes as stored; 0 when shape or type is unknown."""
        return self.elements * itemsize_bytes(self.dtype)


_NOTHING = Operand("")


@dataclass(frozen=True, kw_only=True, eq=False)
class Signature:
    """An op with its attributes, and types, shapes and deciding constants of its tensors.

    Two signatures are equal exactly when their keys are.
    """

    op: OpKey
    opset: int
    # inputs, outputs: by position; None is one that is left out.
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    # Python and NumPy values; graphs are left out.
    attributes: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    # By input position: values that decide what the node does (axes, shapes, pads, exponents), as opposed to
    # data.
    constants: Mapping[int, NDArray[Any]] = field(default_factory=lambda: _EMPTY)
    has_body: bool = False  # whether the node runs graphs of its own or captures tensors (If, Loop, Scan)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))

    @cached_property
    def _identity(self) -> tuple[Any, ...]:
        """The facts of :attr:`key` without writing text: equality and hash go by them."""
        attributes = tuple((name, _hashable(value)) for name, value in sorted(self.attributes.items()))
        constants = tuple((position, _hashable(value)) for position, value in sorted(self.constants.items()))
        return self.op, self.opset, self.inputs, self.outputs, attributes, constants, self.has_body

    @cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Signature) and self._identity == other._identity)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def key(self) -> str:
        """The signature as one line of JSON, for stores of timings."""
        row: dict[str, Any] = {
            "op": self.op.label,
            "opset": self.opset,
            "attributes": {name: _text(value) for name, value in sorted(self.attributes.items())},
            "inputs": self.input_types,
            "outputs": self.output_types,
        }
        if self.has_body:
            row["has_body"] = True
        return json.dumps(row)

    @property
    def input_types(self) -> str:
        """Types of the inputs, as ``float32[4,8] int64[2]=[8,4] -``; ``-`` is one left out."""
        return " ".join(self._input_text(i, operand) for i, operand in enumerate(self.inputs))

    @property
    def output_types(self) -> str:
        """Types of the outputs."""
        return " ".join(_type_text(operand) for operand in self.outputs)

    def _input_text(self, position: int, operand: Operand | None) -> str:
        text = _type_text(operand)
        if operand is not None and operand.name != f"x{position}":
            text += f"@{operand.name}"  # the same tensor as at an earlier position
        value = self.constants.get(position)
        return text if value is None else f"{text}={_values_text(value)}"

    def input(self, position: int) -> Operand:
        """An input; one that is left out, or beyond the last, has neither type nor shape."""
        operand = self.inputs[position] if position < len(self.inputs) else None
        return _NOTHING if operand is None else operand

    def output(self, position: int) -> Operand:
        """An output; one that is left out, or beyond the last, has neither type nor shape."""
        operand = self.outputs[position] if position < len(self.outputs) else None
        return _NOTHING if operand is None else operand

    def ints(self, position: int) -> Shape | None:
        """Value of a constant integer input as a flat tuple, or None when unknown."""
        value = self.constants.get(position)
        return None if value is None else tuple(int(item) for item in value.ravel())

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute, or `default` where it is not given."""
        return self.attributes.get(name, default)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs and outputs that are there, by position; a tensor read twice is there twice."""
        return tuple(operand for operand in (*self.inputs, *self.outputs) if operand is not None)

    @property
    def nbytes(self) -> float:
        """Memory of all its tensors."""
        return sum(operand.nbytes for operand in dict.fromkeys(self.operands))

    @property
    def stands_alone(self) -> bool:
        """Whether the node makes a graph by itself: no bodies, and tensors of known, nonzero size."""
        return not self.has_body and all(
            operand.dtype and operand.shape is not None and 0 not in operand.shape
            for operand in self.operands
        )

    def with_shapes(
        self, inputs: Mapping[int, Shape] = _EMPTY, outputs: Mapping[int, Shape] = _EMPTY
    ) -> "Signature":
        """The same node on tensors of other shapes, by position.

        A tensor that is read twice and changes at one of its positions becomes two tensors.
        """
        return replace(
            self, inputs=_reshaped(self.inputs, inputs, "x"), outputs=_reshaped(self.outputs, outputs, "y")
        )


def make_signature(
    op: OpKey,
    inputs: Iterable[TensorType | tuple[int, Shape] | None],
    outputs: Iterable[TensorType | tuple[int, Shape] | None],
    *,
    attributes: Mapping[str, Any] = _EMPTY,
    constants: Mapping[int, NDArray[Any]] = _EMPTY,
    opset: int = 20,
) -> Signature:
    """Put a signature together from types by position; None is an input or output left out."""
    return Signature(
        op=op,
        opset=opset,
        inputs=tuple(None if t is None else Operand(f"x{i}", *t) for i, t in enumerate(inputs)),
        outputs=tuple(None if t is None else Operand(f"y{i}", *t) for i, t in enumerate(outputs)),
        attributes=attributes,
        constants=constants,
    )


def operands(prefix: str, tensors: Iterable[tuple[str, int, Shape | None]]) -> tuple[Operand | None, ...]:
    """Name tensors by position.

    `prefix`: ``x`` for inputs, ``y`` for outputs.
    `tensors`: name, type and shape of each; the name ``""`` is one that is left out.

    >>> operands("x", [("a", 1, (2,)), ("", 0, None), ("a", 1, (2,))])
    (Operand(name='x0', dtype=1, shape=(2,)), None, Operand(name='x0', dtype=1, shape=(2,)))
    """
    by_tensor: dict[str, Operand] = {}
    operands: list[Operand | None] = []
    for position, (name, dtype, shape) in enumerate(tensors):
        if not name:
            operands.append(None)
            continue
        if name not in by_tensor:
            by_tensor[name] = Operand(f"{prefix}{position}", dtype, shape)
        operands.append(by_tensor[name])
    return tuple(operands)


def decides(value: NDArray[Any]) -> bool:
    """Whether a constant decides what a node does (axes, shapes, an exponent) rather than being data."""
    return value.size <= _VALUES_KEPT and (value.size == 1 or not np.issubdtype(value.dtype, np.floating))


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
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(operand.dtype)) if operand.dtype else "?"
    return f"{dtype}[{shape}]"


def _values_text(value: NDArray[Any]) -> str:
    """Values of an array where they are few, else a digest of all of them."""
    if value.size <= _VALUES_KEPT:
        return json.dumps(value.astype(object).ravel().tolist(), default=float).replace(" ", "")
    return "#" + hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()


def _text(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        values = value.ravel().tolist() if value.size <= _VALUES_KEPT else _values_text(value)
        return f"{value.dtype}{list(value.shape)}={values}"
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    return value if isinstance(value, (int, float, str)) else repr(value)


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value if isinstance(value, (int, float, str)) else repr(value)
