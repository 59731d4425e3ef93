"""Statistics of the values of a constant, whatever its size and type."""

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from campo_onnx.ir import constants
from campo_onnx.ir.statistics import statistics_of


def statistics(values):
    return statistics_of(numpy_helper.from_array(np.asarray(values), "c"), None)


@pytest.mark.parametrize(
    ("values", "lowest", "highest", "smallest", "is_integer"),
    [
        (np.float32([1.0, -2.5, 0.0]), -2.5, 1.0, 1.0, False),
        (np.float32([[3.0, -4.0]]), -4.0, 3.0, 3.0, True),
        (np.float32([1e-12]), 1e-12, 1e-12, 1e-12, False),
        (np.float64([-3.4e38, 0.0]), -3.4e38, 0.0, 3.4e38, True),
        (np.int64([-(10**9)]), -1e9, -1e9, 1e9, True),
        (np.int8([-128, 0, 127]), -128.0, 127.0, 127.0, True),
        (np.uint8([0, 255]), 0.0, 255.0, 1.0, True),
        (np.array([True, False]), 0.0, 1.0, 1.0, True),
        (np.array([0.5, -2.0], ml_dtypes.bfloat16), -2.0, 0.5, 0.5, False),
        (np.float32([np.inf, -np.inf, np.nan, 2.0]), 2.0, 2.0, 2.0, True),
        (np.float32([np.nan]), 0.0, 0.0, 0.0, True),
        (np.zeros((0, 4), np.float32), 0.0, 0.0, 0.0, True),
    ],
)
def test_bounds_of_every_type(values, lowest, highest, smallest, is_integer):
    summary = statistics(values)
    assert (summary.lowest, summary.highest) == (pytest.approx(lowest), pytest.approx(highest))
    assert summary.smallest == pytest.approx(smallest)
    assert summary.is_integer is is_integer
    assert summary.elements == values.size


def test_pieces_are_put_together(monkeypatch):
    monkeypatch.setattr(constants, "_CHUNK_ELEMENTS", 3)
    summary = statistics(np.float32([1, 2, 3, 4, -9, 1e-3, 7, 0.5]))
    assert (summary.lowest, summary.highest, summary.elements) == (-9.0, 7.0, 8)
    assert math.isclose(summary.smallest, 1e-3, rel_tol=1e-6)
    assert not summary.is_integer


def test_text_has_no_statistics():
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"word"])
    assert statistics_of(text, None) is None
