"""Values of the shape arithmetic that is computed from constants and static shapes.

Exported training graphs compute shapes at run time (Shape, Gather, Concat, Reshape ...). Once the
sizes of the graph inputs are bound, all of this is constant, and knowing the values is what makes
the shapes behind it static.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.signature import Shape

Value: TypeAlias = NDArray[Any]

MAX_ELEMENTS = 1024
"""Larger tensors are data, not indices or shapes: their values are never looked at."""

INTEGERS = frozenset(
    int(dtype)
    for dtype in (
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
        TensorProto.BOOL,
    )
)

# Deterministic, and an index or a shape may come out of them.
_STANDARD_OPS = """
    Abs Add And Cast Concat ConstantOfShape CumSum Div Equal Expand Flatten Gather GatherElements
    GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pad Pow Range
    ReduceMax ReduceMin ReduceProd ReduceSum Reshape ScatterElements ScatterND Sign Slice Split Squeeze
    Sub Sum Tile Transpose Unsqueeze Where Xor
"""
_STANDARD = frozenset(_STANDARD_OPS.split())
FROM_SHAPE = frozenset({"Shape", "Size"})
"""Operators whose results follow from shapes alone."""

_TRAINING = frozenset({"ConcatTraining", "BroadcastGradientArgs"})

# What the reference operators raise when the values do not fit (division by zero, index out of range ...).
_REFUSALS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def is_small(shape: Sequence[int]) -> bool:
    """Whether the values of a tensor of this shape are looked at.

    >>> is_small((32, 32)), is_small((33, 32))
    (True, False)
    """
    return math.prod(shape) <= MAX_ELEMENTS


def may_fold(node: NodeProto) -> bool:
    """Whether :func:`fold` knows the op: the cheap question to ask of every node first."""
    if not node.domain:
        return node.op_type in _STANDARD or node.op_type in FROM_SHAPE
    return node.domain == "com.microsoft" and node.op_type in _TRAINING


def may_decide(node: NodeProto, dtype: int) -> bool:
    """Whether results of a type are looked at: numbers in FP64 are sizes as well, on their way to FP32."""
    return (
        dtype in INTEGERS
        or dtype == TensorProto.DOUBLE
        or (dtype == TensorProto.FLOAT and OpKey.of(node) == CAST)
    )


def fold(
    node: NodeProto, shapes: Sequence[Shape | None], values: Sequence[Value | None], opset: int
) -> tuple[Value | None, ...]:
    """Compute the outputs of a node from what is known of its inputs.

    The caller makes sure that the outputs are small (:func:`is_small`).

    There is one value per output, None where it cannot be known; and none at all when none can, be it
    because the values do not fit the op (a division by zero, say).

    `shapes` and `values`: of the inputs, by position; None where unknown or omitted.
    """
    try:
        with np.errstate(all="raise"):
            return _fold(node, shapes, values, opset)
    except _REFUSALS:
        return ()


def _fold(
    node: NodeProto, shapes: Sequence[Shape | None], values: Sequence[Value | None], opset: int
) -> tuple[Value | None, ...]:
    if node.op_type in FROM_SHAPE:
        return _fold_from_shape(node, shapes[0])
    if node.op_type == "ConcatTraining":
        return _fold_concat_training(node, shapes, values)
    if any(value is None for name, value in zip(node.input, values, strict=True) if name):
        return ()
    if node.op_type == "BroadcastGradientArgs":
        return _fold_broadcast_gradient_args(values)
    return _evaluate(node, values, opset)


class GatherElements(OpRun):
    """Look elements up; onnx's own chooses among as many arrays as NumPy takes, and is wrong beyond."""

    op_domain = ""

    def _run(self, data: Value, indices: Value, axis: int = 0) -> tuple[Value]:
        return (np.take_along_axis(data, indices.astype(np.int64), axis),)


def evaluated(graph: onnx.GraphProto, feeds: Mapping[str, Any], opset: int) -> list[Any]:
    """Compute the outputs of a graph of standard operators, in Python."""
    evaluator = ReferenceEvaluator(graph, opsets={"": opset}, new_ops=[GatherElements])
    return list(evaluator.run(None, dict(feeds)))


def _evaluate(node: NodeProto, values: Sequence[Value | None], opset: int) -> tuple[Value | None, ...]:
    feeds = {name: value for name, value in zip(node.input, values, strict=True) if name}
    outputs = [name for name in node.output if name]
    graph = onnx.GraphProto(
        node=[node],
        input=[onnx.ValueInfoProto(name=name) for name in feeds],
        output=[onnx.ValueInfoProto(name=name) for name in outputs],
    )
    results = evaluated(graph, feeds, opset)
    by_name = {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}
    return tuple(by_name.get(name) for name in node.output)


def _fold_from_shape(node: NodeProto, shape: Shape | None) -> tuple[Value | None, ...]:
    if shape is None:
        return ()
    if node.op_type == "Size":
        return (np.asarray(math.prod(shape), dtype=np.int64),)
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return (np.asarray(shape[bounds.get("start", 0) : bounds.get("end")], dtype=np.int64),)


def _fold_concat_training(
    node: NodeProto, shapes: Sequence[Shape | None], values: Sequence[Value | None]
) -> tuple[Value | None, ...]:
    """``Concat`` with a second output: the length of each input along the axis."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    known_shapes = [shape for shape in shapes if shape is not None]
    known_values = [value for value in values if value is not None]
    joined = lengths = None
    if len(known_values) == len(values):
        joined = np.concatenate(known_values, axis=axis)
        joined = joined if is_small(joined.shape) else None
    if len(known_shapes) == len(shapes):
        lengths = np.asarray([shape[axis] for shape in known_shapes], dtype=np.int64)
    return joined, lengths


def _fold_broadcast_gradient_args(values: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """Axes, last first, over which the gradient of each broadcast operand is summed."""
    a, b = ([int(size) for size in value] for value in values if value is not None)
    rank = max(len(a), len(b))
    axes: tuple[list[int], list[int]] = ([], [])
    for axis in reversed(range(rank)):
        # Shapes align at their ends; a missing leading axis is summed away whatever its size.
        i, j = axis - rank + len(a), axis - rank + len(b)
        if i < 0 or (j >= 0 and a[i] == 1 != b[j]):
            axes[0].append(axis)
        elif j < 0 or b[j] == 1 != a[i]:
            axes[1].append(axis)
    return tuple(np.asarray(side, dtype=np.int64) for side in axes)
