"""Operands of ATen operations: their types, and numbers and axes in the forms that ONNX takes."""

from collections.abc import Sequence

import torch
from onnx import TensorProto

from campo_onnx.builder import compact
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.export.translation import UntranslatableError

aten = torch.ops.aten

DTYPES = {
    torch.float32: int(TensorProto.FLOAT),
    torch.float64: int(TensorProto.DOUBLE),
    torch.float16: int(TensorProto.FLOAT16),
    torch.bfloat16: int(TensorProto.BFLOAT16),
    torch.int64: int(TensorProto.INT64),
    torch.int32: int(TensorProto.INT32),
    torch.int16: int(TensorProto.INT16),
    torch.int8: int(TensorProto.INT8),
    torch.uint8: int(TensorProto.UINT8),
    torch.bool: int(TensorProto.BOOL),
}
"""ONNX's name of each type."""

FLOATS = frozenset(DTYPES[t] for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16))


def operand(g: Graph, x: Value | complex, dtype: int) -> Value:
    """Give a tensor or Python number as a value of type `dtype`."""
    if isinstance(x, Value):
        return compact.cast(g, x, dtype)
    if isinstance(x, complex):
        raise UntranslatableError("complex numbers")
    return g.scalar(x, dtype)


def promoted(x: Value, other: Value | complex) -> int:
    """Give the type in which torch compares a tensor with another, or with a Python number."""
    if isinstance(other, Value):
        return DTYPES[torch.promote_types(_torch_dtype(x), _torch_dtype(other))]
    return DTYPES[torch.float32] if isinstance(other, float) and x.dtype not in FLOATS else x.dtype


def _torch_dtype(x: Value) -> torch.dtype:
    return next(t for t, dtype in DTYPES.items() if dtype == x.dtype)


def axes_of(x: Value, dim: int | Sequence[int] | None) -> list[int]:
    """Give axes as sorted numbers from 0 on; None and an empty list mean all."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted(d % max(x.rank, 1) for d in dims) if dims else list(range(x.rank))


def pair(numbers: int | Sequence[int], count: int) -> list[int]:
    """Repeat one number for every spatial axis."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return listed * count if len(listed) == 1 else listed
