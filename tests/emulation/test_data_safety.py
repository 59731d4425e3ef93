"""Safety measured on data: what overflows is forbidden, what no output feels is released."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper, parser

from campo_onnx.emulation.data_safety import measure_safety
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target

# Launches that cost nothing: so small a graph has precisions worth choosing.
DEVICE = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
OPTIONS = Options(target=DEVICE, lists=preset("campo"))

# Exp taints Mul and Add, whose values here are harmless; MatMul is allowed.
HARMLESS = """<ir_version: 10, opset_import: ["": 20]> g (float[256, 256] x, float[256, 256] w)
=> (float[256, 256] y) {
  [m1] p = MatMul(x, w) [exp] e = Exp(p) [mul] s = Mul(e, p) [add] t = Add(s, p) [m2] y = MatMul(t, w)
}"""
LARGE = HARMLESS.replace("[exp] e = Exp(p) [mul] s = Mul(e, p)", "[mul] s = Mul(p, p)")


def batch(scale, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(256, 256)).astype(np.float32)
    return {"x": x, "w": (scale * rng.normal(size=(256, 256))).astype(np.float32)}


def test_a_harmless_taint_is_released_and_pays():
    imported = import_model(parser.parse_model(HARMLESS))
    before = optimize(imported.model, OPTIONS).plan
    safety = measure_safety(imported, OPTIONS, [batch(0.01)])
    after = optimize(imported.model, safety.applied_to(OPTIONS)).plan
    assert safety.released == {"mul", "add"}
    assert not safety.forbidden
    assert {"mul", "add"} <= after.low_nodes - before.low_nodes
    assert after.predicted_us < before.predicted_us
    assert safety.gain_us == pytest.approx(before.predicted_us - after.predicted_us)
    assert max(safety.drift_after.values()) < 1e-2


def test_what_overflows_on_the_data_is_forbidden():
    imported = import_model(parser.parse_model(LARGE))
    assert "mul" in optimize(imported.model, OPTIONS).plan.low_nodes
    safety = measure_safety(imported, OPTIONS, [batch(30.0)])
    assert "mul" in safety.forbidden
    assert "overflows fp16" in safety.forbidden["mul"].reason
    plan = optimize(imported.model, safety.applied_to(OPTIONS)).plan
    decision = next(d for d in plan.decisions if d.node == "mul")
    assert (decision.precision, decision.decided_by) == (Precision.FP32, Reason.DATA_OVERFLOW)


def test_one_batch_of_many_is_enough_to_forbid():
    imported = import_model(parser.parse_model(LARGE))
    safety = measure_safety(imported, OPTIONS, [batch(0.01), batch(30.0), batch(0.01, seed=1)])
    assert "mul" in safety.forbidden


@pytest.mark.parametrize("budget", [1e-4, 1e-9])
def test_the_result_keeps_the_budget(budget):
    """The lists' own plan exceeds it, so more stays FP32: in the end everything."""
    imported = import_model(parser.parse_model(HARMLESS))
    lists_alone = measure_safety(imported, OPTIONS, [batch(0.01)], budget=1.0)
    assert max(lists_alone.drift_after.values()) > budget
    safety = measure_safety(imported, OPTIONS, [batch(0.01)], budget=budget)
    assert max(safety.drift_after.values()) <= budget
    assert Reason.DATA_BUDGET in {verdict.decided_by for verdict in safety.forbidden.values()}
    plan = optimize(imported.model, safety.applied_to(OPTIONS)).plan
    assert len(plan.low_nodes) < len(optimize(imported.model, OPTIONS).plan.low_nodes)


STEP = """<ir_version: 10, opset_import: ["": 20]> g
(float[64, 64] x, float[64, 64] w, float[64, 64] m, float lr, float tiny)
=> (float loss, float[64, 64] new_w, float[64] far, int64[64] chosen) {
  [m1] p = MatMul(x, w) [exp] e = Exp(p) [small] s = Mul(e, tiny) [mean] loss = ReduceMean<keepdims = 0>(p)
  [xt] xt = Transpose<perm = [1, 0]>(x) [m2] g = MatMul(xt, s) [scale] d = Mul(lr, g) [step] new_w = Sub(w, d)
  [far] far = ReduceSum<keepdims = 0>(w, axis) [best] chosen = ArgMax<axis = 1, keepdims = 0>(p)
}"""


def test_a_gradient_that_vanishes_is_no_harmless_release():
    """The weight is large beside its change: 97 % of the gradient lost is 1e-8 of the weight."""
    model = parser.parse_model(STEP)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(64, 64)).astype(np.float32),
        "w": rng.normal(size=(64, 64)).astype(np.float32),
        "m": rng.normal(size=(64, 64)).astype(np.float32),
        "lr": np.array(0.1, np.float32),
        "tiny": np.array(1e-8, np.float32),
    }
    feeds["x"] *= 0.02
    safety = measure_safety(import_model(model), OPTIONS, [feeds])
    plan = optimize(model, safety.applied_to(OPTIONS)).plan
    actual = run(emulate(optimize(model, safety.applied_to(OPTIONS)).model), feeds, machine("cpu"))
    expected = run(model, feeds, machine("cpu"))
    change = (expected["new_w"] - feeds["w"]).astype(np.float64)
    assert np.linalg.norm(actual["new_w"] - expected["new_w"]) <= 0.011 * np.linalg.norm(change), plan
    assert set(safety.drift_after) == {"loss", "new_w", "far", "chosen"}


def test_the_update_and_the_loss_are_never_released():
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[64, 64] x, float[64, 64] w, float lr)
    => (float loss, float[64, 64] new_w) {
      [m] p = MatMul(x, w) [exp] e = Exp(p) [mean] loss = ReduceMean<keepdims = 0>(e)
      [scale] d = Mul(lr, e) [step] new_w = Sub(w, d)
    }"""
    imported = import_model(parser.parse_model(text))
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(64, 64)).astype(np.float32),
        "w": (0.01 * rng.normal(size=(64, 64))).astype(np.float32),
        "lr": np.array(0.1, np.float32),
    }
    safety = measure_safety(imported, OPTIONS, [feeds])
    plan = optimize(imported.model, safety.applied_to(OPTIONS)).plan
    precision = {d.node: d.precision for d in plan.decisions}
    assert {precision[name] for name in ("exp", "mean", "scale", "step")} == {Precision.FP32}


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_a_budget_must_be_positive(budget):
    with pytest.raises(UsageError, match="budget"):
        measure_safety(import_model(parser.parse_model(HARMLESS)), OPTIONS, [batch(0.01)], budget=budget)


def test_a_batch_with_nan_is_refused():
    feeds = batch(0.01)
    feeds["x"][3, 4] = np.nan
    with pytest.raises(UsageError, match="NaN in 'x'"):
        measure_safety(import_model(parser.parse_model(HARMLESS)), OPTIONS, [feeds])


def test_no_batch_is_refused():
    with pytest.raises(UsageError, match="--inputs"):
        measure_safety(import_model(parser.parse_model(HARMLESS)), OPTIONS, [])


def test_a_result_is_not_judged():
    mixed = optimize(parser.parse_model(HARMLESS), OPTIONS).model
    with pytest.raises(UsageError, match="FP32 file it was made from"):
        measure_safety(import_model(mixed), OPTIONS, [batch(0.01)])
