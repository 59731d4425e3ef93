"""Statistics of a constant's values, read once and a piece at a time, whatever its size and type."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ir.constants import chunks

_NO_NUMBERS = frozenset({int(TensorProto.STRING), int(TensorProto.COMPLEX64), int(TensorProto.COMPLEX128), 0})
_SAMPLE = 16
_ELEVEN_BITS = 2.0**11
_BEYOND = 64.0
_MASKS = 65504.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantStatistics:
    """Statistics of the values of a constant, without infinities and NaN."""

    elements: int
    # lowest, highest: its bounds; 0 where no value is finite.
    lowest: float
    highest: float
    smallest: float  # smallest magnitude that is not zero; 0 where there is none
    is_integer: bool
    # Largest error that rounding to 11 significant bits makes, where there are values beyond 64: large of a
    # table of positions, zero of a mask.
    rounding: float = 0.0

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(abs(self.lowest), abs(self.highest))


def statistics_of(tensor: TensorProto, folder: Path | None) -> ConstantStatistics | None:
    """Read a constant of any size and numeric type once, a piece at a time.

    There are none of one that holds no real numbers (text, complex numbers).
    """
    if tensor.data_type in _NO_NUMBERS:
        return None
    elements, lowest, highest, smallest, is_integer = 0, math.inf, -math.inf, math.inf, True
    rounding = 0.0
    for chunk in chunks(tensor, folder):
        elements += chunk.size
        # Types that NumPy does not know (bfloat16, 4-bit integers) are exact in FP32.
        values = chunk if chunk.dtype.kind in "iufb" else chunk.astype(np.float32)
        if values.dtype.kind == "b":
            values = values.astype(np.uint8)
        low, high = float(values.min(initial=_top(values))), float(values.max(initial=_bottom(values)))
        if not (math.isfinite(low) and math.isfinite(high)):
            values = values[np.isfinite(values)]
            if not values.size:
                continue
            low, high = float(values.min()), float(values.max())
        lowest, highest = min(lowest, low), max(highest, high)
        is_float = values.dtype.kind == "f"
        if low > 0.0 or high < 0.0:
            smallest = min(smallest, abs(low), abs(high))
        elif is_float or low < 0.0:
            magnitudes = np.abs(values) if is_float else np.abs(values.astype(np.float64))
            smallest = min(smallest, float(magnitudes.min(initial=np.inf, where=magnitudes > 0)))
        elif high > 0.0:
            smallest = min(smallest, 1.0)
        if is_float and max(-low, high) > _BEYOND:
            rounding = max(rounding, _rounding(values))
        if is_float and is_integer:
            is_integer = bool((values[:_SAMPLE] == np.rint(values[:_SAMPLE])).all()) and bool(
                (values == np.rint(values)).all()
            )
    if lowest > highest:
        lowest = highest = 0.0
    return ConstantStatistics(
        elements=elements,
        lowest=lowest,
        highest=highest,
        smallest=0.0 if math.isinf(smallest) else smallest,
        is_integer=is_integer,
        rounding=rounding,
    )


def _rounding(values: NDArray[Any]) -> float:
    """The largest error of values that 11 significant bits leave of these."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(mantissa * _ELEVEN_BITS) / _ELEVEN_BITS, exponent)
    error = np.abs(rounded - values)
    return float(error.max(initial=0.0, where=np.abs(values) < _MASKS))


def _top(values: NDArray[Any]) -> Any:
    return np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).max


def _bottom(values: NDArray[Any]) -> Any:
    return -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
