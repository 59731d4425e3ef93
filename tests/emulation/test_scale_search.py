"""Steps that scale their loss are tried with the scale that a loss scaler ends with."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.verdict import Finding, Status
from campo_onnx.emulation.probe import Probed, probe
from campo_onnx.emulation.scale_search import LARGEST, settled_scale
from campo_onnx.optimize import eligibility
from campo_onnx.training import loss_scaler

# Gradients are `factor` times what one thinks of; the third is of values `size` times those of the batch.
STEP = """<ir_version: 10, opset_import: ["": 20]>
step (float[64, 256] x, float[256, 256] w, float[256, 256] v, float loss_scale) => (
    float loss, float[256, 256] grad_w, float[256, 256] grad_v, float[256, 256] grad_e) {{
    [first] h = MatMul(x, w) [second] y = MatMul(h, v) [square] s = Mul(y, y)
    [mean] loss = ReduceMean<keepdims = 0>(s)
    [factor] k = Constant<value_float = {factor:.1e}>() [seed] seed = Mul(loss_scale, k)
    [start] d = Mul(y, seed)
    [ht] ht = Transpose<perm = [1, 0]>(h) [weight_v] sv = MatMul(ht, d)
    [vt] vt = Transpose<perm = [1, 0]>(v) [back] dh = MatMul(d, vt)
    [xt] xt = Transpose<perm = [1, 0]>(x) [weight_w] sw = MatMul(xt, dh)
    [size] c = Constant<value_float = {size:.1e}>() [small] e = Mul(x, c)
    [et] et = Transpose<perm = [1, 0]>(e) [weight_e] se = MatMul(et, d)
    [inverse] i = Reciprocal(loss_scale) [unscale_v] grad_v = Mul(sv, i) [unscale_w] grad_w = Mul(sw, i)
    [unscale_e] grad_e = Mul(se, i)
}}"""
V100 = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
OPTIONS = Options(target=V100, lists=oplists("campo"), low=Precision.FP16, min_gain=0.0)


def step(factor: float, *, size: float = 0.5) -> onnx.ModelProto:
    return parser.parse_model(STEP.format(factor=factor, size=size))


def tried(model: onnx.ModelProto) -> Probed:
    optimized = optimize_model(model, OPTIONS)
    assert {"weight_v", "weight_w", "back"} <= optimized.plan.low_nodes
    return probe(optimized, OPTIONS)


@pytest.mark.parametrize("exponent", range(0, 25, 3))
def test_the_scale_is_the_largest_power_of_two_that_does_not_overflow(exponent: int) -> None:
    scales: list[float] = []

    def overflows(scale: float) -> bool:
        scales.append(scale)
        return scale >= 1.5 * 2**exponent

    assert settled_scale(overflows, first_overflows=exponent < 10) == 2.0**exponent
    assert len(scales) <= 4


def test_a_step_that_overflows_with_every_scale_has_the_smallest() -> None:
    assert settled_scale(lambda scale: True, first_overflows=True) == 1.0


def test_the_largest_scale_is_the_scaler_s() -> None:
    assert settled_scale(lambda scale: False, first_overflows=False) == LARGEST == loss_scaler.LARGEST


def test_gradients_that_a_larger_scale_saves_take_no_node_from_low_precision() -> None:
    outcome = tried(step(1e-10))
    assert not outcome.fp32, outcome.summary


def test_gradients_that_overflow_the_usual_scale_are_judged_with_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eligibility, "value_verdicts", lambda *_: {})  # the rules see this one, too
    assert not tried(step(3.0)).fp32
    assert "small" in tried(step(3.0, size=1e-9)).fp32


def drift(folder: Path, model: onnx.ModelProto) -> Finding:
    onnx.save(model, folder / "step.onnx")
    onnx.save(optimize_model(model, OPTIONS).model, folder / "mixed.onnx")
    verdicts = check(folder / "mixed.onnx", folder / "step.onnx", Policy(target=V100, min_speedup=0)).verdicts
    return {v.rule: v.finding for v in verdicts}["drift"]


@pytest.mark.parametrize("factor", [1e-10, 3.0])
def test_check_compares_gradients_with_the_scale_that_training_ends_with(
    factor: float, tmp_path: Path
) -> None:
    finding = drift(tmp_path, step(factor))
    assert finding.status is Status.PASSED
    assert "with which training ends" in finding.reason


def test_check_names_no_other_scale_where_the_usual_one_does(tmp_path: Path) -> None:
    finding = drift(tmp_path, step(1.0))
    assert finding.status is Status.PASSED
    assert "loss scale" not in finding.reason


def test_no_scale_excuses_a_gradient_of_what_fp16_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eligibility, "value_verdicts", lambda *_: {})
    finding = drift(tmp_path, step(3.0, size=1e-9))
    assert finding.status is Status.FAILED
    assert "1 of 4 outputs" in finding.reason
    assert "'grad_e'" in finding.reason
