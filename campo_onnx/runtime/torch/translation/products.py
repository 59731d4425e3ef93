"""Matrix products and sums of products."""

import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.node import Node, Row, plain
from campo_onnx.runtime.torch.translation.reductions import widened


def gemm(node: Node, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply two matrices, transposed if need be, and add a bias."""
    x = x.t() if node.flag("transA") else x
    y = y.t() if node.flag("transB") else y
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if bias is None or beta == 0:
        return _scaled(torch.mm(x, y), alpha)
    if bias.dim() <= 2 and x.is_floating_point():
        return torch.addmm(bias, x, y, beta=beta, alpha=alpha)
    return _scaled(torch.mm(x, y), alpha) + _scaled(bias, beta)


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    return x * (factor if x.is_floating_point() else int(factor))


def fused_matmul(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Multiply matrices that may be transposed, their batches as well, and scale the product."""
    x = _turned(x, node.flag("transA"), node.flag("transBatchA"))
    y = _turned(y, node.flag("transB"), node.flag("transBatchB"))
    return _scaled(torch.matmul(x, y), node.get("alpha", 1.0))


def _turned(x: Tensor, is_transposed: bool, is_batch_inside: bool) -> Tensor:
    """Undo what a FusedMatMul says was done to an operand."""
    if x.dim() < 2:
        return x
    if is_batch_inside:
        x = x.movedim(0, -2)
    return x.transpose(-2, -1) if is_transposed else x


def einsum(node: Node, *operands: Tensor) -> Tensor:
    """Sum products over the axes that the equation leaves out."""
    return torch.einsum(node.get("equation").replace(" ", ""), *operands)


def matmul_integer(
    node: Node, x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None
) -> Tensor:
    """Multiply matrices of bytes, less their zero points, into 32 bits."""
    return torch.matmul(centred(x, x_zero, -2), centred(y, y_zero, -1))


def centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Subtract a zero point, or one for each row or column."""
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    offset = zero.to(torch.int32)
    if offset.dim() != 1 or offset.numel() == 1:
        return wide - (offset.reshape(()) if offset.numel() == 1 else offset)
    shape = [1] * x.dim()
    shape[axis] = -1
    return wide - offset.reshape(shape)


ROWS = {
    "Det": Row(lambda node, x: torch.linalg.det(widened(x)).to(x.dtype)),
    "Einsum": Row(einsum),
    "Gemm": Row(gemm),
    "MatMul": plain(torch.matmul),
    "MatMulInteger": Row(matmul_integer),
    "com.microsoft:FusedMatMul": Row(fused_matmul),
    "com.microsoft:Inverse": Row(lambda node, x: torch.linalg.inv(widened(x)).to(x.dtype)),
    "com.microsoft:TransposeMatMul": Row(fused_matmul),
}
