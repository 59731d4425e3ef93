"""Special functions that ONNX lacks, made of what it has, for any framework.

Each takes the framework's functions (``torch``, ``jax.numpy``) and numbers in double precision; ``atan2`` in
any precision.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

_SHIFT = 8
"""Arguments of the gamma function are raised by so much, to where its series in 1/x has 12 digits."""

_LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)


_ERFCX = (
    1.23751263, -0.140240598713, 0.00358549742896, 0.0822767509535, -0.108805252039, 0.0923041217464,
    -0.0586853365861, 0.0283634737904, -0.00977028671457, 0.00175220949869, 0.000330344209358,
    -0.000285154338899, 2.19879659839e-05, 1.87807362852e-05,
)  # fmt: skip
"""Of ``(1 + 2 x) exp(x x) erfc(x)`` in ``(x - 3.75) / (x + 3.75)``. These and what follows interpolate at
Chebyshev's points, computed with 40 digits; the relative error is below 3e-9."""

_ERFINV_NEAR = (
    1.50140935175, 0.616600691871, -0.0261082817529, -0.0195735618337, 0.00852594239123, -0.000487890635756,
    -0.000836490773861, 0.000292169011509, 2.51825623187e-05, -4.14343310226e-05, 4.13954429994e-06,
    2.94365337241e-06,
)  # fmt: skip
"""Of ``erfinv(x) / x`` in ``w / 2.5 - 1``, where w is ``-log(1 - x x)``, up to 5."""

_ERFINV_FAR = (
    5.77715669313, 3.71761377766, -0.00625640603159, -0.00251337932248, 0.0044491197882, -0.0040533103849,
    0.00216938679373, -0.00153128521331, 0.00850874178816, -0.00592969548504, -0.0313635930894,
    0.0229639235022, 0.0882129998416, -0.0671479282372, -0.149231229993, 0.119547190301, 0.151786144127,
    -0.131959320794, -0.0756503898553, 0.0721276717936, 0.0142069652116, -0.0149419685691,
)  # fmt: skip
"""The same in ``sqrt(w)``, mapped from ``sqrt(5)`` to 9.6 onto -1 to 1. No FP32 number gives more."""

_BESSEL_NEAR = {
    0: (
        0.207001921224, -0.113004336109, 0.094515631894, -0.089042889187, 0.0873432153256, -0.0849730495901,
        0.0792787441867, -0.0694645149311, 0.056749110844, -0.0433137936791, 0.0302974085324,
        -0.0188651259884, 0.0116616340636, -0.00800984960667, 0.00406265364667, -0.000759696728412,
        0.000469624873119, -0.000850852697666, 0.000335946138823,
    ),
    1: (
        0.0446877098756, -0.0611243392222, 0.0680576003201, -0.0684825347892, 0.0637673791193,
        -0.0552812903988, 0.0446750036354, -0.0336614238908, 0.0236825937173, -0.0156138296376,
        0.00959863076442, -0.00542831465539, 0.00296905901775, -0.00169763037132, 0.000799466383692,
        -0.000203178355124, 0.00010047992148, -0.000123552777983, 4.59830515278e-05,
    ),
}  # fmt: skip
"""Of ``exp(-x) I0(x)`` and ``exp(-x) I1(x) / x`` in ``x / 4 - 1``, up to 8."""

_BESSEL_FAR = {
    0: (
        0.402176509445, 0.00336055585193, 0.000136216843115, 1.11115254567e-05, 1.47679210994e-06,
        3.63171030528e-07, 1.08298982593e-07,
    ),
    1: (
        0.389398459026, -0.00974958152655, -0.000219236669429, -1.50033230661e-05, -1.82671450466e-06,
        -4.21555437298e-07, -1.22124984659e-07,
    ),
}  # fmt: skip
"""Of ``sqrt(x) exp(-x)`` times either in ``16 / x - 1``, from 8."""


def _polynomial(xp: Any, x: Any, coefficients: Sequence[float]) -> Any:
    total = xp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _series(xp: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """Give the sum of ``coefficients[k] / x**(2 * k)``."""
    return _polynomial(xp, 1 / (x * x), coefficients)


def _reflected(xp: Any, x: Any, right: Callable[[Any], Any], left: Callable[..., Any]) -> Any:
    """Give `right` above 1/2, and `left` of what it gives at ``1 - x`` below."""
    above = x > 0.5
    y = right(xp.where(above, x, 1 - x))
    return xp.where(above, y, left(xp.where(above, 0.25, x), y))


def lgamma(xp: Any, x: Any) -> Any:
    """Give the logarithm of the gamma function's magnitude."""

    def right(x: Any) -> Any:
        product, top = x, x + _SHIFT
        for k in range(1, _SHIFT):
            product = product * (x + k)
        series = _series(xp, top, _LGAMMA) / top
        return (top - 0.5) * xp.log(top) - top + 0.5 * math.log(2 * math.pi) + series - xp.log(product)

    def left(x: Any, y: Any) -> Any:
        part = abs(x - xp.round(x))
        sine = xp.where(part == 0, 0.0, xp.sin(math.pi * part))  # a pole at each whole number
        return math.log(math.pi) - xp.log(sine) - y

    return _reflected(xp, x, right, left)


def digamma(xp: Any, x: Any) -> Any:
    """Give the slope of ``lgamma``."""

    def right(x: Any) -> Any:
        top = x + _SHIFT
        total = xp.log(top) - 0.5 / top + _series(xp, top, _DIGAMMA) / (top * top)
        for k in range(_SHIFT):
            total = total - 1 / (x + k)
        return total

    def left(x: Any, y: Any) -> Any:
        angle = math.pi * (x - xp.round(x))
        return y - math.pi * xp.cos(angle) / xp.sin(angle)

    return _reflected(xp, x, right, left)


def trigamma(xp: Any, x: Any) -> Any:
    """Give the slope of ``digamma``."""

    def right(x: Any) -> Any:
        top = x + _SHIFT
        total = 1 / top + 0.5 / (top * top) + _series(xp, top, _TRIGAMMA) / (top * top * top)
        for k in range(_SHIFT):
            total = total + 1 / ((x + k) * (x + k))
        return total

    def left(x: Any, y: Any) -> Any:
        sine = xp.sin(math.pi * (x - xp.round(x)))
        return math.pi * math.pi / (sine * sine) - y

    return _reflected(xp, x, right, left)


def _erfc_scaled(xp: Any, x: Any) -> Any:
    """Give ``exp(x * x) * erfc(x)`` where x is not negative."""
    place = xp.where(xp.isinf(x), 1.0, (x - 3.75) / (x + 3.75))
    return _polynomial(xp, place, _ERFCX) / (1 + 2 * x)


def erfcx(xp: Any, x: Any) -> Any:
    """Give ``exp(x * x) * erfc(x)``."""
    right = _erfc_scaled(xp, xp.abs(x))
    return xp.where(x < 0, 2 * xp.exp(x * x) - right, right)


def erfc(xp: Any, x: Any) -> Any:
    """Give the complement of the error function, as exact where it is small."""
    right = _erfc_scaled(xp, xp.abs(x)) * xp.exp(-x * x)
    return xp.where(x < 0, 2 - right, right)


def _inverse_of_erf(xp: Any, x: Any, rest: Any) -> Any:
    """Give the number whose error function is `x`; `rest` is ``1 - x * x``."""
    far, low, high = -xp.log(rest), 5**0.5, 9.6
    is_far = far > 5  # NaN is not, and goes through the polynomial of what is near
    root = xp.sqrt(xp.where(is_far, xp.clip(far, 5.0, high**2), 5.0))
    slope = xp.where(
        is_far,
        _polynomial(xp, (root - (low + high) / 2) * (2 / (high - low)), _ERFINV_FAR),
        _polynomial(xp, xp.where(is_far, 5.0, far) / 2.5 - 1, _ERFINV_NEAR),
    )
    return xp.where(rest == 0, x * math.inf, x * slope)


def atan2(xp: Any, y: Any, x: Any) -> Any:
    """Give the angle of a point in the plane, in the precision of its coordinates."""
    far, near = xp.maximum(abs(x), abs(y)), xp.minimum(abs(x), abs(y))
    ratio = xp.where(far == near, 1.0, near / xp.where(far == 0, 1.0, far))  # both may be infinite
    angle = xp.arctan(xp.where(far == 0, 0.0, ratio))
    angle = xp.where(abs(y) > abs(x), math.pi / 2 - angle, angle)
    angle = xp.where(_is_negative(x), math.pi - angle, angle)
    one = xp.ones_like(angle)
    return angle * xp.where(_is_negative(y), -one, one)  # ONNX Runtime's Where forgets the sign of a zero


def _is_negative(x: Any) -> Any:
    """Say where a number has the sign of negative ones: zero may."""
    return (x < 0) | ((x == 0) & (1 / x < 0))


def erfinv(xp: Any, x: Any) -> Any:
    """Give the number whose error function is `x`."""
    return _inverse_of_erf(xp, x, (1 - x) * (1 + x))


def ndtri(xp: Any, x: Any) -> Any:
    """Give the quantile of the standard normal distribution."""
    return math.sqrt(2) * _inverse_of_erf(xp, 2 * x - 1, 4 * x * (1 - x))


def bessel(order: int, is_scaled: bool, xp: Any, x: Any) -> Any:
    """Give the modified Bessel function of the first kind, times ``exp(-|x|)`` if `is_scaled`."""
    size = xp.abs(x)
    is_far = size > 8  # NaN is not
    near = _polynomial(xp, xp.where(is_far, 8.0, size) / 4 - 1, _BESSEL_NEAR[order])
    large = xp.where(is_far, size, 8.0)
    far = _polynomial(xp, 16 / large - 1, _BESSEL_FAR[order]) / xp.sqrt(large)
    scaled = xp.where(is_far, far * xp.sign(x), near * x) if order else xp.where(is_far, far, near)
    return scaled if is_scaled else scaled * xp.exp(size)
