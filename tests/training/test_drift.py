"""Errors of a mixed step are held against what matters, and against what FP32 itself knows."""

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from campo_onnx.emulation.drift import FEWER_BITS, MOST_IN_FP16, Reference
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.runtime.registry import machine

CPU = machine("cpu")


def reference(text, feeds, earlier=None):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {text}')
    return Reference(model=model, feeds=feeds, earlier=earlier or {}, machine=CPU)


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 8)).astype(np.float32)

TWO = """(float[4,8] x, float[4,8] z) => (float[4,8] big, float[4,8] small, int64[4] best)
         { big = Identity(x) small = Identity(z) best = ArgMax<axis=1, keepdims=0>(x) }"""


def test_a_large_output_does_not_hide_a_small_one():
    fp32 = reference(TWO, {"x": 1e6 * X, "z": 1e-6 * X})
    actual = {**fp32.outputs, "small": fp32.outputs["small"] * 0.5}
    assert fp32.drift_of(actual)["small"] == pytest.approx(0.5)
    assert fp32.drift_of(fp32.outputs) == {"big": 0.0, "small": 0.0, "best": 0.0}


def test_integers_that_differ_count_by_their_share():
    fp32 = reference(TWO, {"x": X, "z": X})
    best = fp32.outputs["best"].copy()
    best[0] += 1
    assert fp32.drift_of({**fp32.outputs, "best": best})["best"] == 0.25


UPDATE = """(float[4,8] w, float[4,8] m, float[4,8] g) => (float[4,8] new_w, float[4,8] new_m)
            { new_m = Add(m, g) new_w = Sub(w, new_m) }"""


def test_a_new_weight_is_held_against_its_change():
    feeds = {"w": 100 * X, "m": 1e-3 * X, "g": 1e-3 * X}
    earlier = {"new_w": ("m", "w"), "new_m": ("m",)}
    fp32 = reference(UPDATE, feeds, earlier)
    actual = {**fp32.outputs, "new_w": feeds["w"]}  # the whole update is lost
    assert fp32.drift_of(actual)["new_w"] == pytest.approx(1.0, rel=0.01)


PENALIZED = """(float[4,8] w, float[4,8] g) => (float[4,8] gradient) <float decay = {0.02}>
               { of_penalty = Mul(w, decay) gradient = Add(g, of_penalty) }"""


def test_a_gradient_with_a_share_of_its_weight_is_held_against_itself():
    feeds = {"w": X, "g": 1e-2 * X[::-1].copy()}
    fp32 = reference(PENALIZED, feeds)
    earlier = earlier_versions(import_model(fp32.model).view)
    assert earlier == {"gradient": ("g", "w")}
    fp32 = replace(fp32, earlier={"gradient": ("w",)})
    half = {"gradient": fp32.outputs["gradient"] / 2}
    assert fp32.drift_of(half)["gradient"] == pytest.approx(0.5)


NOISE = """(float[4,8] x, float[4,8] z) => (float[4,8] gradient, float[4,8] noise)
           { gradient = Identity(x) s = Add(x, z) d = Sub(s, x) noise = Sub(d, z) }"""


def test_what_fp32_does_not_know_is_held_against_its_kind():
    """(x + z) - x - z is zero but for rounding."""
    fp32 = reference(NOISE, {"x": X, "z": 0.3 * X[::-1].copy()})
    assert 0 < np.abs(fp32.outputs["noise"]).max() < 1e-6
    off = {**fp32.outputs, "noise": fp32.outputs["noise"] + np.float32(1e-3)}
    assert fp32.drift_of(off)["noise"] < 0.01
    far_off = {**fp32.outputs, "noise": fp32.outputs["noise"] + np.float32(0.1)}
    assert fp32.drift_of(far_off)["noise"] > 0.05


ZERO = """(float[4,8] x, float[4,8] z) => (float[4,8] noise)
          { s = Add(x, z) d = Sub(s, x) noise = Sub(d, z) }"""


def test_what_is_zero_but_for_rounding_may_lose_all_that_fp16_has_to_lose():
    fp32 = reference(ZERO, {"x": X, "z": 0.3 * X[::-1].copy()})
    assert fp32.zero_but_for_rounding == {"noise"}
    lost = FEWER_BITS * fp32.own_error["noise"] * fp32.outputs["noise"]
    errors = {
        times: fp32.drift_of({"noise": fp32.outputs["noise"] + times * lost})["noise"] for times in (0.5, 2)
    }
    assert errors[0.5] < MOST_IN_FP16 < errors[2]


CHOICE = """(float[64,64] x, float[64,64] z) => (float[64,64] chosen, float[64,64] plain)
            { plain = Neg(x) c = Greater(x, z) chosen = Where(c, x, plain) }"""


def test_choices_show_when_the_inputs_are_rounded():
    """Values as close as FP16's rounding: one is chosen or not, which FP32's last bit does not tell."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    fp32 = reference(CHOICE, {"x": x, "z": x * np.float32(1.0003)})
    assert fp32.own_error["chosen"] < 1e-6
    assert fp32.error_of_rounding(Precision.FP16)["chosen"] > 0.1
    assert fp32.error_of_rounding(Precision.FP16)["plain"] < 1e-3


@pytest.mark.parametrize("place", range(8))
def test_one_choice_at_its_edge_says_nothing_of_what_fp32_loses(place):
    """Of three runs that differ in last bits, two choose alike."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    z = x + np.float32(0.5)
    z[0, place] = x[0, place]
    assert 0 < reference(CHOICE, {"x": x, "z": z}).own_error["chosen"] < 1e-6


FEW = """(float[4,8] x, float[4,8] z) => (float sum, float[4,8] noise)
         { s = Add(x, z) d = Sub(s, x) noise = Sub(d, z) sum = ReduceSum<keepdims=0>(noise) }"""


@pytest.mark.parametrize("seed", range(12))
def test_what_fp32_loses_of_few_numbers_is_the_largest_of_three_distances(seed):
    """Of three random numbers two may be alike by chance."""
    x, z = np.random.default_rng(seed).normal(size=(2, 4, 8)).astype(np.float32)
    assert {"sum", "noise"} <= reference(FEW, {"x": x, "z": z}).zero_but_for_rounding


CANCELLATION = """(float[4,8] x, float[4,8] z) => (float[4,8] gradient, float[4,8] rest)
             { gradient = Mul(x, x) s = Add(x, z) q = Mul(s, s) rest = Sub(q, gradient) }"""


def test_what_fp32_hardly_knows_is_not_held_against_the_size_of_its_kind():
    """(x + z)^2 - x^2, where z is a thousandth of x: FP32 knows it to 1e-4, so to lose all of it counts."""
    fp32 = reference(CANCELLATION, {"x": X, "z": 1e-3 * X[::-1].copy()})
    assert 1 / FEWER_BITS / 10 < fp32.own_error["rest"] < 1e-3
    off = {**fp32.outputs, "rest": np.zeros_like(X)}
    assert fp32.drift_of(off)["rest"] == pytest.approx(1 / (10 * FEWER_BITS * fp32.own_error["rest"]))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_is_infinitely_far(value):
    fp32 = reference(TWO, {"x": X, "z": X})
    off = fp32.outputs["small"].copy()
    off[1, 2] = value
    assert fp32.drift_of({**fp32.outputs, "small": off})["small"] == float("inf")
