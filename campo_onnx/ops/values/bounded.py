"""Values of operators whose results are bounded whatever they read."""

import math
from dataclasses import replace

from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.range import BOOLEAN, INFINITY, UNKNOWN, ValueRange, between, made
from campo_onnx.ops.values.rule import Ranges, Rule, at, present, shape_of


def bounded_by(lowest: float, highest: float) -> Rule:
    """Make a rule for a function whose results lie between two bounds."""

    def rule(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
        varies = any(r.varies for r in present(inputs))
        return (replace(between(lowest, highest), varies=varies),)

    return rule


def comparison(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """0 or 1, or true or false."""
    return (replace(BOOLEAN, varies=any(r.varies for r in present(inputs))),)


def moderate(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """Results of moderate size whatever the inputs are: normalizations, gradients of bounded functions."""
    return ()


def log_softmax(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """At most 0, and as far below as its row is wide."""
    one = inputs[0] or UNKNOWN
    spread = one.expected_highest - one.expected_lowest
    return (made(-INFINITY, 0.0, -max(spread, 1.0), 0.0, like=replace(UNKNOWN, source=one.source)),)


def layer_normalization(signature: Signature, inputs: Ranges) -> tuple[ValueRange, ...]:
    """A value is at most sqrt(n) deviations from the mean; 1 / deviation is at most 1 / sqrt(epsilon)."""
    scale, bias = at(inputs, 1), at(inputs, 2)
    shape = shape_of(signature, 0)
    bound = INFINITY
    if shape is not None and scale is not None and scale.is_bounded and (bias is None or bias.is_bounded):
        axis = int(signature.attributes.get("axis", -1))
        bound = math.sqrt(max(math.prod(shape[axis:]), 1)) * scale.bound + (bias.bound if bias else 0.0)
    epsilon = float(signature.attributes.get("epsilon", 1e-5))
    most = 1.0 / math.sqrt(epsilon) if epsilon > 0.0 else INFINITY
    inverse = made(0.0, most, min(1.0, most), most if epsilon > 0.0 else 1.0, is_guard=True)
    statistics = (UNKNOWN, inverse) if signature.op.op_type == "LayerNormalization" else (inverse,)
    return (between(-bound, bound), *statistics)[: len(signature.outputs)]
