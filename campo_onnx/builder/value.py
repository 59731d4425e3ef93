"""The tensors and nodes of a graph under construction."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def _operator(op_type: str, *, turned: bool = False) -> "Callable[[Value, Value | float], Value]":
    def result(value: "Value", other: "Value | float") -> "Value":
        return value.computed(op_type, *((other, value) if turned else (value, other)))

    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Value:
    """A tensor of the graph; arithmetic and comparisons add nodes to it, and numbers take its type."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    constant: NDArray[Any] | None = None  # the value, where it is known at export
    graph: Any = field(default=None, repr=False)  # that it was made in

    __array_ufunc__ = None  # numbers of NumPy leave arithmetic to us
    __add__, __radd__ = _operator("Add"), _operator("Add", turned=True)
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", turned=True)
    __mul__, __rmul__ = _operator("Mul"), _operator("Mul", turned=True)
    __truediv__, __rtruediv__ = _operator("Div"), _operator("Div", turned=True)
    __lt__, __le__ = _operator("Less"), _operator("LessOrEqual")
    __gt__, __ge__ = _operator("Greater"), _operator("GreaterOrEqual")

    def __neg__(self) -> "Value":
        return self.computed("Neg", self)

    def computed(self, op_type: str, *operands: "Value | float") -> "Value":
        """Add an elementwise operator to the graph."""
        from campo_onnx.builder.compact import elementwise  # which is written with graphs of values

        return elementwise(self.graph, op_type, *operands)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type of an element."""
        return helper.tensor_dtype_to_np_dtype(self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype in _FLOATS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """A node: what the compacting constructors look at."""

    op_type: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    name: str


def readers_of(nodes: Sequence[Node]) -> Counter[str]:
    """Count how often each tensor is read, by name."""
    return Counter(v.name for node in nodes for v in node.inputs if v is not None)


def adds_alike(node: Node) -> bool:
    """Whether a node adds two tensors of real numbers of one shape."""
    shape = node.outputs[0].shape
    return node.op_type == "Add" and all(v and v.shape == shape and v.is_float for v in node.inputs)


def reshape_attributes(shape: Sequence[int]) -> dict[str, Any]:
    """Give the attributes of a Reshape: without ``allowzero``, a size of 0 means that of the input."""
    return {"allowzero": 1} if 0 in shape else {}


def dtype_of(dtype: Any) -> int:
    """Give ONNX's name of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
