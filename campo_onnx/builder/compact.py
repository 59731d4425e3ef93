"""Constructors that write a computation with as few nodes as it takes: every node is a launch.

Each looks at how its operands were made and merges with that where the result is the same, bit for
bit: chains of Reshape and Transpose become one, broadcasts are left to the operator that broadcasts
anyway, Transpose goes into Gemm, constants meet constants at export.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import numpy_helper

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import CUDA
from campo_onnx.builder.value import Value, reshape_attributes


def reshape(g: Graph, x: Value, shape: Sequence[int]) -> Value:
    """``Reshape`` to static dimensions; a chain of them is one."""
    if tuple(shape) == x.shape:
        return x
    if (source := g.before(x, "Reshape")) is not None:
        return reshape(g, source, shape)
    uniform = g.producer(x, "ConstantOfShape")
    if uniform is not None:
        return g.op("ConstantOfShape", g.integers(shape), **uniform.attributes)
    return g.op("Reshape", x, g.integers(shape), **reshape_attributes(shape))


def transpose(g: Graph, x: Value, perm: Sequence[int]) -> Value:
    """``Transpose``; a chain of them is one, and one that only moves axes of size 1 is a Reshape."""
    moved = [axis for axis in perm if x.shape[axis] != 1]
    if moved == sorted(moved):
        return reshape(g, x, [x.shape[axis] for axis in perm])
    before = g.producer(x, "Transpose")
    if before is not None and before.inputs[0] is not None:
        return transpose(g, before.inputs[0], [before.attributes["perm"][axis] for axis in perm])
    return g.op("Transpose", x, perm=list(perm))


def swap_last_two(g: Graph, x: Value) -> Value:
    """Transpose the matrices in `x`."""
    return transpose(g, x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def full(g: Graph, shape: Sequence[int], number: float, dtype: int) -> Value:
    """Make a tensor of equal elements; large ones are made at run time and cost no file."""
    return expand(g, g.scalar(number, dtype), shape)


def expand(g: Graph, x: Value, shape: Sequence[int]) -> Value:
    """Broadcast to static dimensions."""
    if tuple(shape) == x.shape:
        return x
    if 0 in shape:  # ONNX Runtime's Expand leaves an axis of one element as it is
        return g.constant(np.zeros(shape, x.numpy_dtype))
    if x.constant is not None and x.elements == 1:
        return g.op("ConstantOfShape", g.integers(shape), value=x.constant.reshape(1))
    if (source := g.before(x, "Expand")) is not None:
        return expand(g, source, shape)
    return g.op("Expand", x, g.integers(shape))


def elementwise(g: Graph, op_type: str, *operands: Value | float) -> Value:
    """Add an elementwise operator on what its operands were before they were broadcast.

    Numbers take the type of the tensors.
    """
    dtype = next(x.dtype for x in reversed(operands) if isinstance(x, Value))
    values = [x if isinstance(x, Value) else g.scalar(x, dtype) for x in operands]
    if op_type == "Where" and values[1] is values[2]:
        return values[1]
    shape = np.broadcast_shapes(*(x.shape for x in values))
    result = _elementwise(g, op_type, [_before_broadcast(g, x) for x in values])
    return expand(g, result, shape)


def _before_broadcast(g: Graph, x: Value) -> Value:
    if (source := g.before(x, "Expand")) is not None:
        return source
    uniform = g.producer(x, "ConstantOfShape")
    if uniform is not None:
        return g.constant(numpy_helper.to_array(uniform.attributes["value"]).reshape(()))
    return x


_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Max": -np.inf, "Min": np.inf}
MANY_TERMS = 1 << 16
"""From so many values on, a sum of scaled gradients may overflow in FP16 before they do."""

_MANY_ROWS = 256
"""The CPU provider adds rows one after the other, slowly and at a cost of digits; from so many on it is given
parts of them first, wherever a step may run on it."""

_MANY_IN_ALL = 1 << 12
"""It has a running sum for each place of a register: of 11,000 losses near 0.7 the sum was off by 1.3e-5."""

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})


def _elementwise(g: Graph, op_type: str, operands: Sequence[Value]) -> Value:
    if op_type in _NEUTRAL:
        a, b = operands
        if _is(b, _NEUTRAL[op_type]) and b.elements == 1 and a.rank >= b.rank:
            return a
        if op_type in _COMMUTATIVE and _is(a, _NEUTRAL[op_type]) and a.elements == 1 and b.rank >= a.rank:
            return b
        if op_type == "Mul" and (regrouped := _numbers_first(g, a, b) or _numbers_first(g, b, a)) is not None:
            return regrouped
    return g.op(op_type, *_of_one_rank(g, operands))


def _numbers_first(g: Graph, product: Value, number: Value) -> Value | None:
    """Multiply a scaled tensor by a number: ``x * (2 / n) * scale`` is ``x * (2 / n * scale)``.

    It takes a pass less, and in FP16 ``x * (2 / n)`` may vanish before the loss scale makes up for it.
    """
    scaled = g.producer(product, "Mul")
    is_number = number.elements == 1 and number.constant is None and number.is_float
    if scaled is None or not is_number or product.elements == 1:
        return None
    x, factor = scaled.inputs
    if factor is None or factor.constant is None or factor.elements != 1:
        x, factor = factor, x
    if x is None or factor is None or factor.constant is None or factor.elements != 1:
        return None
    return g.op("Mul", *_of_one_rank(g, (x, _elementwise(g, "Mul", (number, factor)))))


def _of_one_rank(g: Graph, operands: Sequence[Value]) -> list[Value]:
    """Write single numbers with as many axes as the tensors they meet, where these end in an axis of size 1.

    The CPU provider goes through such a tensor element by element otherwise, twenty times slower.
    """
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    if len(shape) < 2 or shape[-1] != 1:
        return list(operands)
    return [
        x if x.constant is None or x.elements != 1 else g.constant(x.constant.reshape([1] * len(shape)))
        for x in operands
    ]


def scale_apart(g: Graph, x: Value) -> tuple[Value, float]:
    """Give `x` as a tensor times a number: what follows may have a place for it that costs no pass.

    Such a place is an attribute, and a number may depend on sizes: where these change it stays where it is.
    """
    producer = g.source(x)
    if g.sizes_change or producer is None or not producer.inputs or producer.inputs[0] is None:
        return x, 1.0
    first = producer.inputs[0]
    if producer.op_type in ("Reshape", "Transpose"):
        apart, scale = scale_apart(g, first)
        if scale == 1.0:
            return x, 1.0
        if producer.op_type == "Reshape":
            return reshape(g, apart, x.shape), scale
        return transpose(g, apart, producer.attributes["perm"]), scale
    if producer.op_type not in ("Mul", "Div") or not x.is_float:
        return x, 1.0
    operands = [v for v in producer.inputs if v is not None]
    for tensor, number in [operands, operands[::-1]][: 1 if producer.op_type == "Div" else 2]:
        if number.constant is None or number.elements != 1 or tensor.shape != x.shape:
            continue
        factor = float(number.constant.reshape(()))
        if factor != 0 and math.isfinite(factor):
            apart, scale = scale_apart(g, tensor)
            return apart, scale * (1 / factor if producer.op_type == "Div" else factor)
    return x, 1.0


def scaled(g: Graph, x: Value, scale: float) -> Value:
    """Multiply by a number; a chain of such products is one."""
    apart, before = scale_apart(g, x) if scale != 1.0 else (x, 1.0)
    return apart * (before * scale)


def _is(x: Value, number: float) -> bool:
    """Whether `x` is exactly `number`: near is not enough, an epsilon of 1e-8 is not zero."""
    return x.constant is not None and bool(np.all(x.constant == number))


def cast(g: Graph, x: Value, dtype: int) -> Value:
    """Convert the elements."""
    if x.dtype == dtype:
        return x
    before = _before_broadcast(g, x)
    return expand(g, g.op("Cast", before, to=dtype), x.shape)


def reduce(g: Graph, op_type: str, x: Value, axes: Sequence[int], *, keepdims: bool) -> Value:
    """Reduce over `axes`.

    Axes of size 1 are a matter of shape; the sum of absolute values is ReduceL1, and that of a stack
    of scalars is Sum, which takes them as they are.
    """
    if all(x.shape[axis] == 1 for axis in axes):
        shape_left = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
        return reshape(g, x, shape_left)
    stack = g.producer(x, "Concat")
    if op_type == "ReduceSum" and stack is not None and all(v and v.shape == (1,) for v in stack.inputs):
        total = g.op("Sum", *(reshape(g, v, ()) for v in stack.inputs if v is not None))
        return reshape(g, total, (1,) if keepdims else ())
    if op_type == "ReduceSum":
        apart, scale = scale_apart(g, x)
        if scale != 1.0:
            return scaled(g, reduce(g, op_type, apart, axes, keepdims=keepdims), scale)
    if op_type == "ReduceSum" and (signed := g.before(x, "Abs")) is not None:
        return g.op("ReduceL1", signed, g.integers(sorted(axes)), keepdims=int(keepdims))
    if g.sizes_change and op_type == "ReduceSum" and (parts := _parts_of_any_length(g, x, axes)) is not None:
        whole, first, then = parts
        sums = g.op(op_type, whole, g.integers(first), keepdims=0)
        total = g.op(op_type, sums, g.integers(then), keepdims=0)
        return (
            reshape(g, total, [1 if i in axes else n for i, n in enumerate(x.shape)]) if keepdims else total
        )
    if op_type == "ReduceMean" and _is_long_total(g, x, axes):
        return scaled(g, reduce(g, "ReduceSum", x, axes, keepdims=keepdims), 1 / x.elements)
    if op_type == "ReduceSum" and (runs := _runs(g, x, sorted(axes))) > 1:
        return _summed_in_parts(g, x, len(axes), runs, keepdims=keepdims)
    return g.op(op_type, x, g.integers(sorted(axes)), keepdims=int(keepdims))


def _runs(g: Graph, x: Value, axes: Sequence[int]) -> int:
    """Into how many runs the terms of a long sum over the first axes are parted; 1 for any other sum."""
    rows = math.prod(x.shape[axis] for axis in axes)
    is_of_rows = axes == list(range(len(axes))) and len(axes) < x.rank and rows >= _MANY_ROWS
    if g.target == CUDA or g.sizes_change or not (is_of_rows or _is_long_total(g, x, axes)):
        return 1
    return max(n for n in range(1, math.isqrt(rows) + 1) if rows % n == 0)


def _is_long_total(g: Graph, x: Value, axes: Sequence[int]) -> bool:
    """Whether a sum of all elements is so long that the CPU provider's few running sums lose digits."""
    many = x.elements >= _MANY_IN_ALL or (g.sizes_change and x.rank > 0)
    return g.target != CUDA and len(axes) == x.rank and many


def _parts_of_any_length(
    g: Graph, x: Value, axes: Sequence[int]
) -> tuple[Value, Sequence[int], Sequence[int]] | None:
    """Give what to sum in two steps instead, and the axes of both; None where there is one axis only.

    As :func:`_summed_in_parts` it makes runs shorter, whatever their lengths are.
    """
    rows = g.before(x, "Reshape")
    if g.target == CUDA:
        return None
    if list(axes) == [0] and rows is not None and rows.rank > x.rank > 1:
        gone = rows.rank - x.rank
        if rows.shape[gone + 1 :] == x.shape[1:]:
            return rows, range(1, gone + 1), [0]
    if len(axes) < 2 or sorted(axes) != list(range(len(axes))):
        return None
    return x, range(1, len(axes)), [0]


def _summed_in_parts(g: Graph, x: Value, count: int, runs: int, *, keepdims: bool) -> Value:
    """Sum over the first axes: runs of rows, then the sums of those.

    The runs are as long as there are runs of them, or nearly: 1,024 roundings in a row become 32 and 32.
    """
    rows, rest = math.prod(x.shape[:count]), x.shape[count:]
    sums = reduce(g, "ReduceSum", reshape(g, x, (runs, rows // runs, *rest)), [1], keepdims=False)
    total = reduce(g, "ReduceSum", sums, [0], keepdims=False)
    return reshape(g, total, (1,) * count + rest) if keepdims else total


def sum_per_channel(g: Graph, x: Value) -> Value:
    """Sum over all axes but the second, as in the gradient of a bias per channel.

    Over many elements, each sample is summed first: in FP16 the sum of a whole batch of scaled
    gradients may overflow where that of one sample does not, and the second sum reads so little that it
    may as well be FP32.
    """
    others = [axis for axis in range(x.rank) if axis != 1]
    if x.rank > 2 and (g.sizes_change or x.elements // x.shape[1] >= MANY_TERMS):
        x = reduce(g, "ReduceSum", x, others[1:], keepdims=False)
        others = [0]
    return reduce(g, "ReduceSum", x, others, keepdims=False)


def concat(g: Graph, parts: Sequence[Value], axis: int) -> Value:
    """Join along an axis."""
    parts = [part for part in parts if part.elements]
    return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=axis)


def crop(
    g: Graph, x: Value, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None
) -> Value:
    """Slice every axis from ``starts`` to ``ends``, within bounds and by positive steps."""
    steps = steps or [1] * x.rank
    cut = [i for i in range(x.rank) if (starts[i], ends[i], steps[i]) != (0, x.shape[i], 1)]
    if not cut:
        return x
    bounds = [g.integers([values[i] for i in cut]) for values in (starts, ends)]
    strides = [g.integers([steps[i] for i in cut])] if any(steps[i] != 1 for i in cut) else []
    return g.op("Slice", x, *bounds, g.integers(cut), *strides)


def sliced(g: Graph, x: Value, axis: int, first: int, last: int, step: int = 1) -> Value:
    """Slice one axis, within bounds and by a positive step."""
    starts, ends, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], ends[axis], steps[axis] = first, last, step
    return crop(g, x, starts, ends, steps)


def pad(g: Graph, x: Value, before: Sequence[int], after: Sequence[int], number: float = 0.0) -> Value:
    """Add `number` around `x`; a negative width crops."""
    x = crop(
        g, x, [max(0, -b) for b in before], [n - max(0, -a) for n, a in zip(x.shape, after, strict=True)]
    )
    widths = [max(0, width) for width in (*before, *after)]
    return g.op("Pad", x, g.integers(widths), g.scalar(number, x.dtype)) if any(widths) else x


def scatter_add_rows(g: Graph, rows: Value, indices: Value, count: int) -> Value:
    """Sum `rows` of the same index: the gradient of a lookup.

    ``ScatterND`` with repeated indices loses updates on the CPU provider as soon as it runs on two
    threads; ``ScatterElements`` does not, so the index is repeated along the row.

    `rows`: shape (n, width).
    `indices`: shape (n,), int64.
    """
    if indices.constant is not None and np.array_equal(
        indices.constant, indices.constant[0] + np.arange(indices.elements)
    ):
        first = int(indices.constant[0])  # rows in order, as of positions: nothing to sum
        return pad(g, rows, (first, 0), (count - first - indices.elements, 0))
    column = expand(g, reshape(g, indices, (indices.elements, 1)), rows.shape)
    zeros = full(g, (count, rows.shape[1]), 0, rows.dtype)
    return g.op("ScatterElements", zeros, column, rows, axis=0, reduction="add")
