"""What a node computes and moves, from shapes alone: FLOPs, GEMM geometry and bytes.

One multiply-add is two FLOPs. GEMM counts are exact; those of memory-bound ops are rough (their
time is their bytes). The table :data:`_ROWS` is keyed by op; an op that is not in it counts as
one FLOP per element of its largest tensor, and :func:`is_known` says so.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.gemms import (
    GemmShape,
    conv,
    conv_grad,
    conv_transpose,
    einsum,
    gemm,
    matmul,
    rnn,
)
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision


class WorkKind(Enum):
    """What limits a node."""

    GEMM = "gemm"  # matrix products and convolutions: arithmetic, tensor-core candidates
    STREAM = "stream"  # everything that reads and writes its tensors: memory bandwidth
    VIEW = "view"  # another name for the same bytes: the host only
    NONE = "none"  # answers from shapes or is known before the step: the host only


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Arithmetic of one node.

    Parameters
    ----------
    kind
        What limits the node.
    flops
        Operations; for GEMM the sum over `gemms` (biases and activations ride along free).
    gemms
        The matrix products of a GEMM node: two for ConvGrad and RNNs, else one.
    known
        Whether every shape that FLOPs and bytes depend on is known. Unknown ones count zero.
    """

    kind: WorkKind
    flops: float
    gemms: tuple[GemmShape, ...] = ()
    known: bool = True


def work_of(node: OpNode, view: GraphView) -> Work:
    """Count what a node computes.

    Parameters
    ----------
    node
        A node of `view`.
    view
        Where the shapes are.
    """
    match _TABLE.get(node.op, _UNLISTED):
        case WorkKind() as kind:
            return Work(kind=kind, flops=0.0)
        case _Gemm() as gemm:
            return _gemm_work(gemm, node, view)
        case _Stream() as stream:
            return _stream_work(stream, node, view)


def is_known(op: OpKey) -> bool:
    """Whether the op is in the table on purpose, rather than guessed at."""
    return op in _TABLE


def moved_bytes(node: OpNode, view: GraphView, ports: Ports, low: Precision | None) -> float:
    """Bytes a node reads and writes in main memory.

    Parameters
    ----------
    node
        A node of `view`.
    view
        Where shapes and types are; a tensor without them counts zero.
    ports
        Which tensors change precision with the node.
    low
        Precision of those tensors, or None to count every tensor as it is stored.

    Notes
    -----
    A tensor is read once, however many positions read it: caches do the rest. That holds for
    Softmax and LayerNormalization too, whose rows fit on the chip, but not for normalizations
    over the batch and for gradients that reduce twice: they read everything again.
    """
    entry = _TABLE.get(node.op, _UNLISTED)
    if isinstance(entry, WorkKind):
        return 0.0
    reads = {(t, low is not None and i in ports.low_inputs) for i, t in enumerate(node.inputs) if t}
    writes = [(t, low is not None and i in ports.low_outputs) for i, t in enumerate(node.outputs) if t]
    written = sum(_nbytes(view, tensor, low if lowered else None) for tensor, lowered in writes)
    passes = 1
    if isinstance(entry, _Stream):
        passes = 2 if _training(node) else entry.passes
        if entry.gathers:
            # Only the rows asked for are read, and they are as large as what is written.
            reads = {(t, lowered) for t, lowered in reads if t != node.inputs[0]}
            written *= 2
    return written + passes * sum(_nbytes(view, t, low if lowered else None) for t, lowered in reads)


def _nbytes(view: GraphView, tensor: str, low: Precision | None) -> float:
    info = view.tensors.get(tensor)
    if info is None:
        return 0.0
    return info.nbytes if low is None else float((info.elements or 0) * low.itemsize_bytes)


def _training(node: OpNode) -> bool:
    """Whether this is a BatchNormalization that reduces over the batch before it normalizes."""
    return node.op.op_type == "BatchNormalization" and bool(node.attributes.get("training_mode", 0))


@dataclass(frozen=True, slots=True)
class _Stream:
    """A memory-bound op: FLOPs per element of its largest tensor, and how it reads."""

    flops: float = 1.0
    passes: int = 1
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class _Gemm:
    """A matrix-product op: its formula and the positions of the shapes the formula takes."""

    formula: Callable[..., tuple[GemmShape, ...]]
    inputs: tuple[int, ...] | None = (0, 1)  # None: all of them
    outputs: tuple[int, ...] = ()


_Entry: TypeAlias = WorkKind | _Stream | _Gemm
_UNLISTED = _Stream()


def _gemm_work(entry: _Gemm, node: OpNode, view: GraphView) -> Work:
    positions = range(len(node.inputs)) if entry.inputs is None else entry.inputs
    tensors = [node.inputs[i] for i in positions] + [node.outputs[i] for i in entry.outputs]
    shapes = [view.shape(tensor) for tensor in tensors]
    if None in shapes:
        return Work(kind=WorkKind.GEMM, flops=0.0, known=False)
    gemms = entry.formula(node, *shapes)
    return Work(
        kind=WorkKind.GEMM,
        flops=sum(gemm.flops for gemm in gemms),
        gemms=gemms,
        known=None not in _shapes(node, view),
    )


def _stream_work(entry: _Stream, node: OpNode, view: GraphView) -> Work:
    shapes = _shapes(node, view)
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    if "kernel_shape" in node.attributes:  # a pool: one window for each element of its small side
        elements = min(sizes, default=0) * math.prod(node.attributes["kernel_shape"])
    else:
        elements = max(sizes, default=0)
    return Work(kind=WorkKind.STREAM, flops=entry.flops * elements, known=None not in shapes)


def _shapes(node: OpNode, view: GraphView) -> list[tuple[int, ...] | None]:
    return [view.shape(tensor) for tensor in (*node.inputs, *node.outputs) if tensor]


_MS = "com.microsoft"

# Rows of (entry, domain, op types). FLOPs of STREAM ops are rough: 1 for an add, about 10 for a
# transcendental function, 0 for pure movement; gradients cost their forward op and a little more.
_ROWS: tuple[tuple[_Entry, str, str], ...] = (
    (_Gemm(matmul), "", "MatMul"),
    (_Gemm(matmul), _MS, "FusedMatMul TransposeMatMul"),
    (_Gemm(gemm), "", "Gemm"),
    (_Gemm(gemm), _MS, "FusedGemm"),
    (_Gemm(conv, inputs=(1,), outputs=(0,)), "", "Conv"),
    (_Gemm(conv, inputs=(1,), outputs=(0,)), _MS, "FusedConv"),
    (_Gemm(conv_transpose), "", "ConvTranspose"),
    (_Gemm(conv_grad, inputs=(0, 2)), _MS, "ConvGrad"),
    (_Gemm(rnn, inputs=(0, 1, 2)), "", "RNN GRU LSTM"),
    (_Gemm(einsum, inputs=None), "", "Einsum"),
    (WorkKind.VIEW, "", "Reshape Squeeze Unsqueeze Flatten Identity"),
    (WorkKind.VIEW, _MS, "YieldOp View PassThrough"),
    (WorkKind.NONE, "", "Constant Shape Size"),
    (WorkKind.NONE, _MS, "BroadcastGradientArgs"),
    (_Stream(0), "", "Cast CastLike ConstantOfShape Expand Tile Transpose Concat Split Pad Where"),
    (_Stream(0), "", "DepthToSpace SpaceToDepth ReverseSequence Trilu EyeLike OneHot Compress Range"),
    (_Stream(0), "", "ScatterElements ScatterND Scatter TensorScatter NonZero"),
    (_Stream(0), _MS, "ConcatTraining SplitTraining GatherGrad GatherElementsGrad GatherNDGrad SliceGrad"),
    (_Stream(0), _MS, "ZeroGradient PadAndUnflatten FlattenAndUnpad"),
    (_Stream(0, gathers=True), "", "Gather GatherElements GatherND Slice"),
    (_Stream(0, gathers=True), _MS, "ShrunkenGather"),
    (_Stream(1), "", "Add Sub Mul Neg Abs Max Min Sum Mean Relu LeakyRelu PRelu Clip ThresholdedRelu Shrink"),
    (_Stream(1), "", "Equal Less LessOrEqual Greater GreaterOrEqual Not And Or Xor Sign IsNaN IsInf"),
    (_Stream(1), "", "Floor Ceil Round BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift"),
    (_Stream(1), _MS, "ReluGrad LeakyReluGrad BiasAdd InPlaceAccumulatorV2 ScaledSum IsFinite IsAllFinite"),
    (_Stream(4), "", "Div Mod Sqrt Reciprocal HardSigmoid HardSwish Softsign"),
    (_Stream(4), _MS, "DivGrad SigmoidGrad TanhGrad"),
    (_Stream(10), "", "Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Tanh Sigmoid Erf Pow"),
    (_Stream(10), "", "Softplus Elu Selu Celu Mish Swish RotaryEmbedding"),
    (_Stream(10), _MS, "RotaryEmbedding"),
    (_Stream(15), "", "Gelu"),
    (_Stream(15), _MS, "Gelu FastGelu QuickGelu BiasGelu"),
    (_Stream(25), _MS, "GeluGrad FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX"),
    (_Stream(10), "", "RandomUniform RandomUniformLike RandomNormal RandomNormalLike Bernoulli Dropout"),
    (_Stream(10), _MS, "BiasDropout BitmaskDropout BitmaskBiasDropout"),
    (_Stream(2), _MS, "DropoutGrad BitmaskDropoutGrad"),
    (
        _Stream(1),
        "",
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ArgMax ArgMin CumSum CumProd",
    ),
    (_Stream(2), "", "ReduceL2 ReduceSumSquare"),
    (_Stream(10), "", "ReduceLogSum ReduceLogSumExp TopK"),
    (_Stream(1), _MS, "ReduceSumTraining"),
    (_Stream(1), "", "MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool"),
    (_Stream(1), "", "MaxPoolGrad AveragePoolGrad MaxUnpool"),
    (_Stream(1), _MS, "MaxPoolGrad AveragePoolGrad GlobalAveragePoolGrad"),
    (_Stream(8), "", "Resize Upsample GridSample"),
    (_Stream(5), "", "BatchNormalization"),
    (_Stream(5, passes=2), _MS, "BatchNormInternal GroupNorm SkipGroupNorm"),
    (_Stream(5, passes=2), "", "InstanceNormalization GroupNormalization MeanVarianceNormalization"),
    (_Stream(8), "", "LayerNormalization SimplifiedLayerNormalization RMSNormalization LpNormalization LRN"),
    (_Stream(8), _MS, "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization"),
    (_Stream(10, passes=2), _MS, "BatchNormalizationGrad LayerNormalizationGrad"),
    (_Stream(10, passes=2), _MS, "SimplifiedLayerNormalizationGrad InvertibleLayerNormalizationGrad"),
    (_Stream(15), "", "Softmax LogSoftmax Hardmax SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"),
    (_Stream(15), _MS, "BiasSoftmax SoftmaxCrossEntropyLossInternal SparseSoftmaxCrossEntropy"),
    (_Stream(5), _MS, "SoftmaxGrad SoftmaxGrad_13"),
    (_Stream(12), _MS, "LogSoftmaxGrad LogSoftmaxGrad_13 SoftmaxCrossEntropyLossGrad"),
    (_Stream(12), _MS, "SoftmaxCrossEntropyLossInternalGrad SparseSoftmaxCrossEntropyGrad"),
    (_Stream(12), "ai.onnx.preview.training", "Adam Adagrad Momentum"),
    (_Stream(12), _MS, "AdamOptimizer LambOptimizer SGDOptimizer AdamWOptimizer SGDOptimizerV2"),
    (_Stream(1), "org.pytorch.aten", "ATen"),  # opaque: any PyTorch op
)


def _index(rows: Iterable[tuple[_Entry, str, str]]) -> Mapping[OpKey, _Entry]:
    table: dict[OpKey, _Entry] = {}
    for entry, domain, op_types in rows:
        for op_type in op_types.split():
            key = OpKey(domain, op_type)
            if key in table:
                raise ValueError(f"{key.label} has two rows")
            table[key] = entry
    return MappingProxyType(table)


_TABLE = _index(_ROWS)
