"""Translation of a framework's operation to ONNX nodes, and tables of translations."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from onnx import helper

from campo_onnx.builder.compact import elementwise
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value


class UntranslatableError(Exception):
    """An operation is used in a way that cannot be translated."""

    def __init__(
        self, why: str, *, remedy: str = "Write that part with other operations, or report the operation."
    ) -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Type and shape of a result, as the framework computes them."""

    dtype: int
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type of an element."""
        return helper.tensor_dtype_to_np_dtype(self.dtype)


Translation: TypeAlias = Callable[..., Value | Sequence[Value | None]]
"""``(graph, expected first result, *operands, **parameters)``; None stands for a result nobody reads."""

Table: TypeAlias = Mapping[Hashable, Translation]
"""Translations by operation."""


def table(*rows: tuple[Any, Translation]) -> Table:
    """Make a table of translations.

    A row is an operation, or a tuple or set of operations, and the translation they share.

    >>> sorted(table(("add", len), (("mul", "div"), max)))
    ['add', 'div', 'mul']
    """
    return _unique((operation, one) for operations, one in rows for operation in _each(operations))


def merged(tables: Iterable[Table]) -> Table:
    """Join tables."""
    return _unique(row for each in tables for row in each.items())


def _each(operations: Any) -> Iterable[Hashable]:
    return operations if isinstance(operations, tuple | frozenset) else (operations,)


def _unique(rows: Iterable[tuple[Hashable, Translation]]) -> Table:
    translations: dict[Hashable, Translation] = {}
    for operation, translation in rows:
        if operation in translations:
            raise ValueError(f"{operation} has two translations: {translations[operation]} and {translation}")
        translations[operation] = translation
    return MappingProxyType(translations)


def path_part(key: Any) -> str:
    """Write one key of a path into nested containers, of PyTorch or of JAX."""
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


def log1p(g: Graph, expected: Expected, x: Value) -> Value:
    """Give log(1 + x)."""
    # log(1 + x) loses x below 1e-7; log(u) * x / (u - 1) with u = fl(1 + x) does not (Kahan).
    u = x + 1
    logarithm = elementwise(g, "Log", u)
    # Where nothing of 1 is left, up to infinity, the product with x would overflow.
    whole = elementwise(g, "Where", elementwise(g, "Equal", u, x), logarithm, logarithm * x / (u - 1))
    return elementwise(g, "Where", elementwise(g, "Equal", u, 1), x, whole)


def expm1(g: Graph, expected: Expected, x: Value) -> Value:
    """Give exp(x) - 1."""
    # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), without the cancellation near 0.
    return elementwise(g, "Tanh", x * 0.5) * (elementwise(g, "Exp", x) + 1)
