"""Linear algebra on small matrices: elimination with pivots, Cholesky factors and triangular systems.

Written with operations that have translations, so that autograd differentiates the steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

_LARGEST = 32
"""Rows of a matrix up to which each step of the elimination is written into the graph."""


def _eliminated(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Give the solution of ``a @ x = b``, the pivots, and the sign that the order of their rows gives."""
    count = a.shape[-1]
    rows, rest = torch.arange(count), torch.cat([a, b.expand(*a.shape[:-1], b.shape[-1])], -1)
    is_free = torch.ones(a.shape[:-1], dtype=torch.bool)
    places, pivots = [], []
    for _ in range(count):
        column, rest = rest[..., 0], rest[..., 1:]
        place = torch.where(is_free, column.detach().abs(), -1).argmax(-1, keepdim=True)
        is_pivot = rows == place
        pivot = column.gather(-1, place)
        places.append(place)
        pivots.append(pivot.squeeze(-1))
        is_free = is_free & ~is_pivot
        if rest.shape[-1]:
            row = _rows(rest, place) / pivot.unsqueeze(-1)
            rest = torch.where(is_pivot.unsqueeze(-1), row, rest - column.unsqueeze(-1) * row)
    order = torch.cat(places, -1)
    is_swapped = (order.unsqueeze(-1) > order.unsqueeze(-2)) & (rows.unsqueeze(-1) < rows)
    sign = 1 - 2 * (is_swapped.sum((-2, -1)) % 2)
    return _rows(rest, order) if rest.shape[-1] else rest, pivots, sign.to(a.dtype)


def _rows(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return x.gather(-2, places.unsqueeze(-1).expand(*places.shape, x.shape[-1]))


def _slogdet(a: torch.Tensor) -> Any:
    _, pivots, sign = _eliminated(a, a[..., :0])
    stacked = torch.stack(pivots, -1)
    sign = sign * stacked.sign().prod(-1)
    return torch.return_types.linalg_slogdet((sign.detach(), stacked.abs().log().sum(-1)))


def _det(a: torch.Tensor) -> torch.Tensor:
    _, pivots, determinant = _eliminated(a, a[..., :0])
    for pivot in pivots:
        determinant = determinant * pivot
    return determinant


def _logdet(a: torch.Tensor) -> torch.Tensor:
    sign, logarithm = _slogdet(a)
    return torch.where(sign < 0, torch.nan, logarithm)


def _inv(a: torch.Tensor) -> torch.Tensor:
    return _eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype))[0]


def _solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    if not left:
        return _solve(a.mT, b.mT).mT
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    x = _eliminated(*_broadcast(a, b.unsqueeze(-1) if is_vector else b))[0]
    return x.squeeze(-1) if is_vector else x


def _broadcast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _cholesky(a: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    read = a.mT if upper else a
    lower = read.tril() + read.tril(-1).mT
    mean = (a + a.mT) / 2
    rest = mean + (lower - mean).detach()  # torch reads one triangle, and gives a symmetric gradient
    columns = []
    for place in range(a.shape[-1]):
        column = rest[..., 0] / rest[..., :1, 0].sqrt()
        columns.append(F.pad(column, (place, 0)))
        rest = rest[..., 1:, 1:] - column[..., 1:, None] * column[..., None, 1:]
    return torch.stack(columns, -2 if upper else -1)


def _solve_triangular(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    if not left:
        rows = _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular)
        return rows.mT
    if upper:
        flipped = _solve_triangular(a.flip(-1, -2), b.flip(-2), upper=False, unitriangular=unitriangular)
        return flipped.flip(-2)
    a, rest = _broadcast(a, b)
    rows = []
    for place in range(a.shape[-1]):
        column = a[..., place:, place].unsqueeze(-1)
        row = rest[..., :1, :] if unitriangular else rest[..., :1, :] / column[..., :1, :]
        rows.append(row)
        rest = rest[..., 1:, :] - column[..., 1:, :] * row
    return torch.cat(rows, -2)


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _solve_triangular(lower, b, upper=False), upper=True)


_OPTIONS = {"left", "upper", "unitriangular"}


def _if_small(function: Callable[..., Any], rule: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Leave to torch what is large, complex, or no square matrix, which is then refused by name.

    `place` is that of the matrix among the arguments.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= place or kwargs.keys() - _OPTIONS:
            return function(*args, **kwargs)
        a = args[place]
        is_small = a.dim() >= 2 and 0 < a.shape[-1] == a.shape[-2] <= _LARGEST
        return (rule if is_small and a.is_floating_point() else function)(*args, **kwargs)

    return call


_RULES: Mapping[Callable[..., Any], Sequence[Any]] = {
    _slogdet: (torch.slogdet, torch.Tensor.slogdet, torch.linalg.slogdet),
    _det: (torch.det, torch.Tensor.det, torch.linalg.det),
    _logdet: (torch.logdet, torch.Tensor.logdet),
    _inv: (torch.inverse, torch.Tensor.inverse, torch.linalg.inv),
    _solve: (torch.linalg.solve,),
    _cholesky: (torch.linalg.cholesky,),
    _solve_triangular: (torch.linalg.solve_triangular,),
    _cholesky_solve: (torch.cholesky_solve, torch.Tensor.cholesky_solve),
}

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    function: _if_small(function, rule, 1 if rule is _cholesky_solve else 0)
    for rule, functions in _RULES.items()
    for function in functions
}
"""Functions that are rewritten when they are called, in an export."""
