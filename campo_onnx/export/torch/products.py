"""Products of matrices; convolutions and their gradients, as Conv and ConvTranspose.

The gradient of the input is a transposed convolution, that of the weight a convolution whose kernel is the
gradient of the output. :mod:`campo_onnx.lowering.convolutions` has the forms that targets run faster.
"""

from collections.abc import Sequence

from campo_onnx.builder.compact import sum_per_channel
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.products import gemm, matmul
from campo_onnx.builder.value import Value
from campo_onnx.export.torch.operands import aten, pair
from campo_onnx.export.translation import Expected, Table, UntranslatableError, table
from campo_onnx.lowering.convolutions.conv_on_cpu import input_gradient
from campo_onnx.lowering.convolutions.gradient_as_kernel import swapped_convolution
from campo_onnx.lowering.convolutions.patches import Geometry


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


def _convolution(
    g: Graph, expected: Expected, x: Value, weight: Value, bias: Value | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    count = weight.rank - 2
    geometry = _geometry(count, stride, padding, dilation, groups)
    if not transposed:
        return g.op("Conv", x, weight, bias, **geometry.attributes)
    extra = pair(output_padding, count)
    if any(o >= s for o, s in zip(extra, geometry.strides, strict=True)):
        # ONNX Runtime has no kernel for it, and the gradient would come out for a larger image.
        raise UntranslatableError(
            "output_padding that is not smaller than the stride",
            remedy="Give less of it, and pad the result with torch.nn.functional.pad.",
        )
    return g.op("ConvTranspose", x, weight, bias, output_padding=extra, **geometry.attributes)


def _geometry(
    count: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Geometry:
    strides, pads, dilations = (tuple(pair(values, count)) for values in (stride, padding, dilation))
    return Geometry(strides=strides, pads=pads, dilations=dilations, groups=groups)


def _convolution_backward(
    g: Graph, expected: Expected, gradient: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    geometry = _geometry(weight.rank - 2, stride, padding, dilation, groups)
    of_input = of_weight = of_bias = None
    if wanted[0] and transposed:
        of_input = g.op("Conv", gradient, weight, **geometry.attributes)
    elif wanted[0]:
        of_input = input_gradient(g, gradient, weight, geometry, x.shape)
    if wanted[1]:
        # In a transposed convolution the input and the output's gradient change roles.
        image, kernel = (gradient, x) if transposed else (x, gradient)
        of_weight = swapped_convolution(g, image, kernel, weight.shape, geometry)
    if wanted[2]:
        of_bias = sum_per_channel(g, gradient)
    return of_input, of_weight, of_bias


TRANSLATIONS: Table = table(
    (aten.convolution.default, _convolution),
    (aten.convolution_backward.default, _convolution_backward),
    (_PRODUCTS, lambda g, e, a, b: matmul(g, a, b)),
    (aten.addmm.default, _addmm),
    (aten.baddbmm.default, _baddbmm),
)
