"""A formula in the making: written with Python's operators, computed in FP64 at once, a graph in the end."""

import math
import random
from collections import ChainMap
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.formulas.step import NUMPY, Array, Step

_PRODUCTS = frozenset({"MatMul"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


@dataclass
class Formula:
    """Inputs with their data, nodes, and the FP64 value of every tensor."""

    rng: random.Random
    prefix: str = ""
    is_computed: bool = False
    steps: list[Step] = field(default_factory=list)
    values: MutableMapping[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    body: "Formula | None" = None

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.rng.getrandbits(32))

    # --- data ---

    def size(self, *choices: int) -> int:
        """Draw a size."""
        return self.rng.choice(choices or (4, 7, 16, 33, 64))

    def number(self, low: float, high: float) -> float:
        """Draw a constant, each power of ten as often."""
        return float(np.float32(math.exp(self.rng.uniform(math.log(low), math.log(high)))))

    def input(self, value: Array) -> "Tensor":
        """Add an input; what the graph stores of a fraction is what FP64 computes with."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        tensor = self._input(array)
        if not self.is_computed or array.dtype.kind != "f" or array.ndim < 2:
            return tensor
        return tensor @ self._input(np.eye(array.shape[-1], dtype=np.float32))

    def _input(self, array: Array) -> "Tensor":
        return self._named(f"{self.prefix}in{len(self.inputs)}", array, self.inputs)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> "Tensor":
        return self.input(mean + scale * self.draw.standard_normal(shape))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> "Tensor":
        return self.input(self.draw.uniform(low, high, shape))

    def weight(self, *shape: int) -> "Tensor":
        """Draw what a layer multiplies by; activations keep their size."""
        return self._input((shape[-2] ** -0.5 * self.draw.standard_normal(shape)).astype(np.float32))

    def below(self, limit: int, *shape: int) -> "Tensor":
        return self.input(self.draw.integers(0, limit, shape))

    def mask(self, *shape: int, share: float = 0.7) -> "Tensor":
        """Draw zeros and ones; the first of each row is one."""
        value = (self.draw.random(shape) < share).astype(np.float32)
        value[..., 0] = 1
        return self.input(value)

    def constant(self, value: Any) -> "Tensor":
        array = np.asarray(value)
        array = array.astype(
            np.int64 if array.dtype.kind in "iu" else array.dtype if array.dtype == bool else np.float32
        )
        return self._named(f"{self.prefix}const{len(self.constants)}", array, self.constants)

    def arange(self, size: int) -> "Tensor":
        """Positions, as floats."""
        return self.constant(np.arange(size, dtype=np.float32))

    def _named(self, name: str, array: Array, into: dict[str, Array]) -> "Tensor":
        into[name] = array
        self.values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
        return Tensor(self, name)

    def formula_value(self, tensor: "Tensor") -> Array:
        """Value of a tensor in FP64, for data that lies close to it."""
        return self.values[tensor.name]

    # --- nodes ---

    def node(
        self,
        op: str,
        *reads: Any,
        compute: Callable[..., Array] | None = None,
        unread: int = 0,
        captures: tuple[str, ...] = (),
        **attributes: Any,
    ) -> "Tensor":
        """Add a node, to the body that is being written if there is one; nobody reads its further outputs."""
        if self.body is not None:
            return self.body.node(op, *reads, compute=compute, unread=unread, captures=captures, **attributes)
        tensors = [r if isinstance(r, Tensor) else self.constant(np.float32(r)) for r in reads]
        names = tuple(t.name for t in tensors)
        makes = f"{self.prefix}t{len(self.steps)}"
        step = Step(op, names, makes, compute or NUMPY[op], attributes, unread, captures)
        with np.errstate(all="ignore"):
            self.values[makes] = step.result(self.values)
        self.steps.append(step)
        return Tensor(self, step.makes)

    def repeat(
        self, rows: "Tensor", start: "Tensor", turn: Callable[["Tensor", "Tensor"], "Tensor"]
    ) -> "Tensor":
        """Scan the rows of a tensor: what `turn` makes of a state and a row is the next state."""
        body = Formula(self.rng, prefix=f"{self.prefix}body{len(self.steps)}_")
        state = body._named(f"{body.prefix}state", self.values[start.name], body.inputs)
        row = body._named(f"{body.prefix}row", self.values[rows.name][0], body.inputs)
        body.values = ChainMap(body.values, self.values)
        self.body = body
        result = turn(state, row)
        self.body = None

        read = dict.fromkeys(name for step in body.steps for name in (*step.reads, *step.captures))
        captures = tuple(name for name in read if name in self.values)

        def compute(first: Array, all_rows: Array, *outside: Array) -> Array:
            around = {**body.values, **dict(zip(captures, outside, strict=True))}
            for one in all_rows:
                values = {**around, state.name: first, row.name: one}
                for step in body.steps:
                    values[step.makes] = step.result(values)
                first = values[result.name]
            return first

        attributes = {"body": body.graph([result]), "num_scan_inputs": 1}
        return self.node("Scan", start, rows, compute=compute, captures=captures, **attributes)

    def graph(self, outputs: Sequence["Tensor"]) -> GraphProto:
        """Write the graph; the first tensors of a formula are its inputs."""
        nodes = [
            helper.make_node(
                s.op,
                s.reads,
                [s.makes, *(f"{s.makes}_{i}" for i in range(s.unread))],
                name=self._node(number),
                **s.attributes,
            )
            for number, s in enumerate(self.steps)
        ]
        return helper.make_graph(
            nodes,
            f"{self.prefix}formula",
            [_info(name, value) for name, value in self.inputs.items()],
            [_info(t.name, self.values[t.name]) for t in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )

    def model(self, outputs: Sequence["Tensor"]) -> ModelProto:
        """Write the graph as a model."""
        opset = helper.make_opsetid("", 20)
        return helper.make_model(self.graph(outputs), opset_imports=[opset], ir_version=10)

    @property
    def products(self) -> dict[str, Step]:
        """Products of matrices, by the name of their node."""
        return {self._node(i): s for i, s in enumerate(self.steps) if s.op in _PRODUCTS}

    @property
    def comparisons(self) -> dict[str, Step]:
        """Comparisons, by the name of their node."""
        return {self._node(i): s for i, s in enumerate(self.steps) if s.op in _COMPARISONS}

    def _node(self, number: int) -> str:
        return f"{self.prefix}{self.steps[number].op}_{number}"

    def with_rounded(self, names: Container[str], rounded: Callable[[Array], Array]) -> Mapping[str, Array]:
        """Compute in FP64 but for some nodes, whose operands and result are rounded."""
        values = {**self.inputs, **self.constants}
        values = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in values.items()}
        with np.errstate(all="ignore"):
            for number, step in enumerate(self.steps):
                if self._node(number) in names:
                    values[step.makes] = rounded(step.compute(*(rounded(values[t]) for t in step.reads)))
                else:
                    values[step.makes] = step.result(values)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of a formula."""

    formula: Formula
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.formula.values[self.name].shape

    def __getattr__(self, op: str) -> Callable[..., "Tensor"]:
        """``x.exp()`` is the operator ``Exp``."""
        name = "".join(part.capitalize() for part in op.split("_")) if op.islower() else op
        if name not in NUMPY:
            raise AttributeError(op)
        return lambda *others: self.formula.node(name, self, *others)

    def __add__(self, other: Any) -> "Tensor":
        return self.formula.node("Add", self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return self.formula.node("Add", other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return self.formula.node("Sub", self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return self.formula.node("Sub", other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return self.formula.node("Mul", self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return self.formula.node("Mul", other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return self.formula.node("Div", self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return self.formula.node("Div", other, self)

    def __pow__(self, other: Any) -> "Tensor":
        return self.formula.node("Pow", self, other)

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return self.formula.node("MatMul", self, other)

    def __neg__(self) -> "Tensor":
        return self.formula.node("Neg", self)

    def __gt__(self, other: Any) -> "Tensor":
        return self.formula.node("Greater", self, other)

    def __lt__(self, other: Any) -> "Tensor":
        return self.formula.node("Less", self, other)

    def reduced(self, how: str, axis: int | None = -1, *, keep: bool = True) -> "Tensor":
        """Reduce an axis, or all."""
        functions = {"Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min, "Prod": np.prod}
        functions["LogSumExp"] = _log_sum_exp
        attributes = {"keepdims": int(keep)}
        axes = [] if axis is None else [self.formula.constant(np.array([axis]))]
        return self.formula.node(
            f"Reduce{how}",
            self,
            *axes,
            compute=lambda x, *_: functions[how](x, axis=axis, keepdims=keep),
            **attributes,
        )

    def sum(self, axis: int | None = -1, *, keep: bool = True) -> "Tensor":
        return self.reduced("Sum", axis, keep=keep)

    def mean(self, axis: int | None = -1, *, keep: bool = True) -> "Tensor":
        return self.reduced("Mean", axis, keep=keep)

    def most(self, axis: int | None = -1, *, keep: bool = True) -> "Tensor":
        return self.reduced("Max", axis, keep=keep)

    def least(self, axis: int | None = -1, *, keep: bool = True) -> "Tensor":
        return self.reduced("Min", axis, keep=keep)

    def product(self, axis: int = -1) -> "Tensor":
        return self.reduced("Prod", axis)

    def softmax(self, axis: int = -1) -> "Tensor":
        return self.formula.node("Softmax", self, compute=lambda x: np.exp(_log_softmax(x, axis)), axis=axis)

    def log_softmax(self, axis: int = -1) -> "Tensor":
        return self.formula.node("LogSoftmax", self, compute=lambda x: _log_softmax(x, axis), axis=axis)

    def clip(self, low: float, high: float) -> "Tensor":
        return self.formula.node("Clip", self, low, high, compute=lambda x, a, b: np.clip(x, a, b))

    def cumsum(self, axis: int = -1) -> "Tensor":
        at = self.formula.constant(np.array(axis))
        return self.formula.node("CumSum", self, at, compute=lambda x, _: np.cumsum(x, axis))

    def mod(self, step: float) -> "Tensor":
        return self.formula.node("Mod", self, step, compute=np.fmod, fmod=1)

    def sorted(self) -> "Tensor":
        """The last axis, from the largest to the smallest."""
        count = self.formula.constant(np.array([self.shape[-1]]))
        return self.formula.node("TopK", self, count, unread=1, compute=lambda x, _: -np.sort(-x, -1))

    def transpose(self, *order: int) -> "Tensor":
        order = order or (*range(len(self.shape) - 2), len(self.shape) - 1, len(self.shape) - 2)
        return self.formula.node("Transpose", self, compute=lambda x: np.transpose(x, order), perm=order)

    def reshape(self, *shape: int) -> "Tensor":
        target = self.formula.constant(np.array(shape))
        return self.formula.node("Reshape", self, target, compute=lambda x, _: np.reshape(x, shape))

    def part(self, start: int, end: int, axis: int = -1) -> "Tensor":
        """Slice one axis."""
        where = [self.formula.constant(np.array([v])) for v in (start, end, axis)]

        def cut(x: Array, *_: Array) -> Array:
            index: list[slice] = [slice(None)] * x.ndim
            index[axis] = slice(start, end)
            return x[tuple(index)]

        return self.formula.node("Slice", self, *where, compute=cut)

    def take(self, indices: "Tensor", axis: int = 0) -> "Tensor":
        def gather(x: Array, i: Array) -> Array:
            return np.take(x, i.astype(np.int64), axis)

        return self.formula.node("Gather", self, indices, compute=gather, axis=axis)

    def pick(self, indices: "Tensor", axis: int = -1) -> "Tensor":
        """One element of each row."""

        def gather(x: Array, i: Array) -> Array:
            return np.take_along_axis(x, i.astype(np.int64), axis)

        return self.formula.node("GatherElements", self, indices, compute=gather, axis=axis)

    def integer(self) -> "Tensor":
        return self.formula.node("Cast", self, compute=lambda x: x.astype(np.int64), to=TensorProto.INT64)

    def real(self) -> "Tensor":
        return self.formula.node("Cast", self, compute=lambda x: x.astype(np.float64), to=TensorProto.FLOAT)

    def else_(self, condition: "Tensor", other: Any) -> "Tensor":
        """This where the condition holds, else the other."""
        return self.formula.node("Where", condition, self, other)


def concat(*parts: Tensor, axis: int = -1) -> Tensor:
    joined = parts[0].formula.node
    return joined("Concat", *parts, compute=lambda *values: np.concatenate(values, axis), axis=axis)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


def _log_sum_exp(x: Array, axis: int | None, keepdims: bool) -> Array:
    top = x.max(axis, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


def _info(name: str, value: Array) -> Any:
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
    return helper.make_tensor_value_info(name, kinds[value.dtype.kind], value.shape)
