"""Rules on graphs of every origin, with padding and with declared ranges."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.verdict import Status
from campo_onnx.emulation import batches
from campo_onnx.emulation.drift import Reference
from campo_onnx.ir.exporter import export_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.targets.target import target
from tests.checking.conftest import Step, checked, red

# --- graphs of every origin ---

CASES = [
    ("alexnet_like", "optimal", "fp16"),
    ("bert2_mlm_sdpa", "optimal", "fp16"),
    ("bert_optimized_training", "optimal", "fp16"),
    ("cnn_optimized_training", "tf-amp", "fp16"),
    ("mlp", "optimal", "bf16"),
    ("mlp", "tf-amp", "fp16"),
]


@pytest.mark.parametrize(("name", "strategy", "low"), CASES)
def test_what_optimize_writes_is_what_its_plan_promised(name, strategy, low, request, dims_of, tmp_path):
    path = request.config.rootpath / "tests" / "data" / f"{name}.onnx"
    planned_for = replace(target("v100" if low == "fp16" else "h200"), launch_us=1e-6, host_us=1e-6)
    options = Options(
        target=planned_for,
        lists=preset("campo"),
        strategy=strategy,
        low=Precision(low),
        dims=dims_of(path),
    )
    optimized = optimize(path, options)
    assert optimized.plan.low_nodes
    export_model(optimized.model, tmp_path / "m.onnx", folder=path.parent)
    (tmp_path / "plan.json").write_text(optimized.plan.to_json())
    policy = Policy(
        target=planned_for, dims=options.dims, baseline=tmp_path / "plan.json", max_drift=1, min_speedup=0
    )
    verdicts = check(tmp_path / "m.onnx", path, policy)
    findings = {v.rule: v.finding for v in verdicts.verdicts}
    assert not red(findings)
    assert findings["casts"].value == len(optimized.plan.casts)
    assert findings["step"].value == pytest.approx(optimized.plan.predicted_us)
    assert findings["gain"].value == pytest.approx(optimized.plan.speedup)
    if "training" in name:
        assert findings["loadable"].status is findings["drift"].status is Status.NOT_CHECKED
        assert "does not load the FP32 graph either" in findings["loadable"].reason
    elif low == "bf16":
        assert findings["loadable"].status is Status.NOT_CHECKED
        assert "BF16 kernels" in findings["loadable"].reason
    else:
        assert findings["loadable"].status is Status.PASSED


def test_padding_counts_as_the_plan_says(model_text, tmp_path):
    model = model_text(
        "g (float[1001,1001] x, float[1001,1001] w) => (float[1001,1001] y) {"
        "h = MatMul(x, w) [second] y = MatMul(h, c) }"
    )
    weight = np.random.default_rng(0).normal(0, 0.03, (1001, 1001)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "c"))
    onnx.save(model, tmp_path / "fp32.onnx")
    optimized = optimize(tmp_path / "fp32.onnx", Options(target=target("v100"), lists=preset("campo")))
    assert {"Pad", "Slice"} <= {node.op_type for node in optimized.model.graph.node}
    export_model(optimized.model, tmp_path / "m.onnx")
    (tmp_path / "plan.json").write_text(optimized.plan.to_json())
    verdicts = check(tmp_path / "m.onnx", tmp_path / "fp32.onnx", Policy(baseline=tmp_path / "plan.json"))
    findings = {v.rule: v.finding for v in verdicts.verdicts}
    assert not red(findings)
    assert findings["step"].value == pytest.approx(optimized.plan.predicted_us)


# --- declared ranges ---

MASKED = """g (float[64,64] x, float[64,64] w, float[64,64] mask) => (float[64,64] y) {
    [scores] s = MatMul(x, w) [masked] m = Add(s, mask) [softmax] p = Softmax(m) [mix] y = MatMul(p, w)
}"""


@pytest.fixture
def masked(model_text, tmp_path):
    """A step whose mask was declared, so that its softmax is low."""
    onnx.save(model_text(MASKED), tmp_path / "step.onnx")
    options = Options(
        target=replace(target("v100"), launch_us=1e-6, host_us=1e-6),
        lists=preset("campo"),
        strategy="fine-grained",
        ranges={"mask": DeclaredRange(lowest=-10000.0, highest=0.0)},
    )
    optimized = optimize(tmp_path / "step.onnx", options)
    assert "softmax" in optimized.plan.low_nodes
    export_model(optimized.model, tmp_path / "mixed.onnx", folder=tmp_path)
    (tmp_path / "plan.json").write_text(optimized.plan.to_json())
    return Step(folder=tmp_path, plan=optimized.plan)


def test_generated_inputs_lie_within_the_ranges_that_the_baseline_relies_on(masked, monkeypatch):
    seen = {}

    def watched(view, **options):
        seen.update(synthesize(view, **options))
        return dict(seen)

    monkeypatch.setattr(batches, "synthesize", watched)
    findings = checked(masked, min_speedup=0, baseline=masked.baseline)
    assert not red(findings)
    assert set(np.unique(seen["mask"])) == {-10000.0, 0.0}
    assert (seen["mask"] == 0).any(axis=-1).all()


CUBE = """g (float[64,256] x, float[256,256] w) => (float[64,256] y) {
    [square] s = Mul(x, x) [cube] c = Mul(s, x) [mix] y = MatMul(c, w)
}"""


def test_extreme_rows_break_what_ordinary_values_do_not(model_text, tmp_path):
    onnx.save(model_text(CUBE), tmp_path / "step.onnx")
    cheap = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
    optimized = optimize(tmp_path / "step.onnx", Options(target=cheap, lists=preset("campo"), min_gain=0.0))
    assert "cube" in optimized.plan.low_nodes
    export_model(optimized.model, tmp_path / "mixed.onnx", folder=tmp_path)
    step = Step(folder=tmp_path, plan=optimized.plan)
    generator = np.random.default_rng(0)
    ordinary = {"x": generator.normal(size=(64, 256)), "w": generator.normal(0, 0.05, (256, 256))}
    np.savez(tmp_path / "batch.npz", **{name: value.astype(np.float32) for name, value in ordinary.items()})
    assert not red(checked(step, min_speedup=0, inputs=(tmp_path / "batch.npz",)))
    findings = checked(step, min_speedup=0)
    assert red(findings) == ["drift"]
    assert "empty, repeated and extreme rows" in findings["drift"].reason


def test_a_declared_value_that_fp16_does_not_hold_must_be_fp32(masked):
    wider = {"mask": DeclaredRange(lowest=-1e9, highest=0.0)}
    findings = checked(masked, min_speedup=0, max_drift=10, ranges=wider)
    assert red(findings) == ["fp32"]
    assert "'masked'" in findings["fp32"].reason


# --- drift by choices ---

CHOOSES = """g (float[64,64] x, float[64,64] z) => (float[64,64] y) {{
    n = Neg(x) {} c = Greater({}) y = Where(c, x, n) }}"""


@pytest.fixture
def choosing(model_text, tmp_path):
    """A comparison in FP16 of values, a share of which lies as close to its bound as FP16 rounds."""

    def make(share: float) -> SimpleNamespace:
        low = "a = Cast<to = 10>(x) b = Cast<to = 10>(z)"
        onnx.save(model_text(CHOOSES.format("", "x, z")), tmp_path / "step.onnx")
        onnx.save(model_text(CHOOSES.format(low, "a, b")), tmp_path / "mixed.onnx")
        generator = np.random.default_rng(0)
        x = generator.normal(size=(64, 64)).astype(np.float32)
        close = generator.random((64, 64)) < share
        np.savez(tmp_path / "batch.npz", x=x, z=np.where(close, x * np.float32(1.0001), x * np.float32(0.5)))
        return SimpleNamespace(folder=tmp_path, fp32=tmp_path / "step.onnx", mixed=tmp_path / "mixed.onnx")

    return make


@pytest.mark.parametrize(
    ("share", "limit", "passes"), [(0.02, None, True), (0.02, 0.01, False), (0.9, None, False)]
)
def test_drift_by_choice_passes_up_to_half_and_never_beyond_a_given_limit(choosing, share, limit, passes):
    step = choosing(share)
    policy = {} if limit is None else {"max_drift": limit}
    finding = checked(step, min_speedup=0, inputs=(step.folder / "batch.npz",), **policy)["drift"]
    assert finding.parts["y"] > 0.02
    assert (finding.status is Status.PASSED) is passes, finding.reason
    assert ("chooses otherwise" in finding.reason) is passes


def test_a_step_that_overflows_on_rounded_inputs_excuses_nothing(choosing, monkeypatch):
    step = choosing(0.02)
    monkeypatch.setattr(Reference, "error_of_rounding", lambda *_: {"y": math.inf})
    assert checked(step, min_speedup=0, inputs=(step.folder / "batch.npz",))["drift"].status is Status.FAILED


# --- drift of what is zero ---

CENTERED = """g (float[256,64] dy) => (float[64] bias) {{
    axis = Constant<value = int64[1] {{0}}>() m = ReduceMean<keepdims=1>(dy, axis) {}
    bias = ReduceSum<keepdims=0>(d, axis) }}"""


def test_the_gradient_of_a_bias_before_a_normalization_is_zero_but_for_rounding(model_text, tmp_path):
    """Its terms sum up to nothing: what is left is FP32's rounding, or 8,192 times as much."""
    step = SimpleNamespace(fp32=tmp_path / "step.onnx", mixed=tmp_path / "mixed.onnx")
    onnx.save(model_text(CENTERED.format("d = Sub(dy, m)")), step.fp32)
    low = "e = Sub(dy, m) l = Cast<to = 10>(e) d = Cast<to = 1>(l)"
    onnx.save(model_text(CENTERED.format(low)), step.mixed)
    drift = checked(step, min_speedup=0)["drift"]
    assert drift.status is Status.PASSED, drift.reason
    assert "1 output is zero but for rounding in FP32, too" in drift.reason
