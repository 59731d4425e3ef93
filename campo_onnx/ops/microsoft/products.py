"""Matrix products, convolutions, recurrent layers and attention, with their gradients."""

import numpy as np

from campo_onnx.ops.gemms import conv, conv_grad, factors, gemm, matmul, matmul_axes
from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import FP16_KERNELS, Ask, Family, FixedPorts, specs
from campo_onnx.ops.work import Gemm


def _fused_matmul_types(signature: Signature) -> list[TensorType]:
    """``MatMul`` of operands transposed first; a vector is never transposed."""
    dtype = signature.input(0).dtype
    given_a, given_b = signature.input(0).shape, signature.input(1).shape
    if given_a is None or given_b is None:
        return [TensorType(dtype)]
    if not given_a or not given_b:
        raise ValueError("a scalar cannot be an operand")
    a, b = factors(signature, given_a, given_b)
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    if a[-1] != b[-2 if len(b) > 1 else -1]:
        raise ValueError(f"inner dimensions differ: {a[-1]} and {b[-2 if len(b) > 1 else -1]}")
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return [TensorType(dtype, (*batch, *rows, *columns))]


def _conv_grad_types(signature: Signature) -> list[TensorType]:
    x, w = signature.input(1).type, signature.input(2).type
    return [x, w, TensorType(w.dtype, w.shape[:1] if w.shape else None)]


def _conv_transpose_grad_types(signature: Signature) -> list[TensorType]:
    x, w = signature.input(1).type, signature.input(2).type
    bias = (w.shape[1] * signature.attribute("group", 1),) if w.shape else None
    return [x, w, TensorType(w.dtype, bias)]


_ATTENTIONS = "Attention GroupQueryAttention PackedAttention PackedMultiHeadAttention LongformerAttention"

SPECS = (
    *specs(
        MICROSOFT,
        "FusedMatMul",
        Family.MATRIX_PRODUCT,
        work=Gemm(matmul, axes=matmul_axes),
        ports=FixedPorts((0, 1)),
        shapes=_fused_matmul_types,
    ),
    *specs(
        MICROSOFT,
        "TransposeMatMul",
        Family.MATRIX_PRODUCT,
        work=Gemm(matmul),
        ports=FixedPorts((0, 1)),
        shapes=_fused_matmul_types,
    ),
    *specs(MICROSOFT, "FusedGemm", Family.MATRIX_PRODUCT, work=Gemm(gemm)),
    *specs(MICROSOFT, "FusedMatMulActivation GemmFastGelu CDist Inverse", Family.MATRIX_PRODUCT),
    *specs(
        MICROSOFT,
        "ConvGrad",
        Family.CONVOLUTION,
        work=Gemm(conv_grad, inputs=(0, 2)),
        ports=FixedPorts((0, 1, 2), (0, 1, 2)),
        training_kernels=FP16_KERNELS,
        shapes=_conv_grad_types,
    ),
    *specs(MICROSOFT, "ConvTransposeGrad", Family.CONVOLUTION, shapes=_conv_transpose_grad_types),
    *specs(MICROSOFT, "FusedConv", Family.CONVOLUTION, work=Gemm(conv, inputs=(1,), outputs=(0,))),
    *specs(MICROSOFT, "ConvTransposeWithDynamicPads NhwcConv NhwcFusedConv", Family.CONVOLUTION),
    *specs(MICROSOFT, "LSTMTraining LSTMGrad GRUTraining GRUGrad", Family.RECURRENT),
    *specs(MICROSOFT, _ATTENTIONS, Family.ATTENTION),
    *specs(MICROSOFT, "MultiHeadAttention", Family.ATTENTION, asks=((5, Ask.MASK),)),
)
