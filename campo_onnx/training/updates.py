"""Weight updates as small graphs over flat tensors.

The numbers of :func:`update_numbers` are computed in double and fed, so that the graph holds only passes over
memory: 2 nodes for SGD, 13 for AdamW, whatever the network.
Where ONNX Runtime has GatedAdd (``x + y * number`` in one pass), a sum of two terms is one node.
New state may be written over the old: each element is read before the node that replaces it.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import gated_add
from campo_onnx.builder.target import Target
from campo_onnx.builder.value import Value
from campo_onnx.export.optimizers import Optimizer
from campo_onnx.export.update_equations import Arithmetic, update_numbers, updated
from campo_onnx.training.flat_state import ROW

PARAMETER, GRADIENT = "param", "grad"
GRAD_SCALE = "grad_scale"
"""Factor on the gradient: it unscales, averages and clips."""

FURTHER, AVERAGE = "further", "average"
INVERSE, FINITE, NORM = "inverse", "finite", "norm"
_CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm
_OPSET = 20
_FLOAT = int(TensorProto.FLOAT)


def new(role: str) -> str:
    """Name the output that holds a role's next value."""
    return f"new_{role}"


def update_model(
    optimizer: Optimizer,
    rows: int,
    *,
    scaled: bool,
    tensor_of_row: NDArray[np.int64] | None = None,
    target: Target = "standard",
) -> onnx.ModelProto:
    """Write the update of a flat tensor.

    `tensor_of_row` has the number of the parameter that each row belongs to; for LAMB, which looks at the
    norm of each. Inputs are ``param``, ``grad``, the optimizer's slots and the numbers of
    :func:`update_numbers`; outputs ``new_param`` and the new slots.
    """
    g = _Flat(rows, target, tensor_of_row)
    weight, gradient = g.tensor(PARAMETER), g.tensor(GRADIENT)
    slots = {slot: g.tensor(slot) for slot in optimizer.slots}
    scale = g.number(GRAD_SCALE) if scaled else None
    numbers = {name: g.number(name) for name in update_numbers(optimizer, 1.0, 1.0)}
    new_weight, new_slots = updated(g, optimizer, weight, gradient, slots, numbers, scale)
    return g.model({PARAMETER: new_weight, **new_slots})


def accumulation_model(rows: int) -> onnx.ModelProto:
    """Write ``new_grad = grad + further``: one more batch's gradients on top of those before."""
    g = _Flat(rows)
    return g.model({GRADIENT: g.add(g.tensor(GRADIENT), g.tensor(FURTHER))})


def scaling_model(rows: int) -> onnx.ModelProto:
    """Write ``new_grad = grad * grad_scale``, for an update that is not ours."""
    g = _Flat(rows)
    return g.model({GRADIENT: g.mul(g.tensor(GRADIENT), g.number(GRAD_SCALE))})


def averaging_model(rows: int, decay: float, target: Target = "standard") -> onnx.ModelProto:
    """Write ``new_average = decay * average + (1 - decay) * param``."""
    g = _Flat(rows, target)
    return g.model({AVERAGE: g.sum(g.tensor(AVERAGE), decay, g.tensor(PARAMETER), 1 - decay)})


def check_model(rows: int, *, clip_norm: float | None, finite: bool) -> onnx.ModelProto:
    """Write what is asked of all gradients together before an update.

    `clip_norm` is the largest norm that gradients may have together; None does not ask. Inputs are ``grad``
    and :data:`INVERSE`, the factor that unscales and averages; outputs :data:`FINITE`, and :data:`NORM` and
    :data:`GRAD_SCALE` with clipping.
    """
    g = _Flat(rows)
    gradient = g.tensor(GRADIENT)
    results: dict[str, Value] = {}
    if finite:
        total = g.op("ReduceL1", gradient, g.integers([0, 1]), keepdims=0)
        results[FINITE] = g.op("Equal", g.sub(total, total), g.scalar(0, _FLOAT))
    if clip_norm is not None:
        inverse = g.number(INVERSE)
        squares = g.op("ReduceSumSquare", gradient, g.integers([1]), keepdims=0)
        length = g.op("Sqrt", g.op("ReduceSum", squares, g.integers([0]), keepdims=0))
        results[NORM] = norm = g.mul(length, inverse)
        share = g.op("Div", g.scalar(clip_norm, _FLOAT), g.add(norm, g.scalar(_CLIP_EPS, _FLOAT)))
        results[GRAD_SCALE] = g.mul(g.op("Min", share, g.scalar(1, _FLOAT)), inverse)
    return g.model(results, rename=False)


class _Flat(Arithmetic[Value]):
    """A graph over flat tensors of one size."""

    def __init__(
        self, rows: int, target: Target = "standard", tensor_of_row: NDArray[np.int64] | None = None
    ) -> None:
        self._graph = Graph(opset=_OPSET, target=target)
        self._tensor_of_row = tensor_of_row
        self.target = target
        self._rows = rows
        self.op, self.constant = self._graph.op, self._graph.constant
        self.scalar, self.integers = self._graph.scalar, self._graph.integers

    def tensor(self, name: str) -> Value:
        return self._graph.input(name, _FLOAT, (self._rows, ROW))

    def number(self, name: str) -> Value:
        return self._graph.input(name, _FLOAT, ())

    def add(self, a: Value, b: Value) -> Value:
        return self.op("Add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.op("Sub", a, b)

    def mul(self, a: Value, b: Value | float) -> Value:
        return self.op("Mul", a, self._value(b))

    def div(self, a: Value, b: Value) -> Value:
        return self.op("Div", a, b)

    def root(self, a: Value) -> Value:
        return self.op("Sqrt", a)

    def sum(self, a: Value, of_a: Value | float | None, b: Value, of_b: Value | float) -> Value:
        """Give the sum in as few passes as the target has nodes for; factors may be numbers for each row."""
        if self.target == "standard" or (isinstance(of_b, float) and of_b == 0):
            return super().sum(a, of_a, b, of_b)
        factor = self._of_rows(self._value(of_b))
        return gated_add(self._graph, a if of_a is None else self.mul(a, of_a), b, factor)

    def _value(self, number: Value | float) -> Value:
        return number if isinstance(number, Value) else self.scalar(number, _FLOAT)

    def _of_rows(self, number: Value) -> Value:
        return number if number.rank else self.op("Expand", number, self.integers([self._rows, 1]))

    def trust_ratio(self, weight: Value, direction: Value) -> Value:
        """Give a number for each row, that of its parameter."""
        assert self._tensor_of_row is not None  # the layout has it for every segment
        index = self.constant(self._tensor_of_row)
        zeros = self.constant(np.zeros(int(self._tensor_of_row[-1]) + 1, np.float32))

        def lengths(x: Value) -> Value:
            squares = self.op("ReduceSumSquare", x, self.integers([1]), keepdims=0)
            return self.op("Sqrt", self.op("ScatterElements", zeros, index, squares, axis=0, reduction="add"))

        length, step = lengths(weight), lengths(direction)
        zero, one = self.scalar(0, _FLOAT), self.scalar(1, _FLOAT)
        is_defined = self.op("And", self.op("Greater", length, zero), self.op("Greater", step, zero))
        ratio = self.op("Where", is_defined, self.op("Div", length, step), one)
        return self.op("Reshape", self.op("Gather", ratio, index, axis=0), self.integers([-1, 1]))

    def model(self, results: Mapping[str, Value], *, rename: bool = True) -> onnx.ModelProto:
        outputs = {new(name) if rename else name: value for name, value in results.items()}
        return self._graph.model(outputs, optional_inputs=frozenset())
