"""Weight updates as small graphs over flat tensors; they compute what ``torch.optim`` computes.

What depends on the learning rate and the count of updates is a handful of numbers, computed here in double
and fed, so that the graph holds only passes over memory: 2 nodes for SGD, 13 for AdamW, whatever the network.
Where ONNX Runtime has GatedAdd (``x + y * number`` in one pass), a sum of two terms is one node; on CUDA also
where both have a factor.
New state may be written over the old: each element is read before the node that replaces it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.scaled_sums import gated_add, may_mix, mixed
from campo_onnx.builder.target import Target
from campo_onnx.builder.value import Value
from campo_onnx.export.optimizers import LAMB, SGD, Adam, AdamW, Momentum, Optimizer
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

    Parameters
    ----------
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
    g = _Flat(rows, target)
    weight, gradient = g.tensor(PARAMETER), g.tensor(GRADIENT)
    slots = {slot: g.tensor(slot) for slot in optimizer.slots}
    scale = g.number(GRAD_SCALE) if scaled else None
    results: dict[str, Value] = {}
    match optimizer:
        case SGD():
            decay, step = g.number("decay") if optimizer.weight_decay else None, g.number("step")
            results[PARAMETER] = g.sum(weight, decay, gradient, step if scale is None else g.mul(step, scale))
        case Momentum():
            if optimizer.weight_decay:
                gradient, scale = g.sum(gradient, scale, weight, optimizer.weight_decay), None
            results["mom"] = mom = g.sum(gradient, scale, slots["mom"], optimizer.momentum)
            direction = g.sum(gradient, scale, mom, optimizer.momentum) if optimizer.nesterov else mom
            results[PARAMETER] = g.sum(weight, None, direction, g.number("step"))
        case Adam() | AdamW() | LAMB():
            if isinstance(optimizer, Adam) and optimizer.weight_decay:
                gradient, scale = g.sum(gradient, scale, weight, optimizer.weight_decay), None
            _update_moments(g, optimizer, gradient, scale, slots, results)
            results[PARAMETER] = _adam_step(g, optimizer, weight, results, tensor_of_row)
    return g.model(results)


def _update_moments(
    g: "_Flat",
    optimizer: Adam | AdamW | LAMB,
    gradient: Value,
    scale: Value | None,
    slots: Mapping[str, Value],
    results: dict[str, Value],
) -> None:
    """Move the moments towards the gradient and its square; what unscales it is a factor on each."""
    one, two = optimizer.beta1, optimizer.beta2
    share = g.share(1 - one, scale)
    results["m"] = g.sum(slots["m"], one, gradient, share)
    square = g.mul(gradient, gradient)
    share = g.share(1 - two, None if scale is None else g.mul(scale, scale))
    results["v"] = g.sum(slots["v"], two, square, share)


def _adam_step(
    g: "_Flat",
    optimizer: Adam | AdamW | LAMB,
    weight: Value,
    moments: Mapping[str, Value],
    tensor_of_row: NDArray[np.int64] | None,
) -> Value:
    """Step along m / (sqrt(v) + eps), the bias corrections left to numbers."""
    root = g.op("Sqrt", moments["v"])
    direction = g.op("Div", moments["m"], g.add(root, g.number("eps")))
    step = g.number("step")
    if isinstance(optimizer, LAMB):
        assert tensor_of_row is not None  # the layout has it for every segment
        direction = g.sum(direction, g.number("correction"), weight, optimizer.weight_decay)
        ratio = _trust_ratio(g, weight, direction, tensor_of_row)
        return g.sum(weight, None, direction, g.mul(ratio, step))
    has_decay = isinstance(optimizer, AdamW) and optimizer.weight_decay
    return g.sum(weight, g.number("decay") if has_decay else None, direction, step)


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
    count
        The number of this update, from 1 on.
    """
    match optimizer:
        case SGD(weight_decay=decay):
            return _numbers(step=-lr, decay=1 - lr * decay if decay else None)
        case Momentum():
            return _numbers(step=-lr)
    first, root = 1 - optimizer.beta1**count, (1 - optimizer.beta2**count) ** 0.5
    correction, eps = root / first, optimizer.eps * root
    match optimizer:
        case LAMB():
            return _numbers(step=-lr, correction=correction, eps=eps)
        case AdamW(weight_decay=decay) if decay:
            return _numbers(step=-lr * correction, eps=eps, decay=1 - lr * decay)
    return _numbers(step=-lr * correction, eps=eps)


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


def averaging_model(rows: int, decay: float, target: Target = "standard") -> onnx.ModelProto:
    """Write ``new_average = decay * average + (1 - decay) * param``."""
    g = _Flat(rows, target)
    return g.model({AVERAGE: g.sum(g.tensor(AVERAGE), decay, g.tensor(PARAMETER), 1 - decay)})


def check_model(rows: int, *, clip_norm: float | None, finite: bool) -> onnx.ModelProto:
    """Write what is asked of all gradients together before an update.

    Parameters
    ----------
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

    def __init__(self, rows: int, target: Target = "standard") -> None:
        self._graph = Graph(opset=_OPSET, target=target)
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

    def mul(self, a: Value, b: Value) -> Value:
        return self.op("Mul", a, b)

    def sum(self, a: Value, of_a: Value | float | None, b: Value, of_b: Value | float) -> Value:
        """Give ``a * of_a + b * of_b``: numbers that are fed, or one a row, or known; None for no factor."""
        share = None if of_a is None else self._value(of_a)
        first = a if share is None else self.mul(a, share)
        if isinstance(of_b, float) and of_b == 0:
            return first
        factor = self._value(of_b)
        if share is not None and may_mix(self._graph, a):
            return mixed(self._graph, a, self._of_rows(share), b, self._of_rows(factor))
        if self.target == "standard":
            return self.add(first, self.mul(b, factor))
        return gated_add(self._graph, first, b, self._of_rows(factor))

    def _value(self, number: Value | float) -> Value:
        return number if isinstance(number, Value) else self.scalar(number, _FLOAT)

    def _of_rows(self, number: Value) -> Value:
        return number if number.rank else self.op("Expand", number, self.integers([self._rows, 1]))

    def share(self, number: float, scale: Value | None) -> Value | float:
        """Give a known number times one that is fed, if there is one."""
        return number if scale is None else self.mul(scale, self.scalar(number, _FLOAT))

    def model(self, results: Mapping[str, Value], *, rename: bool = True) -> onnx.ModelProto:
        outputs = {new(name) if rename else name: value for name, value in results.items()}
        return self._graph.model(outputs, optional_inputs=frozenset())
