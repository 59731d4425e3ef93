"""Derivatives of matrix products, convolutions and normalizations."""

import math
from collections.abc import Mapping, Sequence

from campo_onnx.builder.compact import reshape, swap_last_two
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint.movement import cropped
from campo_onnx.emulation.adjoint.rule import Call, NoRuleError, Rule, of_shape, total
from campo_onnx.lowering.convolutions.conv_on_cpu import input_gradient
from campo_onnx.lowering.convolutions.gradient_as_kernel import by_convolution
from campo_onnx.lowering.convolutions.patches import Geometry


def _matmul(g: Graph, call: Call) -> Sequence[Value]:
    a, b, gradient = call.input(0), call.input(1), call.gradient
    if min(a.rank, b.rank) < 2:
        raise NoRuleError("MatMul of a vector")
    of_a = g.op("MatMul", gradient, swap_last_two(g, b))
    of_b = g.op("MatMul", swap_last_two(g, a), gradient)
    return [of_shape(g, of_a, a.shape), of_shape(g, of_b, b.shape)]


def _gemm(g: Graph, call: Call) -> Sequence[Value | None]:
    a, b = call.input(0), call.input(1)
    of_a, of_b = bool(call.attributes.get("transA", 0)), bool(call.attributes.get("transB", 0))
    gradient = call.gradient * float(call.attributes.get("alpha", 1.0))
    first = (b, gradient, of_b, True) if of_a else (gradient, b, False, not of_b)
    second = (gradient, a, True, of_a) if of_b else (a, gradient, not of_a, False)
    gradients: list[Value | None] = [
        g.op("Gemm", x, y, transA=int(t), transB=int(u)) for x, y, t, u in (first, second)
    ]
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        bias = call.gradient * float(call.attributes.get("beta", 1.0))
        gradients.append(of_shape(g, bias, call.input(2).shape))
    return gradients


def _geometry(call: Call, weight: Value) -> tuple[Geometry, tuple[int, ...]]:
    """Say how a kernel moves over an image that is padded already, and how it is padded."""
    geometry = Geometry.of(call.attributes, weight.rank - 2)
    if geometry is None:
        raise NoRuleError(f"{call.op_type} with auto_pad")
    return geometry


def _with_bias(g: Graph, call: Call, gradients: list[Value | None]) -> Sequence[Value | None]:
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        axes = [0, *range(2, call.gradient.rank)]
        gradients.append(reshape(g, total(g, call.gradient, axes), call.input(2).shape))
    return gradients


def _padded(g: Graph, image: Value, pads: Sequence[int]) -> tuple[list[int], Value]:
    """Pad images as a convolution does, or crop them; and where the result starts."""
    spatial = len(pads) // 2
    starts = [0, 0, *(-p for p in pads[:spatial])]
    ends = [size + after for size, after in zip(image.shape, (0, 0, *pads[spatial:]), strict=True)]
    return starts, cropped(g, image, starts, ends)


def _conv(g: Graph, call: Call) -> Sequence[Value | None]:
    x, weight, gradient = call.input(0), call.input(1), call.gradient
    geometry, pads = _geometry(call, weight)
    starts, padded = _padded(g, x, pads)
    of_padded = input_gradient(g, gradient, weight, geometry, padded.shape)
    of_x = cropped(g, of_padded, [-s for s in starts], [n - s for n, s in zip(x.shape, starts, strict=True)])
    of_weight = by_convolution(g, padded, gradient, weight.shape, geometry)
    return _with_bias(g, call, [of_x, of_weight])


def _conv_transpose(g: Graph, call: Call) -> Sequence[Value | None]:
    """Swap the roles: a transposed convolution writes what a convolution reads."""
    x, weight, gradient = call.input(0), call.input(1), call.gradient
    if "output_shape" in call.attributes:
        raise NoRuleError("ConvTranspose with output_shape")
    geometry, pads = _geometry(call, weight)
    _, padded = _padded(g, gradient, pads)
    attributes = {**geometry.attributes, "pads": [0] * len(pads)}
    of_x = g.op("Conv", padded, weight, **attributes)
    of_weight = by_convolution(g, padded, x, weight.shape, geometry)
    return _with_bias(g, call, [cropped(g, of_x, [0] * x.rank, x.shape), of_weight])


def _softmax(g: Graph, call: Call) -> Sequence[Value]:
    y, axis = call.output, [call.attributes.get("axis", -1) % call.output.rank]
    weighted = call.gradient * y
    return [weighted - y * total(g, weighted, axis)]


def _log_softmax(g: Graph, call: Call) -> Sequence[Value]:
    axis = [call.attributes.get("axis", -1) % call.output.rank]
    return [call.gradient - g.op("Exp", call.output) * total(g, call.gradient, axis)]


def _layer_norm(g: Graph, call: Call) -> Sequence[Value | None]:
    x, scale = call.input(0), call.input(1)
    axes = [*range(call.attributes.get("axis", -1) % x.rank, x.rank)]
    mean = total(g, x, axes, op_type="ReduceMean")
    apart = x - mean
    variance = total(g, apart * apart, axes, op_type="ReduceMean")
    inverse = _inverse_root(g, variance, float(call.attributes.get("epsilon", 1e-5)))
    of_x, normal = _normalized(g, apart, inverse, call.gradient * scale, axes)
    _, of_mean, of_inverse = (*call.gradients, None, None)[:3]
    count = math.prod(x.shape[i] for i in axes)
    if of_mean is not None:
        of_x = of_x + of_mean * (1.0 / count)
    if of_inverse is not None:
        of_x = of_x - of_inverse * inverse * inverse * normal * (1.0 / count)
    of_scale = of_shape(g, call.gradient * normal, scale.shape)
    bias = call.inputs[2] if len(call.inputs) > 2 else None
    return [of_x, of_scale, None if bias is None else of_shape(g, call.gradient, bias.shape)]


def _inverse_root(g: Graph, variance: Value, epsilon: float) -> Value:
    return g.op("Reciprocal", g.op("Sqrt", variance + epsilon))


def _normalized(
    g: Graph, apart: Value, inverse: Value, gradient: Value, axes: Sequence[int]
) -> tuple[Value, Value]:
    """Give the gradient of what is normalized, and what it is normalized to."""
    normal = apart * inverse
    mean = total(g, gradient, axes, op_type="ReduceMean")
    along = total(g, gradient * normal, axes, op_type="ReduceMean")
    rest = gradient - mean - normal * along
    return inverse * rest, normal


def _batch_norm(g: Graph, call: Call) -> Sequence[Value | None]:
    x, scale = call.input(0), call.input(1)
    axes, channels = [0, *range(2, x.rank)], (1, x.shape[1], *[1] * (x.rank - 2))
    trains = bool(call.attributes.get("training_mode", 0))
    stored = [reshape(g, call.input(i), channels) for i in (3, 4)]
    mean = total(g, x, axes, op_type="ReduceMean") if trains else stored[0]
    apart = x - mean
    variance = total(g, apart * apart, axes, op_type="ReduceMean") if trains else stored[1]
    inverse = _inverse_root(g, variance, float(call.attributes.get("epsilon", 1e-5)))
    scaled = call.gradient * reshape(g, scale, channels)
    of_bias = of_shape(g, total(g, call.gradient, axes), channels)
    normal = apart * inverse
    of_scale = total(g, call.gradient * normal, axes)
    momentum = float(call.attributes.get("momentum", 0.9))
    count = math.prod(x.shape[i] for i in axes)
    _, of_mean, of_variance = (*call.gradients, None, None)[:3]
    vectors = [reshape(g, v, scale.shape) for v in (of_scale, of_bias)]
    if not trains:
        of_x = scaled * inverse
        of_stored = -total(g, of_x, axes)
        of_spread = total(g, scaled * normal, axes) * inverse * inverse * -0.5
        return [of_x, *vectors, *(reshape(g, v, scale.shape) for v in (of_stored, of_spread))]
    of_x, _ = _normalized(g, apart, inverse, scaled, axes)
    gradients: list[Value | None] = []
    for gradient, slope in ((of_mean, None), (of_variance, apart)):
        if gradient is None:
            gradients.append(None)
            continue
        share = reshape(g, gradient, channels) * ((1.0 - momentum) / count)
        of_x = of_x + (share if slope is None else share * slope * 2.0)
        gradients.append(gradient * momentum)
    return [of_x, *vectors, *gradients]


RULES: Mapping[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
}
