"""One node of a formula, and what numpy computes for each operator."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])

NUMPY: Mapping[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Not": np.logical_not,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Max": np.maximum,
    "Min": np.minimum,
    "MatMul": np.matmul,
    "Where": np.where,
    "And": np.logical_and,
    "Greater": np.greater,
    "Less": np.less,
    "Equal": np.equal,
    "GreaterOrEqual": np.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One node: its operator, what it and its body read, what it makes, and how numpy computes it."""

    op: str
    reads: tuple[str, ...]
    makes: str
    compute: Callable[..., Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    unread: int = 0
    captures: tuple[str, ...] = ()

    def result(self, values: Mapping[str, Array]) -> Array:
        """Compute the result of some values, by name."""
        return np.asarray(self.compute(*(values[name] for name in (*self.reads, *self.captures))))
