"""Sums over an image's positions, and its scaling, by the kernels of a GPU that are fast at them.

Batch normalization, its gradient and that of a bias sum every channel of every image. ONNX Runtime's
ReduceSum and ReduceMean take up to three times as long for that as cuDNN's pooling, and ten times over
images and positions::

    g (float[64, 512, 28, 28] x) => (float[512] y)
    <int64[3] axes = {0, 2, 3}>
    { y = ReduceSum <keepdims = 0> (x, axes) }

becomes::

    {
        means = GlobalAveragePool (x)
        rows = Reshape <{64, 512, 1}> (means)
        y = Mul (ReduceSum <keepdims = 0> (rows, {0, 2}), 784)
    }

A normalization by a mean of 0 and a deviation of 1, which scales and shifts rows, takes three times as long
as Mul and Add where rows are short::

    { y = BatchNormalization <epsilon = 1> (x, scale, shift, zeros, zeros) }

becomes Mul and Add. Microseconds on an H200, of sums and of scaled rows:

    rows x length    ReduceSum, FP32  FP16  GlobalAveragePool, FP32  FP16
    32,768 x 3,136               309   296                      143    92
    65,536 x   784               102    88                       86    64
    262,144 x   49                66    48                       40    31

    rows x length    BatchNormalization, FP32  FP16  Mul and Add, FP32  FP16
    131,072 x  196                        112   130                134    97
    262,144 x   49                        188   207                 79    59

(`row_forms` of `benchmarks.gpu_session`, `benchmarks/results/calibration_cuda.md`.)
"""

import math

import numpy as np
import onnx

from campo_onnx.builder.compact import reduce, reshape, scaled
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.target import CUDA
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.importer import Imported
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import rebuilt

_FEWEST_ROWS = 8192
_LENGTHS = range(49, 12545)
"""Rows that were measured: from 7 x 7 to 112 x 112."""

_SHORT = 128
"""Elements of a row below which two passes are faster than the normalization."""


def rows_on_gpu(imported: Imported, place: Place) -> onnx.ModelProto:
    """Sum and scale rows by other operators, in a graph for CUDA whose sizes do not change.

    What pays, and the height of an image, depend on sizes.
    """
    if place.operators != CUDA or place.sizes_change:
        return imported.model
    return rebuilt(
        imported, {"ReduceSum": _summed, "ReduceMean": _summed, "BatchNormalization": _scaled_rows}, place
    )


def _summed(g: Graph, node: Node) -> Value | None:
    """Sum or average over an image's positions, and perhaps over images, where rows are many and long."""
    x, axes = (*node.inputs, None)[:2]
    if x is None or axes is None or axes.constant is None or x.rank < 3 or not x.is_float:
        return None
    positions = [*range(2, x.rank)]
    reduced = sorted({int(axis) % x.rank for axis in axes.constant.tolist()})
    images, channels, length = *x.shape[:2], math.prod(x.shape[2:])
    cuts = (n for n in range(1, length // _LENGTHS[0] + 1) if length % n == 0)
    parts = next((n for n in cuts if length // n in _LENGTHS), 0)  # rows that are too long are cut
    if reduced not in (positions, [0, *positions]) or images * channels * parts < _FEWEST_ROWS:
        return None
    row = length // parts
    height = max(n for n in range(1, math.isqrt(row) + 1) if row % n == 0)
    means = g.op("GlobalAveragePool", reshape(g, x, (images, channels * parts, height, row // height)))
    if reduced[0] == 0 or parts > 1:
        among = [*range(len(reduced) - len(positions)), 2]
        means = reduce(g, node.op_type, reshape(g, means, (images, channels, parts)), among, keepdims=False)
    factor = row if node.op_type == "ReduceSum" else 1
    return reshape(g, scaled(g, means, float(factor)), node.outputs[0].shape)


def _scaled_rows(g: Graph, node: Node) -> Value | None:
    x, scale, shift, mean, variance = node.inputs
    if x is None or scale is None or shift is None or x.rank != 3 or x.shape[0] != 1 or x.shape[2] >= _SHORT:
        return None
    if len(node.outputs) > 1 or node.attributes.get("training_mode", 0):  # it computes other statistics
        return None
    is_plain = all(
        v is not None and v.constant is not None and not np.any(v.constant) for v in (mean, variance)
    )
    if not is_plain or node.attributes.get("epsilon") != 1.0:
        return None
    factors, terms = (reshape(g, v, (v.elements, 1)) for v in (scale, shift))
    return x * factors + terms
