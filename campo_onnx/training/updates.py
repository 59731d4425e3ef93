"""Weight updates as small graphs over flat tensors; they compute what ``torch.optim`` computes.

What depends on the learning rate and the count of updates is a handful of numbers, computed here in double
and fed, so that the graph holds only passes over memory: 2 nodes for SGD, 13 for AdamW, whatever the network.
New state may be written over the old: each element is read before the node that replaces it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.export.graph import Graph
from campo_onnx.export.optimizers import LAMB, SGD, Adam, AdamW, Momentum, Optimizer
from campo_onnx.export.value import Value
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
    optimizer: Optimizer, rows: int, *, scaled: bool, tensor_of_row: NDArray[np.int64] | None = None
) -> onnx.ModelProto:
    """Write the update of a flat tensor.

    Parameters
    ----------
    optimizer
        Which update, and its constants.
    rows
        Rows of the tensors.
    scaled
        Whether gradients are multiplied by the input :data:`GRAD_SCALE` first.
    tensor_of_row
        Number of the parameter that each row belongs to; for LAMB, which looks at the norm of each.

    Returns
    -------
    onnx.ModelProto
        Inputs ``param``, ``grad``, the optimizer's slots and the numbers of :func:`update_numbers`;
        outputs ``new_param`` and the new slots.
    """
    g = _Flat(rows)
    weight, gradient = g.tensor(PARAMETER), g.tensor(GRADIENT)
    slots = {slot: g.tensor(slot) for slot in optimizer.slots}
    if scaled:
        gradient = g.mul(gradient, g.number(GRAD_SCALE))
    results: dict[str, Value] = {}
    match optimizer:
        case SGD():
            kept = g.mul(weight, g.number("decay")) if optimizer.weight_decay else weight
            results[PARAMETER] = g.sub(kept, g.mul(gradient, g.number("rate")))
        case Momentum():
            gradient = g.plus(gradient, weight, optimizer.weight_decay)
            results["mom"] = mom = g.add(g.times(slots["mom"], optimizer.momentum), gradient)
            direction = g.add(gradient, g.times(mom, optimizer.momentum)) if optimizer.nesterov else mom
            results[PARAMETER] = g.sub(weight, g.mul(direction, g.number("rate")))
        case Adam() | AdamW() | LAMB():
            if isinstance(optimizer, Adam):
                gradient = g.plus(gradient, weight, optimizer.weight_decay)
            direction = _adam_direction(g, optimizer, gradient, slots, results)
            results[PARAMETER] = _adam_step(g, optimizer, weight, direction, tensor_of_row)
    return g.model(results)


def _adam_direction(
    g: "_Flat",
    optimizer: Adam | AdamW | LAMB,
    gradient: Value,
    slots: Mapping[str, Value],
    results: dict[str, Value],
) -> Value:
    """Update the moments; gives m / (sqrt(v) + eps), the bias corrections left to two numbers."""
    one, two = optimizer.beta1, optimizer.beta2
    results["m"] = g.add(g.times(slots["m"], one), g.times(gradient, 1 - one))
    square = g.mul(gradient, gradient)
    results["v"] = g.add(g.times(slots["v"], two), g.times(square, 1 - two))
    return g.op("Div", results["m"], g.add(g.op("Sqrt", results["v"]), g.number("eps")))


def _adam_step(
    g: "_Flat",
    optimizer: Adam | AdamW | LAMB,
    weight: Value,
    direction: Value,
    tensor_of_row: NDArray[np.int64] | None,
) -> Value:
    rate = g.number("rate")
    if isinstance(optimizer, LAMB):
        assert tensor_of_row is not None  # the layout has it for every segment
        direction = g.plus(g.mul(direction, g.number("correction")), weight, optimizer.weight_decay)
        ratio = _trust_ratio(g, weight, direction, tensor_of_row)
        return g.sub(weight, g.mul(direction, g.mul(ratio, rate)))
    has_decay = isinstance(optimizer, AdamW) and optimizer.weight_decay
    kept = g.mul(weight, g.number("decay")) if has_decay else weight
    return g.sub(kept, g.mul(direction, rate))


def _trust_ratio(g: "_Flat", weight: Value, direction: Value, tensor_of_row: NDArray[np.int64]) -> Value:
    """Length of each parameter over that of its direction, a number for each row; 1 where one is zero."""
    index = g.constant(tensor_of_row)
    zeros = g.constant(np.zeros(int(tensor_of_row[-1]) + 1, np.float32))

    def lengths(x: Value) -> Value:
        squares = g.op("ReduceSumSquare", x, g.integers([1]), keepdims=0)
        return g.op("Sqrt", g.op("ScatterElements", zeros, index, squares, axis=0, reduction="add"))

    length, step = lengths(weight), lengths(direction)
    zero, one = g.scalar(0, _FLOAT), g.scalar(1, _FLOAT)
    is_defined = g.op("And", g.op("Greater", length, zero), g.op("Greater", step, zero))
    ratio = g.op("Where", is_defined, g.op("Div", length, step), one)
    return g.op("Reshape", g.op("Gather", ratio, index, axis=0), g.integers([-1, 1]))


def update_numbers(optimizer: Optimizer, lr: float, count: int) -> Mapping[str, float]:
    """Compute what an update is fed besides tensors.

    Parameters
    ----------
    optimizer
        Which update.
    lr
        Learning rate.
    count
        The number of this update, from 1 on.
    """
    match optimizer:
        case SGD(weight_decay=decay):
            return _numbers(rate=lr, decay=1 - lr * decay if decay else None)
        case Momentum():
            return _numbers(rate=lr)
    first, root = 1 - optimizer.beta1**count, (1 - optimizer.beta2**count) ** 0.5
    correction, eps = root / first, optimizer.eps * root
    match optimizer:
        case LAMB():
            return _numbers(rate=lr, correction=correction, eps=eps)
        case AdamW(weight_decay=decay) if decay:
            return _numbers(rate=lr * correction, eps=eps, decay=1 - lr * decay)
    return _numbers(rate=lr * correction, eps=eps)


def _numbers(**numbers: float | None) -> Mapping[str, float]:
    return MappingProxyType({name: number for name, number in numbers.items() if number is not None})


def accumulation_model(rows: int) -> onnx.ModelProto:
    """Write ``new_grad = grad + further``: one more batch's gradients on top of those before."""
    g = _Flat(rows)
    return g.model({GRADIENT: g.add(g.tensor(GRADIENT), g.tensor(FURTHER))})


def scaling_model(rows: int) -> onnx.ModelProto:
    """Write ``new_grad = grad * grad_scale``, for an update that is not ours."""
    g = _Flat(rows)
    return g.model({GRADIENT: g.mul(g.tensor(GRADIENT), g.number(GRAD_SCALE))})


def averaging_model(rows: int, decay: float) -> onnx.ModelProto:
    """Write ``new_average = decay * average + (1 - decay) * param``."""
    g = _Flat(rows)
    kept = g.times(g.tensor(AVERAGE), decay)
    return g.model({AVERAGE: g.plus(kept, g.tensor(PARAMETER), 1 - decay)})


def check_model(rows: int, *, clip_norm: float | None, finite: bool) -> onnx.ModelProto:
    """Write what is asked of all gradients together before an update.

    Parameters
    ----------
    rows
        Rows of the gradients.
    clip_norm
        The largest norm that gradients may have together; None does not ask.
    finite
        Whether to say in :data:`FINITE` if every element is finite.

    Returns
    -------
    onnx.ModelProto
        Inputs ``grad`` and :data:`INVERSE`, the factor that unscales and averages; outputs
        :data:`FINITE`, and :data:`NORM` and :data:`GRAD_SCALE` with clipping.
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


class _Flat:
    """A graph over flat tensors of one size."""

    def __init__(self, rows: int) -> None:
        self._graph = Graph(opset=_OPSET)
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

    def mul(self, a: Value, b: Value) -> Value:
        return self.op("Mul", a, b)

    def times(self, a: Value, number: float) -> Value:
        return self.mul(a, self.scalar(number, _FLOAT))

    def plus(self, a: Value, b: Value, number: float) -> Value:
        """Give ``a + number * b``."""
        return self.add(a, self.times(b, number)) if number else a

    def model(self, results: Mapping[str, Value], *, rename: bool = True) -> onnx.ModelProto:
        outputs = {new(name) if rename else name: value for name, value in results.items()}
        return self._graph.model(outputs, optional_inputs=frozenset())
