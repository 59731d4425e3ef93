"""Whether a stored constant is another one, rounded and perhaps padded with zeros."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ir.constants import chunks


def is_rounded(low: TensorProto, low_folder: Path | None, full: TensorProto, folder: Path | None) -> bool:
    """Tell whether `low` holds the values of `full` in its own type.

    Parameters
    ----------
    low, full
        Two constants; their bytes may lie outside the model, and are read piece by piece.
    low_folder, folder
        Folders of the two models.

    Returns
    -------
    bool
        Also true where `low` is longer along some axes and holds zeros there.
    """
    if list(low.dims) == list(full.dims):
        pieces = zip(chunks(low, low_folder), chunks(full, folder), strict=True)
        return all(_same(a, b) for a, b in pieces)
    shape = tuple(full.dims)
    if len(shape) != len(low.dims) or any(a < b for a, b in zip(low.dims, shape, strict=True)):
        return False
    padded, values = _whole(low, low_folder), _whole(full, folder)
    corner = tuple(slice(size) for size in shape)
    rest = padded.copy()
    rest[corner] = 0
    return _same(padded[corner], values) and not rest.any()


def _same(low: NDArray[Any], full: NDArray[Any]) -> bool:
    rounded = full.astype(low.dtype, copy=False)
    return bool(np.all((rounded == low) | ((rounded != rounded) & (low != low))))


def _whole(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    pieces = list(chunks(tensor, folder))
    return np.concatenate(pieces).reshape(tuple(tensor.dims)) if pieces else np.empty(tuple(tensor.dims))
