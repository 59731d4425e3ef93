"""A formula in other words: the same values by other operators, as other exporters and authors write them."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.formulas.formula import Tensor
from tests.formulas.step import Step

Way = Callable[..., Tensor | None]


def reworded(output: Tensor, share: float) -> Tensor:
    """Write a share of a formula's nodes in another way; a formula with loops stays as it is."""
    formula = output.formula
    if not share or any(step.captures for step in formula.steps):
        return output
    steps, formula.steps = formula.steps, []
    before, formula.values = formula.values, {n: formula.values[n] for n in formula.values if n[0] != "t"}
    now = {name: Tensor(formula, name) for name in formula.values}
    for step in steps:
        reads = [now[name] for name in step.reads]
        ways = _WAYS.get(step.op, ()) if formula.rng.random() < share and _are_numbers(reads[:1]) else ()
        other = formula.rng.choice(ways)(*reads) if ways and _are_plain(step, reads) else None
        if other is None:
            other = formula.node(step.op, *reads, compute=step.compute, unread=step.unread, **step.attributes)
        if formula.rng.random() < share / 2 and other.shape and _are_numbers([other]):
            other = formula.rng.choice(_MOVES)(other)
        if other.shape != before[step.makes].shape:
            raise ValueError(f"{step.op} of shape {before[step.makes].shape} is written with {other.shape}")
        now[step.makes] = other
    return now[output.name]


def _are_numbers(tensors: Sequence[Tensor]) -> bool:
    return all(t.formula.values[t.name].dtype.kind == "f" for t in tensors)


def _are_plain(step: Step, reads: Sequence[Tensor]) -> bool:
    """Whether a node has numbers alone, or is a sum along the last axis that stays."""
    if not step.op.startswith("Reduce"):
        return _are_numbers(reads)
    axes = reads[0].formula.constants[reads[1].name].tolist() if len(reads) > 1 else []
    return axes == [-1] and step.attributes["keepdims"] == 1 and len(reads[0].shape) == 2


def _in_fp64(x: Tensor) -> Tensor:
    return x.formula.node("Cast", x, compute=lambda v: v, to=TensorProto.DOUBLE).real()


def _turned(x: Tensor) -> Tensor:
    order = range(len(x.shape))[::-1]
    return x.transpose(*order).transpose(*order)


def _constant(x: Tensor, number: float) -> Tensor:
    """A number: an initializer, from FP64, or filled into a shape."""
    formula, value = x.formula, np.array([np.float32(number)])
    way = formula.rng.choice(("initializer", "FP64", "shape"))
    if way == "initializer":
        return formula.constant(value[0])
    if way == "FP64":
        wide = numpy_helper.from_array(value[0].astype(np.float64))
        return formula.node("Constant", compute=lambda: value[0].astype(np.float64), value=wide).real()
    shape = formula.constant(np.array([1]))
    filled = numpy_helper.from_array(value)
    one = formula.node("ConstantOfShape", shape, compute=lambda _: value.astype(np.float64), value=filled)
    return formula.node("Squeeze", one, compute=np.squeeze)


def _product(a: Tensor, b: Tensor) -> Tensor | None:
    letters = "abcdef"[: len(a.shape)]
    equation = f"{letters},{letters}->{letters}"
    return (
        a.formula.node("Einsum", a, b, compute=np.multiply, equation=equation) if a.shape == b.shape else None
    )


def _einsum(x: Tensor, _: Tensor) -> Tensor:
    total = x.formula.node("Einsum", x, compute=lambda v: v.sum(-1), equation="ab->a")
    return total.reshape(*x.shape[:1], 1)


def _by_ones(x: Tensor, _: Tensor) -> Tensor:
    ones = x.formula.constant(np.ones((1, 1, x.shape[1]), np.float32))
    rows = x.reshape(x.shape[0], 1, x.shape[1])
    total = x.formula.node("Conv", rows, ones, compute=lambda v, _: v.sum(-1, keepdims=True))
    return total.reshape(x.shape[0], 1)


def _by_exponential(a: Tensor, b: Tensor) -> Tensor | None:
    return (a.log() * b).exp() if (a.formula.values[a.name] > 0).all() else None


_MOVES: Sequence[Callable[[Tensor], Tensor]] = (
    _in_fp64,
    _turned,
    lambda x: x.formula.node("Identity", x, compute=lambda v: v),
    lambda x: x.reshape(-1).reshape(*x.shape),
)

_WAYS: Mapping[str, Sequence[Way]] = {
    "Add": (
        lambda a, b: a - (-b),
        lambda a, b: b - a * _constant(a, -1.0),
        lambda a, b: a.formula.node("Sum", a, b, compute=np.add),
    ),
    "Sub": (
        lambda a, b: a + (-b),
        lambda a, b: (-b) + a,
        lambda a, b: -(b - a),
        lambda a, b: a + b * _constant(a, -1.0),
        lambda a, b: a.formula.node("Sum", a, -b, compute=np.add),
    ),
    "Mul": (lambda a, b: b * a, _product),
    "Div": (lambda a, b: a * b.reciprocal(), lambda a, b: a * b**-1.0),
    "Pow": (_by_exponential,),
    "Neg": (lambda x: _constant(x, 0.0) - x, lambda x: x * _constant(x, -1.0)),
    "Abs": (lambda x: x.max(-x), lambda x: (-x).else_(x < 0.0, x)),
    "Max": (lambda a, b: a.else_(a > b, b), lambda a, b: -((-a).min(-b))),
    "Min": (lambda a, b: a.else_(a < b, b), lambda a, b: -((-a).max(-b))),
    "Relu": (lambda x: x.max(0.0), lambda x: x * (x > 0.0).real()),
    "Sqrt": (lambda x: x**0.5,),
    "Reciprocal": (lambda x: 1.0 / x, lambda x: x**-1.0),
    "Exp": (lambda x: _constant(x, math.e) ** x,),
    "Sigmoid": (lambda x: 1.0 / ((-x).exp() + 1.0), lambda x: ((-x).exp() + _constant(x, 1.0)).reciprocal()),
    "Softplus": (lambda x: x.relu() + ((-x.abs()).exp() + 1.0).log(),),
    "ReduceMean": (lambda x, _: x.sum() / _constant(x, x.shape[-1]),),
    "ReduceSum": (_einsum, _by_ones, lambda x, _: x.mean() * _constant(x, x.shape[-1])),
}
