"""Matrix products, convolutions, recurrent layers and attention."""

from campo_onnx.ops.gemms import (
    conv,
    conv_axes,
    conv_transpose,
    conv_transpose_axes,
    einsum,
    gemm,
    gemm_axes,
    matmul,
    matmul_axes,
    rnn,
)
from campo_onnx.ops.schema import one_type_ports
from campo_onnx.ops.spec import Ask, Family, specs
from campo_onnx.ops.work import Gemm

SPECS = (
    *specs("", "MatMul", Family.MATRIX_PRODUCT, work=Gemm(matmul, axes=matmul_axes)),
    *specs("", "Gemm", Family.MATRIX_PRODUCT, work=Gemm(gemm, axes=gemm_axes)),
    *specs("", "Einsum", Family.MATRIX_PRODUCT, work=Gemm(einsum, inputs=None)),
    *specs("", "Conv", Family.CONVOLUTION, work=Gemm(conv, inputs=(1,), outputs=(0,), axes=conv_axes)),
    *specs("", "ConvTranspose", Family.CONVOLUTION, work=Gemm(conv_transpose, axes=conv_transpose_axes)),
    *specs("", "DeformConv CausalConvWithState", Family.CONVOLUTION),
    *specs("", "RNN GRU LSTM", Family.RECURRENT, work=Gemm(rnn, inputs=(0, 1, 2))),
    # Keys and values may differ in type by the schema, and in no kernel.
    *specs("", "Attention", Family.ATTENTION, ports=one_type_ports, asks=((3, Ask.MASK),)),
    *specs("", "LinearAttention", Family.ATTENTION),
    *specs("ai.onnx.preview", "FlexAttention", Family.ATTENTION),
)
