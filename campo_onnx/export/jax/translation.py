"""What every translation from JAX to ONNX is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import helper

from campo_onnx.export.value import Value


class UntranslatableError(Exception):
    """A primitive is used in a way that has no translation; the message says in which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Type and shape of a result, as JAX computes them.

    Parameters
    ----------
    dtype
        ``TensorProto.DataType``.
    shape
        Static dimensions.
    """

    dtype: int
    shape: tuple[int, ...]


Translation: TypeAlias = Callable[..., Value | Sequence[Value]]
"""``(graph, expected first result, *operands, **parameters of the primitive)``."""

Table: TypeAlias = Mapping[str, Translation]


def dtype_of(dtype: Any) -> int:
    """Give ONNX's name of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
