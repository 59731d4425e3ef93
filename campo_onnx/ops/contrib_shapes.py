"""Output types and shapes of training ops that ONNX has no schema for.

ONNX Runtime's training ops live in ``com.microsoft`` (a few older ones in the standard domain) and
PyTorch fallbacks in ``org.pytorch.aten``. A rule looks at what is known of the inputs and returns
one :class:`TensorSpec` per output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from campo_onnx.ops.fold import Shape, Value

BOOL, FLOAT, INT64, UINT32 = (
    int(dtype) for dtype in (TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT32)
)


class TensorSpec(NamedTuple):
    """What is known of a tensor: its ``TensorProto.DataType`` (0: unknown) and static shape."""

    dtype: int = 0
    shape: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """A node and what is known of its inputs.

    Parameters
    ----------
    node
        The node.
    specs, values
        Of the inputs, by position; an omitted input has an empty spec and no value.
    """

    node: NodeProto
    specs: tuple[TensorSpec, ...]
    values: tuple[Value | None, ...]

    def spec(self, index: int) -> TensorSpec:
        """Type and shape of an input; an empty spec beyond the last one."""
        return self.specs[index] if index < len(self.specs) else TensorSpec()

    def ints(self, index: int) -> Shape | None:
        """Value of an integer input as a flat tuple, or None when unknown."""
        value = self.values[index] if index < len(self.values) else None
        return None if value is None else tuple(int(item) for item in value.ravel())

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute; strings are decoded."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default


Rule: TypeAlias = Callable[[Operands], Sequence[TensorSpec]]


def contrib_rule(node: NodeProto) -> Rule | None:
    """Return the rule for a node, or None when this module knows none.

    A rule returns specs by output position (there may be more or fewer of them than outputs) and
    raises ValueError when the inputs contradict each other.
    """
    if node.domain == "org.pytorch.aten" and node.op_type == "ATen":
        operator = next((a.s.decode() for a in node.attribute if a.name == "operator"), "")
        return _ATEN_RULES.get(operator.removeprefix("aten::"))
    if node.domain in ("com.microsoft", "", "ai.onnx"):
        return _TRAINING_RULES.get(node.op_type)
    return None


def _like(*indices: int) -> Rule:
    """Make a rule: output ``i`` has the type and shape of input ``indices[i]``."""
    return lambda given: [given.spec(index) for index in indices]


def _shaped_by(shape_index: int, dtype_index: int) -> Rule:
    """Make a rule: the one output has the *value* of an input as its shape."""
    return lambda given: [TensorSpec(given.spec(dtype_index).dtype, given.ints(shape_index))]


def _conv_grad(given: Operands) -> list[TensorSpec]:
    x, w = given.spec(1), given.spec(2)
    return [x, w, TensorSpec(w.dtype, w.shape[:1] if w.shape else None)]


def _conv_transpose_grad(given: Operands) -> list[TensorSpec]:
    x, w = given.spec(1), given.spec(2)
    bias = (w.shape[1] * given.attribute("group", 1),) if w.shape else None
    return [x, w, TensorSpec(w.dtype, bias)]


def _layer_norm(given: Operands) -> list[TensorSpec]:
    """``LayerNormalization`` before opset 17, when it was ONNX Runtime's own."""
    x = given.spec(0)
    statistics = None
    if x.shape is not None:
        axis = given.attribute("axis", -1) % len(x.shape)
        statistics = x.shape[:axis] + (1,) * (len(x.shape) - axis)
    return [x, *[TensorSpec(given.attribute("stash_type", FLOAT), statistics)] * 2]


def _cross_entropy(given: Operands) -> list[TensorSpec]:
    """Loss and log-probabilities; ``output_type`` may let FP16 logits give an FP32 loss."""
    logits, labels = given.spec(0), given.spec(1)
    dtype = given.attribute("output_type", 0) or logits.dtype
    loss = labels.shape if given.attribute("reduction", "mean") == "none" else ()
    return [TensorSpec(dtype, loss), TensorSpec(dtype, logits.shape)]


def _cross_entropy_grad(given: Operands) -> list[TensorSpec]:
    dy, log_prob = given.spec(0), given.spec(1)
    return [TensorSpec(given.attribute("output_type", 0) or dy.dtype, log_prob.shape)]


def _fused_matmul(given: Operands) -> list[TensorSpec]:
    """``MatMul`` of operands transposed first; a vector is never transposed."""
    a = _transposed(given.spec(0).shape, given.attribute("transA", 0), given.attribute("transBatchA", 0))
    b = _transposed(given.spec(1).shape, given.attribute("transB", 0), given.attribute("transBatchB", 0))
    dtype = given.spec(0).dtype
    if a is None or b is None:
        return [TensorSpec(dtype)]
    if not a or not b:
        raise ValueError("a scalar cannot be an operand")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    if a[-1] != b[-2 if len(b) > 1 else -1]:
        raise ValueError(f"inner dimensions differ: {a[-1]} and {b[-2 if len(b) > 1 else -1]}")
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return [TensorSpec(dtype, (*batch, *rows, *columns))]


def _transposed(shape: Shape | None, last_two: int, batch: int) -> Shape | None:
    """Shape after FusedMatMul's two transpositions; `batch` moves axis 0 behind the batch axes."""
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if last_two else shape


def _reduce_sum_training(given: Operands) -> list[TensorSpec]:
    data, axes = given.spec(0), given.ints(1)
    if data.shape is None or axes is None:
        return [TensorSpec(data.dtype)]
    if not axes and given.attribute("noop_with_empty_axes", 0):
        return [data]
    rank = len(data.shape)
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    keep = given.attribute("keepdims", 1)
    sizes = [1 if axis in reduced else size for axis, size in enumerate(data.shape)]
    return [TensorSpec(data.dtype, tuple(s for i, s in enumerate(sizes) if keep or i not in reduced))]


def _concat_training(given: Operands) -> list[TensorSpec]:
    dtype, lengths = given.spec(0).dtype, TensorSpec(INT64, (len(given.specs),))
    shapes = [spec.shape for spec in given.specs if spec.shape is not None]
    if len(shapes) < len(given.specs):
        return [TensorSpec(dtype), lengths]
    axis = given.attribute("axis", 0) % len(shapes[0])
    if len({(*shape[:axis], 0, *shape[axis + 1 :]) for shape in shapes}) > 1:
        raise ValueError(f"sizes differ off axis {axis}")
    joined = (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
    return [TensorSpec(dtype, joined), lengths]


def _split_training(given: Operands) -> list[TensorSpec]:
    data, sizes, parts = given.spec(0), given.ints(1), len(given.node.output)
    if data.shape is None or sizes is None:
        return [TensorSpec(data.dtype)] * parts
    axis = given.attribute("axis", 0) % len(data.shape)
    if sum(sizes) != data.shape[axis] or len(sizes) != parts:
        raise ValueError(f"{sizes} does not split {data.shape[axis]} into {parts} outputs")
    return [TensorSpec(data.dtype, (*data.shape[:axis], size, *data.shape[axis + 1 :])) for size in sizes]


def _dropout(given: Operands) -> list[TensorSpec]:
    data = given.spec(0)
    return [data, TensorSpec(BOOL, data.shape)]


def _bitmask_dropout(given: Operands) -> list[TensorSpec]:
    # The mask packs 32 elements into one unsigned integer.
    data = given.spec(0)
    return [data, TensorSpec(UINT32, None if data.shape is None else (-(-prod(data.shape) // 32),))]


def _accumulate(given: Operands) -> list[TensorSpec]:
    return [TensorSpec(BOOL, (1,)), given.spec(0)]


def _yield(given: Operands) -> list[TensorSpec]:
    # The gradient that comes back for each output has its shape.
    return list(given.specs)


def _lamb(given: Operands) -> list[TensorSpec]:
    # The step, then (weight, gradient, moments, low-precision weight) groups, as they came in.
    return list(given.specs[4:])


def _max_pool_2d(given: Operands) -> list[TensorSpec]:
    """``max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)``."""
    x = given.spec(0)
    kernel, stride, padding, dilation, ceil = (given.ints(index) for index in range(1, 6))
    if x.shape is None or kernel is None:
        return [TensorSpec(x.dtype), TensorSpec(INT64)]
    window = zip(
        *(
            x.shape[-2:],
            _pair(kernel),
            _pair(stride or kernel),
            _pair(padding or (0,)),
            _pair(dilation or (1,)),
        ),
        strict=True,
    )
    pooled = (*x.shape[:-2], *(_pooled(*axis, ceil_mode=bool(ceil and ceil[0])) for axis in window))
    return [TensorSpec(x.dtype, pooled), TensorSpec(INT64, pooled)]


def _pair(sizes: Shape) -> Shape:
    return sizes * 2 if len(sizes) == 1 else sizes


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil_mode: bool) -> int:
    free = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (free + (stride - 1 if ceil_mode else 0)) // stride + 1
    # PyTorch drops a last window that would start in the padding on the right.
    return windows - 1 if ceil_mode and (windows - 1) * stride >= size + padding else windows


def _adaptive_avg_pool_2d(given: Operands) -> list[TensorSpec]:
    x, size = given.spec(0), given.ints(1)
    return [TensorSpec(x.dtype, None if x.shape is None or size is None else (*x.shape[:-2], *_pair(size)))]


def _embedding(given: Operands) -> list[TensorSpec]:
    weight, indices = given.spec(0), given.spec(1)
    if weight.shape is None or indices.shape is None:
        return [TensorSpec(weight.dtype)]
    return [TensorSpec(weight.dtype, (*indices.shape, *weight.shape[1:]))]


def _embedding_backward(given: Operands) -> list[TensorSpec]:
    """``embedding_backward(grad, indices, num_weights, ...)``."""
    grad, rows = given.spec(0), given.ints(2)
    return [TensorSpec(grad.dtype, (*rows, grad.shape[-1]) if rows and grad.shape else None)]


_SAME_AS_FIRST = """
    BiasFastGeluGrad_dX BiasGelu BiasGeluGrad_dX BiasSoftmax BitmaskDropoutGrad DropoutGrad FastGelu
    FastGeluGrad Gelu GeluGrad InPlaceAccumulator LeakyReluGrad LogSoftmaxGrad LogSoftmaxGrad_13 QuickGelu
    QuickGeluGrad ReluGrad Scale SigmoidGrad SinGrad SoftmaxGrad SoftmaxGrad_13 TanhGrad ZeroGradient
"""

_TRAINING_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME_AS_FIRST.split(), _like(0)),
    "AdamOptimizer": _like(1, 4, 5, 2, 3, 6),
    "AdamWOptimizer": _like(1),  # the updated weights and moments are sequences
    "AveragePoolGrad": lambda given: [TensorSpec(given.spec(0).dtype)],
    "BatchNormInternal": _like(0, 3, 4, 3, 4),
    "BatchNormalizationGrad": _like(1, 2, 2),
    "BiasDropout": _dropout,
    "BitmaskBiasDropout": _bitmask_dropout,
    "BitmaskDropout": _bitmask_dropout,
    "BroadcastGradientArgs": lambda given: [TensorSpec(INT64)] * 2,
    "ConcatTraining": _concat_training,
    "ConvGrad": _conv_grad,
    "ConvTransposeGrad": _conv_transpose_grad,
    "DivGrad": _like(1, 2),
    "FusedMatMul": _fused_matmul,
    "GatherElementsGrad": _shaped_by(1, 0),
    "GatherGrad": _shaped_by(0, 2),
    "GatherNDGrad": _shaped_by(0, 2),
    "InPlaceAccumulatorV2": _accumulate,
    "InvertibleLayerNormalizationGrad": _like(1, 2, 2),
    "LambOptimizer": _lamb,
    "LayerNormalization": _layer_norm,
    "LayerNormalizationGrad": _like(1, 2, 2),
    "MaxPoolGrad": lambda given: [TensorSpec(given.spec(0).dtype)],  # the input's size is lost
    "ReduceSumTraining": _reduce_sum_training,
    "ResizeGrad": _like(1),
    "SGDOptimizer": _like(1, 2),
    "SGDOptimizerV2": lambda given: [TensorSpec(BOOL, ())],
    "SimplifiedLayerNormalization": lambda given: _layer_norm(given)[:2],
    "SimplifiedLayerNormalizationGrad": _like(1, 2),
    "SliceGrad": _shaped_by(1, 0),
    "SoftmaxCrossEntropy": _cross_entropy,
    "SoftmaxCrossEntropyGrad": _cross_entropy_grad,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "SoftmaxCrossEntropyLossGrad": _cross_entropy_grad,
    "SoftmaxCrossEntropyLossInternal": _cross_entropy,
    "SoftmaxCrossEntropyLossInternalGrad": _cross_entropy_grad,
    "SplitTraining": _split_training,
    "TransposeMatMul": _fused_matmul,
    "YieldOp": _yield,
}

_ATEN_RULES: Mapping[str, Rule] = {
    "_adaptive_avg_pool2d": _adaptive_avg_pool_2d,
    "_adaptive_avg_pool2d_backward": _like(1),
    "adaptive_avg_pool2d": _adaptive_avg_pool_2d,
    "adaptive_avg_pool2d_backward": _like(1),
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "max_pool2d_with_indices": _max_pool_2d,
    "max_pool2d_with_indices_backward": _like(1),
}
