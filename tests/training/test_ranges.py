"""Ranges of tensors: figures that can be checked by hand."""

import numpy as np
import pytest
from onnx import parser

from campo_onnx.emulation.ranges import ranges_of
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.registry import machine

MODEL = """<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y)
<float two = {2.0}> { [double] h = Mul(x, two) [neg] y = Neg(h) }"""


def ranges(values, precision=Precision.FP16, tensors=("x", "h")):
    model = parser.parse_model(MODEL)
    batches = [{"x": np.array(row, np.float32)} for row in values]
    return ranges_of(model, tensors, batches, precision, machine("cpu"))


def test_each_loss_is_counted_among_nonzeros():
    tensors = ranges([[0.0, -4e4, 1e-5, 2.0**-26]])
    x, h = tensors["x"], tensors["h"]
    assert x.largest == 4e4
    assert x.overflow_share == 0
    assert x.subnormal_share == pytest.approx(1 / 3)  # 1e-5; 2^-26 vanishes
    assert x.flushed_share == pytest.approx(1 / 3)
    assert x.lost_mass == pytest.approx(2.0**-26 / 4e4, rel=1e-3)
    assert h.overflow_share == pytest.approx(1 / 3)  # -8e4
    assert h.flushed_share == pytest.approx(1 / 3)  # 2^-25 ties to the even zero


def test_the_worst_batch_counts():
    x = ranges([[1.0, 1.0, 1.0, 1.0], [1.0, 1e5, 1.0, 1.0]])["x"]
    assert x.overflow_share == 0.25
    assert x.largest == 1e5


def test_infinities_are_no_overflow():
    assert ranges([[np.inf, -np.inf, 1.0, 1.0]])["x"].overflow_share == 0


def test_bf16_holds_what_fp16_does_not():
    x = ranges([[1e5, 1e-20, 1.0, 1.0]], Precision.BF16)["x"]
    assert (x.overflow_share, x.flushed_share, x.subnormal_share) == (0, 0, 0)


def test_all_zero_loses_nothing():
    x = ranges([[0.0] * 4])["x"]
    assert (x.lost_mass, x.flushed_share, x.largest) == (0, 0, 0)
