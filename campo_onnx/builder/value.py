"""The tensors and nodes of a graph under construction."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Value:
    """A tensor of the graph.

    Parameters
    ----------
    constant
        The value, where it is known at export.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    constant: NDArray[Any] | None = None

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


def reshape_attributes(shape: Sequence[int]) -> dict[str, Any]:
    """Give the attributes of a Reshape: without ``allowzero``, a size of 0 means that of the input."""
    return {"allowzero": 1} if 0 in shape else {}


def dtype_of(dtype: Any) -> int:
    """Give ONNX's name of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
