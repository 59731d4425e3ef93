"""Operations along the dimension of a tensor that has none: torch takes a scalar for a row of one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten

_ALONG_A_DIMENSION = (
    *(aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int, aten.var.correction, aten.any.dim),
    *(
        aten.amax.default,
        aten.amin.default,
        aten.max.dim,
        aten.min.dim,
        aten.argmax.default,
        aten.argmin.default,
    ),
    *(aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.cumprod.default),
    *(
        aten.sort.default,
        aten.topk.default,
        aten.kthvalue.default,
        aten.flip.default,
        aten.index_select.default,
    ),
    *(aten.gather.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default),
    *(aten.scatter_reduce.two, aten.scatter.reduce, aten.scatter.value_reduce, aten.index_reduce.default),
    *(aten.linalg_vector_norm.default, aten.var_mean.correction, aten.any.dims, aten.index_copy.default),
    *(aten.index_add.default, aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
)


def as_rows(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Add to rules of decomposition that scalars are made rows of one first."""
    return {**table, **{op: partial(_as_row, op, table.get(op)) for op in _ALONG_A_DIMENSION}}


def _as_row(op: Any, rule: Callable[..., Any] | None, x: Any, *arguments: Any, **settings: Any) -> Any:
    if x.dim():
        return NotImplemented if rule is None else rule(x, *arguments, **settings)
    rows = [a.reshape(1) if isinstance(a, torch.Tensor) and not a.dim() else a for a in (x, *arguments)]
    return tree_map(lambda result: result.reshape(()), op(*rows, **settings))
