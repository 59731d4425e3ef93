"""Accuracy that operators ask of their inputs, for results that mean something."""

import math
from collections.abc import Mapping

from onnx import TensorProto

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.values.need import EXACT, FRACTIONS, NOTHING, AskRule, Need, Needs, known_at
from campo_onnx.ops.values.registry import registered
from campo_onnx.ops.values.rule import Ranges, shape_of

_PLACE = Need(is_place=True)
_FEW_TURNS = 8.0
_BELOW_ONE = 0.5
_CUBE = 3.0
_FEW_RANKS = 16


def logarithm(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A relative error of the argument is an absolute one of its logarithm, which vanishes at 1."""
    argument = known_at(inputs, 0)
    is_away_from_one = argument.highest <= _BELOW_ONE or argument.lowest >= 1.0 / _BELOW_ONE
    return {0: Need(relative=tolerance) if is_away_from_one else EXACT}


def divisor(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A relative error of the divisor is one of the quotient."""
    return {len(signature.inputs) - 1: Need(relative=tolerance)}


def power(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A power makes the relative error larger by its exponent; a square or a cube is a product.

    An exponent that varies may be of any size: 1.001 ** 2000 is off by 5 % where FP16 rounds 1.001.
    """
    base, exponent = known_at(inputs, 0), known_at(inputs, 1)
    if exponent.varies:
        return NOTHING if base.varies else {0: EXACT}
    if 0.0 <= exponent.lowest <= exponent.highest <= _CUBE:
        return NOTHING
    return {0: Need(relative=tolerance / max(exponent.bound, 1.0))}


def root(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Near zero a root is far larger than its argument: sqrt(1 - cos(x)**2)."""
    size = known_at(inputs, 0).magnitude
    return {0: Need(relative=2.0 * tolerance, absolute=(tolerance / 4.0) ** 2 * size)}


def near_one(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Acos, Asin and Atanh have an infinite slope at 1: what the argument lacks to 1 counts."""
    return {0: Need(absolute=tolerance * max(1.0 - known_at(inputs, 0).bound, 0.0))}


def above_one(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Acosh has an infinite slope at 1."""
    return {0: Need(absolute=tolerance * max(known_at(inputs, 0).lowest - 1.0, 0.0))}


def whole_steps(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Floor, Ceil and Round take steps of one."""
    return {0: Need(absolute=tolerance)}


def remainder(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A remainder takes steps of the divisor."""
    step = known_at(inputs, 1)
    return {0: Need(absolute=tolerance * (1.0 if step.varies else step.magnitude or 1.0))}


def comparison(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Keep the sign of what is compared with zero; else tell values of size 1 and more apart.

    Several constants are the edges of bins, which may be as narrow as they like.
    """
    constants = [r for r in inputs if r is not None and not r.varies]
    if any(r.lowest == r.highest == 0.0 for r in constants):
        return NOTHING
    if any(r.lowest != r.highest for r in constants):
        return dict.fromkeys((0, 1), EXACT)
    return dict.fromkeys((0, 1), Need(absolute=tolerance))


def conversion(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """An integer is an index, a count or a bucket in all likelihood, unless it was a truth value."""
    output, before = signature.outputs[0], signature.inputs[0]
    is_integer = output is not None and output.dtype not in FRACTIONS
    return {0: _PLACE} if is_integer and (before is None or before.dtype != TensorProto.BOOL) else NOTHING


def count(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A sum of integers counts, also as floats; by comparisons perhaps, as the place of the first does."""
    return {0: _PLACE} if known_at(inputs, 0).is_integer else NOTHING


def angle(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """At 100 an angle in FP16 is off by 0.03, at 3,000 by 1; a few turns are as good as their rounding."""
    return NOTHING if known_at(inputs, 0).bound <= _FEW_TURNS else {0: EXACT}


def index(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Depths and indices given in floating point."""
    return {0: EXACT}


def ranks(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """A whole axis that is sorted: what rounding makes equal changes places, and gradients with it."""
    axis = int(signature.attributes.get("axis", -1))
    shapes = [shape_of(signature, 0), signature.outputs[0].shape if signature.outputs[0] else None]
    before, after = (shape[axis] if shape else 0 for shape in shapes)
    return {0: EXACT} if after > _FEW_RANKS and after == before else NOTHING


def sampling_grid(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Coordinates from -1 to 1 across an image: a pixel is two over its size."""
    shape = shape_of(signature, 0)
    pixels = max(shape[2:], default=1) if shape else math.inf
    return {1: Need(absolute=tolerance * 2.0 / max(pixels, 2), is_place=True)}


def regions(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Corners of boxes, in pixels of an image that is scaled."""
    scale = abs(float(signature.attributes.get("spatial_scale", 1.0))) or 1.0
    return {1: Need(absolute=tolerance / scale, is_place=True)}


def boxes(signature: Signature, inputs: Ranges, tolerance: float) -> Needs:
    """Corners of boxes that are sorted out by how much they overlap."""
    return {0: Need(absolute=tolerance, is_place=True)}


_BY_RULE: tuple[tuple[AskRule, str], ...] = (
    (logarithm, "Log"),
    (divisor, "Div Reciprocal"),
    (power, "Pow"),
    (root, "Sqrt"),
    (near_one, "Acos Asin Atanh"),
    (above_one, "Acosh"),
    (whole_steps, "Ceil Floor Round"),
    (remainder, "Mod"),
    (comparison, "Equal Greater GreaterOrEqual Less LessOrEqual"),
    (conversion, "Cast"),
    (angle, "Cos Sin Tan"),
    (index, "OneHot"),
    (count, "ArgMax ArgMin CumSum ReduceSum"),
    (ranks, "TopK"),
    (sampling_grid, "GridSample com.microsoft:GridSample"),
    (regions, "RoiAlign MaxRoiPool com.microsoft:CropAndResize"),
    (boxes, "NonMaxSuppression"),
)

ASKS: Mapping[OpKey, AskRule] = registered(_BY_RULE)
"""The rules by operator."""
