"""ONNX Runtime's own operators, where they take fewer passes over memory than those of the standard.

On every provider, transposes and factors go into a product, and a tensor scaled row by row is added to
another in one pass::

    g (float[2, 8, 64] a, float[2, 16, 64] b, float[2, 8, 16] c, float[2, 8, 1] gate) => (float[2, 8, 16] y)
    <float third = {0.333}>
    {
        turned = Transpose <perm = [0, 2, 1]> (b)
        product = MatMul (Mul (a, third), turned)
        y = Add (c, Mul (product, gate))
    }

becomes::

    {
        product = com.microsoft.FusedMatMul <alpha = 0.333, transB = 1> (a, b)
        y = com.microsoft.GatedAdd (c, product, gate)
    }

On CUDA sums of sums are one sum, and :mod:`campo_onnx.builder.cuda_fusions` makes one node of chains of Add
and of dropouts that are added. HyperConnectionPostMix, which scales two tensors and adds them in one pass, is
not written: 813 us in FP16 and 844 in FP32 where Mul and GatedAdd take 527 and 630 (32,768 rows of 3,136;
`row_forms`). Sums of products over rows stay sums: as products of a row with a column, those rows took 474 us
in FP32 and 8,454 in FP16 (H200, `benchmarks/results/calibration_cuda.md`).
"""

import math
from collections.abc import Callable
from functools import partial

import onnx

from campo_onnx.builder.compact import expand, reduce, reshape, scale_apart, scaled, swap_last_two
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import PRODUCTS, gated_add, is_turned, matmul
from campo_onnx.builder.target import CUDA
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.importer import Imported
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.rebuild import Rule, rebuilt


def own_operators(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write ONNX Runtime's own operators."""
    if place.operators == "standard":
        return imported.model
    view = imported.view

    def is_read_once(node: Node, position: int) -> bool:
        """Whether a node is the only one that reads an input of it."""
        tensor = view.node[node.name].inputs[position]
        return len(view.consumers[tensor]) == 1 and not view.tensors[tensor].is_output

    rules: dict[str, Rule] = {
        "MatMul": _product,
        "Gemm": _factored,
        "Transpose": partial(_transposed_product, is_read_once),
        "Mul": partial(_multiplied, is_read_once),
        "Add": partial(_gated, sign=1.0),
        "Sub": partial(_gated, sign=-1.0),
        "ReduceSum": partial(_summed, is_read_once),
    }
    return rebuilt(imported, rules, place)


ReadOnce = Callable[[Node, int], bool]


def _product(g: Graph, node: Node) -> Value | None:
    """Take transposes and factors of the operands into a product of batches."""
    a, b = node.inputs
    if a is None or b is None or min(a.rank, b.rank) < 2 or not g.may_use("FusedMatMul", a, b):
        return None
    is_batch = max(a.rank, b.rank) > 2
    if not any((is_batch and is_turned(g, x)) or scale_apart(g, x)[1] != 1.0 for x in (a, b)):
        return None
    return matmul(g, a, b)


def _factored(g: Graph, node: Node) -> Value | None:
    """Take factors of the operands into a product."""
    a, b, *bias = node.inputs
    if a is None or b is None:
        return None
    (a, of_a), (b, of_b) = scale_apart(g, a), scale_apart(g, b)
    if of_a * of_b == 1.0:
        return None
    alpha = node.attributes.get("alpha", 1.0) * of_a * of_b
    return g.op("Gemm", a, b, *bias, **{**node.attributes, "alpha": alpha})


def _transposed_product(is_read_once: ReadOnce, g: Graph, node: Node) -> Value | None:
    """Write the transposes of products as the products of the transposes."""
    product = _source(g, node.inputs[0])
    if product is None or product.op_type not in PRODUCTS or not is_read_once(node, 0):
        return None
    x = product.outputs[0]
    a, b = product.inputs
    if a is None or b is None or min(a.rank, b.rank) < 3 or not g.may_use("FusedMatMul", a, b):
        return None
    if list(node.attributes.get("perm", ())) != [*range(x.rank - 2), x.rank - 1, x.rank - 2]:
        return None
    flags = [product.attributes.get(name, 0) for name in ("transA", "transB")]
    a, b = (v if is_turned else swap_last_two(g, v) for v, is_turned in zip((a, b), flags, strict=True))
    return scaled(g, matmul(g, b, a), product.attributes.get("alpha", 1.0))


def _multiplied(is_read_once: ReadOnce, g: Graph, node: Node) -> Value | None:
    x, y = node.inputs
    if x is None or y is None or not x.is_float:
        return None
    for tensor, factor, position in ((x, y, 0), (y, x, 1)):
        if factor.constant is not None and factor.elements == 1 and tensor.shape == node.outputs[0].shape:
            return _scaled(g, tensor, float(factor.constant.item()), is_once=is_read_once(node, position))
    if x.shape != y.shape or not g.may_use("GatedAdd", x):
        return None
    for this, other, position in ((x, y, 1), (y, x, 0)):
        if is_read_once(node, position):
            result = _softmax_gradient(g, this, other)
            if result is not None:
                return result
    return None


def _scaled(g: Graph, x: Value, factor: float, *, is_once: bool) -> Value | None:
    """Leave a factor to the product before it, or join it with the factor before it."""
    product = _source(g, x)
    if product is not None and product.op_type == "Mul" and scale_apart(g, x)[1] != 1.0:
        return scaled(g, x, factor)
    a, b = (None, None) if product is None or len(product.inputs) != 2 else product.inputs
    if product is None or product.op_type not in PRODUCTS or not is_once or a is None or b is None:
        return None
    if max(a.rank, b.rank) < 3 or not g.may_use("FusedMatMul", a, b):
        return None
    alpha = product.attributes.get("alpha", 1.0) * factor
    return g.op("com.microsoft:FusedMatMul", a, b, **{**product.attributes, "alpha": alpha})


def _gated(g: Graph, node: Node, *, sign: float) -> Value | None:
    """Write ``x + y * gate``, and ``x - y * gate``, in one pass."""
    first, second = node.inputs
    shape = node.outputs[0].shape
    pairs = ((first, second), (second, first)) if sign > 0 else ((first, second),)
    for x, product in pairs:
        source = _source(g, product)
        if x is None or x.shape != shape or source is None or source.op_type != "Mul" or len(shape) < 2:
            continue
        for y, gate in (source.inputs, source.inputs[::-1]):
            if y is None or gate is None or y.shape != shape or not _is_by_row(gate, shape):
                continue
            if not g.may_use("GatedAdd", x, y, gate):
                continue
            rows = reshape(g, gate, (*[1] * (len(shape) - gate.rank), *gate.shape))
            rows = expand(g, rows, (*shape[:-1], 1))
            return gated_add(g, x, y, rows if sign > 0 else -rows)
    return None


def _is_by_row(gate: Value, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has numbers for rows; a single number is left to what scales by it anyway."""
    return gate.elements > 1 and gate.shape[-1] == 1 < shape[-1]


def _softmax_gradient(g: Graph, y: Value, rest: Value) -> Value | None:
    """Write ``y * (gradient - total)`` of a Softmax's result as ``gradient * y - y * total``."""
    difference, softmax = _source(g, rest), _source(g, y)
    if difference is None or difference.op_type != "Sub" or softmax is None or softmax.op_type != "Softmax":
        return None
    gradient, total = difference.inputs
    if gradient is None or total is None or gradient.shape != y.shape or total.shape != (*y.shape[:-1], 1):
        return None
    weights, scale, masked = y, 1.0, _source(g, gradient)
    if masked is not None and masked.op_type == "Where":
        mask, inner, zero = masked.inputs
        dropout = _source(g, mask)
        if dropout is not None and dropout.op_type == "Dropout" and dropout.inputs[0] is y and _is(zero, 0.0):
            ratio = dropout.inputs[1]
            if inner is None or inner.shape != y.shape or ratio is None or ratio.constant is None:
                return None
            weights, gradient, scale = dropout.outputs[0], inner, 1.0 - float(ratio.constant.item())
    total = scaled(g, total, -1.0 / scale)
    if weights is y:  # as many passes as there are
        return None
    return scaled(g, gated_add(g, gradient * weights, y, total), scale)


def _summed(is_read_once: ReadOnce, g: Graph, node: Node) -> Value | None:
    x, axes = (*node.inputs, None)[:2]
    source = _source(g, x)
    if x is None or axes is None or axes.constant is None or source is None:
        return None
    if scale_apart(g, x)[1] != 1.0:
        keepdims = bool(node.attributes.get("keepdims", 1))
        return reduce(g, "ReduceSum", x, axes.constant.tolist(), keepdims=keepdims)
    if g.target != CUDA or not is_read_once(node, 0):
        return None
    over, shape = axes.constant.tolist(), node.outputs[0].shape
    if source.op_type != "ReduceSum" or source.attributes.get("keepdims", 1) or over != [0]:
        return None
    parts, first = (*source.inputs, None)[:2]
    if parts is None or first is None or first.constant is None or first.constant.tolist() != [1]:
        return None
    if g.producer(parts, "Reshape") is None:
        return None
    return reshape(g, reduce(g, "ReduceSum", parts, [0, 1], keepdims=False), shape)


def _source(g: Graph, x: Value | None) -> Node | None:
    return None if x is None else g.source(x)


def _is(x: Value | None, number: float) -> bool:
    if x is None or x.constant is None or x.elements != 1:
        return False
    return math.isclose(x.constant.item(), number, rel_tol=1e-6)
