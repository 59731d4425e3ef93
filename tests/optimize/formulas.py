"""Formulas as small graphs with awkward data, held against FP32."""

from typing import NamedTuple

import numpy as np

from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ops.precision import Precision
from tests.optimize.small_steps import both, model_of

RANDOM = np.random.default_rng(0)
LIMITS = {Precision.FP16: 0.01, Precision.BF16: 0.08}


def normal(*shape, size=1.0, mean=0.0):
    return (RANDOM.normal(size=shape) * size + mean).astype(np.float32)


def f32(value):
    return np.asarray(value, np.float32)


def i64(*values):
    return np.array(values, np.int64)


class Case(NamedTuple):
    body: str
    constants: dict
    feeds: dict
    output: str = "float[64,64] y"

    @property
    def model(self):
        kinds = {"float32": "float", "int64": "int64"}
        inputs = ", ".join(f"{kinds[str(v.dtype)]}{list(v.shape) or ''} {k}" for k, v in self.feeds.items())
        return model_of(self.body, self.constants, inputs=inputs, outputs=self.output)


def assert_as_in_fp32(case, strategy, low):
    """Every output, finite, and off by no more than what is tolerated of the precision."""
    expected, actual, _ = both(case.model, case.feeds, strategy, low=low)
    assert np.isfinite(expected["y"]).all()
    assert relative_l2(actual["y"], expected["y"]) < LIMITS[low]
