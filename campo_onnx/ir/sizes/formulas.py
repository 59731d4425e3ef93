"""Formulas for numbers that depend on sizes, from a few examples; none where those leave a choice."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sizes = tuple[int, ...]
"""Values of a graph's symbols, in their order."""

_MOST_DEGREE = 3
_MOST_ELEMENTS = 16
_MOST_CORNERS = 64
_NEARLY_WHOLE = 1e-4
_FLOAT_ERROR = 2.0**-22
"""Relative; a constant in FP32 is off by a quarter of this at most, and its coefficient by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """``offset + factor * (scale * product of powers of sizes + more such terms + shift) ** exponent``."""

    # offset, factor: coefficients; integers where the number is one.
    offset: float
    factor: float = 0
    powers: tuple[int, ...] = ()  # of each size
    # scale, shift, exponent: 1, 0 and 1 where the number is an integer.
    scale: float = 1
    shift: float = 0
    exponent: float = 1
    more: tuple[tuple[float, tuple[int, ...]], ...] = ()  # scale and powers of each further term

    def at(self, sizes: Sizes) -> float:
        """Evaluate it."""
        if not self.factor:
            return self.offset
        terms = ((self.scale, self.powers), *self.more)
        base = sum(scale * _product(sizes, powers) for scale, powers in terms) + self.shift
        if not base and self.exponent < 0:
            return math.inf
        power: float = base if self.exponent == 1 else float(base) ** self.exponent
        return self.offset + self.factor * power

    @property
    def is_constant(self) -> bool:
        """Whether it is the same at all sizes."""
        return not self.factor


def formula_of(numbers: Sequence[Any], sizes: Sequence[Sizes]) -> Formula | None:
    """Find the formula of a number; None where none fits, or several that differ elsewhere do.

    `numbers`: all integers, or all floating-point numbers.
    `sizes`: the sizes at which it is each of them; two at least.

    >>> formula_of([6, 10, 28], [(2, 3), (2, 5), (4, 7)]).at((3, 9))
    27
    """
    if all(same(number, numbers[0]) for number in numbers):
        return Formula(offset=numbers[0])
    if not all(math.isfinite(number) for number in numbers):
        return None
    whole = all(isinstance(number, int) for number in numbers)
    shapes = [(0, 1)] if whole else [(0, 1), (0, -1), (0, 0.5), (0, -0.5), (-1, -1)]
    monomials = _monomials(sizes)
    for with_offset in (False, True):
        fitting = [
            formula
            for powers in monomials
            for shift, exponent in shapes
            if (formula := _solved(numbers, sizes, powers, shift, exponent, with_offset)) is not None
        ]
        if fitting:
            return fitting[0] if _agree(fitting, sizes) else None
    alone = None if whole else _unbiased(numbers, sizes, monomials)
    return alone or _sum_of(numbers, sizes, monomials)


def _product(sizes: Sizes, powers: Sequence[int]) -> int:
    return math.prod(n**p for n, p in zip(sizes, powers, strict=True))


def _sum_of(
    numbers: Sequence[Any], sizes: Sequence[Sizes], monomials: Sequence[tuple[int, ...]]
) -> Formula | None:
    """Find a sum of sizes, or of their products, or a power of one: nodes and edges joined, say.

    There is one example more than coefficients, at least, so that they are known and were tried.
    """
    whole = isinstance(numbers[0], int)
    for degree, exponent in itertools.product((1, 2), (1,) if whole else (1, -1, -0.5)):
        chosen = [powers for powers in monomials if sum(powers) <= degree]
        if not 1 < len(chosen) < len(sizes) - 1 or min(numbers) <= 0:
            continue
        table = np.array([[*(_product(at, powers) for powers in chosen), 1] for at in sizes], np.float64)
        bases = np.array([float(number) ** (1 / exponent) for number in numbers])
        coefficients, _, rank, _ = np.linalg.lstsq(table, bases, rcond=None)
        *scales, constant = (_nearly_whole(x, whole) for x in coefficients.tolist())
        if rank < len(coefficients) or not any(scales):
            continue
        first, *others = [(scale, powers) for scale, powers in zip(scales, chosen, strict=True) if scale]
        formula = Formula(
            offset=constant if whole else 0,
            factor=1,
            powers=first[1],
            scale=first[0],
            shift=0 if whole else constant,
            exponent=exponent,
            more=tuple(others),
        )
        if all(same(formula.at(at), number) for number, at in zip(numbers, sizes, strict=True)):
            return formula
    return None


def _monomials(sizes: Sequence[Sizes]) -> list[tuple[int, ...]]:
    """Powers of the sizes that differ among the examples, lowest degrees first."""
    choices = [range(3) if len(set(column)) > 1 else range(1) for column in zip(*sizes, strict=True)]
    powers = [p for p in itertools.product(*choices) if 0 < sum(p) <= _MOST_DEGREE]
    return sorted(powers, key=sum)


def _solved(
    numbers: Sequence[Any],
    sizes: Sequence[Sizes],
    powers: tuple[int, ...],
    shift: int,
    exponent: float,
    with_offset: bool,
) -> Formula | None:
    unit = Formula(offset=0, factor=1, powers=powers, shift=shift, exponent=exponent)
    bases = [unit.at(each) for each in sizes]
    whole = isinstance(numbers[0], int)
    low, high = min(range(len(bases)), key=bases.__getitem__), max(range(len(bases)), key=bases.__getitem__)
    rise, run = numbers[high] - numbers[low], bases[high] - bases[low]
    if not with_offset:
        rise, run = numbers[high], bases[high]
    if not all(map(math.isfinite, bases)) or not run or not rise or (whole and rise % run):
        return None
    factor = rise // run if whole else _short(rise / run)
    offset = numbers[high] - factor * bases[high] if with_offset else 0
    formula = Formula(offset=offset, factor=factor, powers=powers, shift=shift, exponent=exponent)
    fits = all(same(formula.at(at), number) for number, at in zip(numbers, sizes, strict=True))
    return formula if fits else None


def _nearly_whole(number: float, must_be: bool) -> float:
    """Give the whole number that a coefficient is up to rounding; one that is none as it is."""
    near = round(number)
    return near if must_be or abs(number - near) < (_NEARLY_WHOLE if near else _FLOAT_ERROR) else number


def _unbiased(
    numbers: Sequence[float], sizes: Sequence[Sizes], monomials: Sequence[tuple[int, ...]]
) -> Formula | None:
    """Find ``f / (n - 1)`` or ``f * n / (n - 1)``, where n is a number times a product of sizes.

    Variances are divided by it, and running variances multiplied, with a momentum f. From two numbers y:
    ``k = (y1 - y2) / (y1 p1 - y2 p2)`` for the former, ``(y1 / p1 - y2 / p2) / (y1 - y2)`` for the latter.
    """
    fitting = []
    for powers in monomials:
        products = [Formula(offset=0, factor=1, powers=powers).at(each) for each in sizes]
        low, high = (pick(range(len(sizes)), key=products.__getitem__) for pick in (min, max))
        (y1, p1), (y2, p2) = (numbers[low], products[low]), (numbers[high], products[high])
        for has_offset in (False, True):
            above = y1 / p1 - y2 / p2 if has_offset else y1 - y2
            below = y1 - y2 if has_offset else y1 * p1 - y2 * p2
            scale = above / below if below else 0.0
            scale = round(scale) if (scale and same(round(scale) / scale, 1)) or scale > 1 else scale
            if scale * p1 <= 1:
                continue
            factor = y1 * (scale * p1 - 1) / (scale * p1 if has_offset else 1)
            factor = _short(factor)
            formula = Formula(
                offset=factor if has_offset else 0,
                factor=factor,
                powers=powers,
                scale=scale,
                shift=-1,
                exponent=-1,
            )
            if all(same(formula.at(at), number) for number, at in zip(numbers, sizes, strict=True)):
                fitting.append(formula)
    return fitting[0] if fitting and _agree(fitting, sizes) else None


def _short(number: float) -> float:
    """Give the number that was meant: its few digits, where they are as near as rounding allows."""
    short = float(f"{number:.6g}")
    return short if same(short, number) else number


def same(one: float, other: float) -> bool:
    """Whether two numbers are the same, floating-point ones up to rounding to FP32."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return bool(abs(one - other) <= _FLOAT_ERROR * abs(other)) or (math.isnan(one) and math.isnan(other))


def _agree(formulas: Sequence[Formula], sizes: Sequence[Sizes]) -> bool:
    """Whether formulas give the same at the corners of the box around the examples."""
    ends = [(min(column), max(column)) for column in zip(*sizes, strict=True)]
    corners = itertools.islice(itertools.product(*ends), _MOST_CORNERS)
    return all(
        same(formula.at(corner), formulas[0].at(corner)) for corner in corners for formula in formulas[1:]
    )


def declared(shape: Sequence[Formula]) -> tuple[int | None, ...]:
    """Give the sizes of axes, None for those that are not the same at all sizes."""
    return tuple(int(n.offset) if n.is_constant else None for n in shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFormula:
    """An array whose shape and elements depend on sizes."""

    dtype: np.dtype[Any]
    shape: tuple[Formula, ...]
    # Each element, of a small array whose shape is the same at all sizes; None for a larger one.
    elements: tuple[Formula, ...] | None
    # first, steps: of a larger one its first element, and what is added from place to place along each axis.
    first: Formula
    steps: tuple[Formula, ...]

    def at(self, sizes: Sizes) -> NDArray[Any]:
        """Make the array."""
        shape = tuple(int(n.at(sizes)) for n in self.shape)
        if self.elements is not None:
            return np.array([e.at(sizes) for e in self.elements], self.dtype).reshape(shape)
        steps = [step.at(sizes) for step in self.steps]
        return _ramp(self.first.at(sizes), steps, shape).astype(self.dtype)

    @property
    def declared_shape(self) -> tuple[int | None, ...]:
        """Its shape, None where that depends on sizes."""
        return declared(self.shape)

    def is_at(self, sizes: Sizes, array: NDArray[Any]) -> bool:
        """Whether an array is what the formula gives."""
        computed = self.at(sizes)
        if (computed.dtype, computed.shape) != (array.dtype, array.shape):
            return False
        return all(map(same, computed.ravel().tolist(), array.ravel().tolist()))


def array_formula_of(arrays: Sequence[NDArray[Any]], sizes: Sequence[Sizes]) -> ArrayFormula | None:
    """Find the formula of an array; None where none fits.

    `arrays`: of one type and rank.
    """
    shape = _formulas([a.shape for a in arrays], sizes)
    if shape is None or arrays[0].dtype.kind not in "iufb" or min(a.size for a in arrays) == 0:
        return None
    dtype = arrays[0].dtype
    if arrays[0].size <= _MOST_ELEMENTS and len({a.shape for a in arrays}) == 1:
        elements = _formulas([_numbers(a) for a in arrays], sizes)
        if elements is None:
            return None
        return ArrayFormula(dtype=dtype, shape=shape, elements=elements, first=elements[0], steps=())
    firsts = [_numbers(a[(slice(0, 1),) * a.ndim])[0] for a in arrays]
    rises = [[_rise(a, axis) for axis in range(a.ndim)] for a in arrays]
    first, steps = _formulas([[f] for f in firsts], sizes), _formulas(rises, sizes)
    if first is None or steps is None:
        return None
    formula = ArrayFormula(dtype=dtype, shape=shape, elements=None, first=first[0], steps=steps)
    return formula if all(formula.is_at(at, a) for a, at in zip(arrays, sizes, strict=True)) else None


def _numbers(array: NDArray[Any]) -> list[Any]:
    return [int(x) if isinstance(x, bool) else x for x in array.ravel().tolist()]


def _formulas(rows: Sequence[Sequence[Any]], sizes: Sequence[Sizes]) -> tuple[Formula, ...] | None:
    if len({len(row) for row in rows}) > 1:
        return None
    formulas = tuple(formula_of(column, sizes) for column in zip(*rows, strict=True))
    return None if None in formulas else tuple(f for f in formulas if f is not None)


def _rise(array: NDArray[Any], axis: int) -> Any:
    """From an array's first element to the next along an axis; 0 where there is no next."""
    if array.shape[axis] < 2:
        return 0.0 if array.dtype.kind == "f" else 0
    corner = array[tuple(slice(0, 2 if k == axis else 1) for k in range(array.ndim))]
    ends = _numbers(corner)
    return ends[1] - ends[0]


def _ramp(first: float, steps: Sequence[float], shape: Sequence[int]) -> NDArray[Any]:
    whole = all(isinstance(n, int) for n in (first, *steps))
    ramp: NDArray[Any] = np.full(shape, first, np.int64 if whole else np.float64)
    for axis, step in enumerate(steps):
        along = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        ramp = ramp + step * along
    return ramp
