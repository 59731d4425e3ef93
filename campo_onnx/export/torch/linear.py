"""Products of matrices."""

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import gemm, matmul
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten
from campo_onnx.export.translation import Expected, Table, table


def _scaled_sum(g: Graph, bias: Value, product: Value, beta: float, alpha: float) -> Value:
    if alpha != 1:
        product = product * alpha
    if beta != 1:
        bias = bias * beta
    return product + bias


def _addmm(
    g: Graph, expected: Expected, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    if beta == alpha == 1:
        return gemm(g, a, b, bias)
    return _scaled_sum(g, bias, gemm(g, a, b), beta, alpha)


def _baddbmm(
    g: Graph, expected: Expected, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    return _scaled_sum(g, bias, matmul(g, a, b), beta, alpha)


_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)

TRANSLATIONS: Table = table(
    (_PRODUCTS, lambda g, e, a, b: matmul(g, a, b)),
    (aten.addmm.default, _addmm),
    (aten.baddbmm.default, _baddbmm),
)
