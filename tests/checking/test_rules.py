"""Each rule goes red for what it is there for, alone where nothing else is wrong."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from campo_onnx.checking.batch import check_all
from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Pair, Policy
from campo_onnx.checking.verdict import Status
from campo_onnx.errors import PlanMismatchError, UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.stamp import read_stamp, write_stamp
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.runtime.registry import default_precision, runtimes_for
from campo_onnx.targets.target import target
from tests.checking.conftest import checked, red


def test_a_sound_graph_keeps_every_rule(shared_step):
    findings = checked(shared_step, baseline=shared_step.baseline, max_casts=6)
    assert {f.status for f in findings.values()} == {Status.PASSED}
    assert findings["casts"].value == len(shared_step.plan.casts) == 6
    assert findings["step"].value == pytest.approx(shared_step.plan.predicted_us)
    assert findings["gain"].value == pytest.approx(shared_step.plan.speedup)
    assert 0 < findings["drift"].value <= findings["drift"].limit == 0.01


def test_what_the_policy_does_not_ask(shared_step):
    findings = checked(shared_step)
    without_limit = [name for name, finding in findings.items() if finding.status is Status.NOT_ASKED]
    assert without_limit == ["plan", "casts", "step"]
    assert not red(findings)


# --- valid ---


def test_valid_is_red_for_a_torn_file(step):
    step.mixed.write_bytes(step.mixed.read_bytes()[:-200])
    findings = checked(step)
    assert red(findings) == ["valid"]
    assert all(f.status is Status.NOT_CHECKED for name, f in findings.items() if name != "valid")


def test_valid_is_red_for_what_the_checker_refuses(step, edit):
    def widen(model):
        cast = next(node for node in model.graph.node if node.op_type == "Cast")
        cast.attribute[0].i = TensorProto.INT32

    edit(widen)
    findings = checked(step)
    assert red(findings) == ["valid"]
    assert "not a valid ONNX model" in findings["valid"].reason


def test_valid_is_red_for_missing_external_data(step, edit):
    def move_out(model):
        onnx.external_data_helper.convert_model_to_external_data(
            model, location="gone.bin", size_threshold=0, convert_attribute=False
        )
        onnx.external_data_helper.write_external_data_tensors(model, str(step.folder))

    edit(move_out)
    assert not red(checked(step))
    (step.folder / "gone.bin").unlink()
    findings = checked(step)
    assert red(findings) == ["valid"]
    assert "gone.bin" in findings["valid"].reason


# --- loadable ---


def test_loadable_is_red_when_onnx_runtime_refuses_the_file(step, edit):
    def from_the_future(model):
        next(o for o in model.opset_import if o.domain == "com.microsoft").version = 99

    edit(from_the_future)
    findings = checked(step)
    assert red(findings) == ["loadable", "drift"]
    assert "com.microsoft" in findings["loadable"].reason
    assert "does not run" in findings["drift"].reason


# --- interface ---


def reorder(model):
    first = model.graph.output.pop(0)
    model.graph.output.append(first)


def halve_the_batch(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 64
    del model.graph.value_info[:]


def drop(model):
    del model.graph.output[1]


def lower_output(model):
    cast = next(n for n in model.graph.node if n.op_type == "Cast" and n.output[0] == "grad_v")
    source = cast.input[0]
    model.graph.node.remove(cast)
    for node in model.graph.node:
        node.output[:] = ["grad_v" if name == source else name for name in node.output]
    infos = [value for value in model.graph.value_info if value.name != source]
    del model.graph.value_info[:]
    model.graph.value_info.extend(infos)
    model.graph.output[2].type.tensor_type.elem_type = TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reorder, "outputs are in a different order"),
        (halve_the_batch, "input 'x' has a different type or shape"),
        (drop, "output 'grad_w' is missing"),
        (lower_output, "output 'grad_v' has a different type or shape"),
    ],
    ids=["order", "shape", "missing", "type"],
)
def test_interface_is_red_when_the_caller_would_notice(step, edit, change, reason):
    edit(change)
    findings = checked(step, min_speedup=0)
    assert red(findings) == ["interface"]
    assert reason in findings["interface"].reason
    assert findings["drift"].status is Status.NOT_CHECKED


# --- fp32 ---


def test_fp32_is_red_for_a_deny_operator(step, fp32_model, lower):
    export_model(lower(fp32_model, ["first", "square", "mean"]).model, step.mixed)
    findings = checked(step, min_speedup=0, max_drift=10)
    assert red(findings) == ["fp32"]
    assert "'mean'" in findings["fp32"].reason
    assert findings["fp32"].value == 2  # the loss is the square and its mean


def test_fp32_is_red_for_the_weight_update(tmp_path, model_text, lower):
    model = model_text("""g (float[64,64] x, float[64,64] w) => (float[64,64] new_w) {
        [product] g = MatMul(x, x) [update] new_w = Sub(w, g) }""")
    onnx.save(model, tmp_path / "fp32.onnx")
    for nodes, expected in ((["product"], []), (["product", "update"], ["fp32"])):
        export_model(lower(model, nodes).model, tmp_path / "m.onnx")
        verdicts = check(tmp_path / "m.onnx", tmp_path / "fp32.onnx", Policy(min_speedup=0))
        assert [v.rule for v in verdicts.failed] == expected


def test_fp32_is_red_for_what_the_policy_keeps(shared_step):
    findings = checked(shared_step, keep_fp32=("weight_.*",))
    assert red(findings) == ["fp32"]
    assert "'weight_v'" in findings["fp32"].reason
    assert not red(checked(shared_step, keep_fp32=("mean",)))


# --- drift ---


def test_drift_is_red_beyond_the_limit(shared_step):
    findings = checked(shared_step, max_drift=1e-6)
    assert red(findings) == ["drift"]
    assert findings["drift"].value > findings["drift"].limit == 1e-6


def test_the_limit_of_drift_is_that_of_the_format(request, tmp_path):
    """BF16 rounds eight times as coarsely as FP16: what is too much for one is as exact as the other gets."""
    path = request.config.rootpath / "tests" / "data" / "mlp.onnx"
    options = Options(target=target("h200"), lists=preset("tf115"), strategy="tf-amp", low=Precision.BF16)
    export_model(optimize(path, options).model, tmp_path / "m.onnx", folder=path.parent)
    findings = {}
    for limit in (None, 0.01):
        verdicts = check(tmp_path / "m.onnx", path, Policy(min_speedup=0, max_drift=limit)).verdicts
        findings[limit] = next(v.finding for v in verdicts if v.rule == "drift")
    assert (findings[None].status, findings[None].limit) == (Status.PASSED, 0.08)
    assert findings[0.01].status is Status.FAILED


def batch(folder, scale):
    generator = np.random.default_rng(0)
    shapes = {"x": (128, 512), "w": (512, 512), "v": (512, 512)}
    arrays = {name: generator.normal(0, scale, s).astype(np.float32) for name, s in shapes.items()}
    np.savez(folder / f"{scale:g}.npz", **arrays)
    return folder / f"{scale:g}.npz"


def test_drift_is_red_on_a_batch_that_overflows(step):
    good, bad = batch(step.folder, 0.03), batch(step.folder, 40.0)
    findings = checked(step, inputs=(good,))
    assert not red(findings)
    assert "0.03.npz" in findings["drift"].reason
    findings = checked(step, inputs=(good, bad))
    assert red(findings) == ["drift"]
    assert findings["drift"].value == float("inf")


def test_drift_is_not_checked_where_the_fp32_step_has_no_numbers(step):
    findings = checked(step, inputs=(batch(step.folder, 1e30),))
    assert findings["drift"].status is Status.NOT_CHECKED
    assert "the FP32 step itself is not finite in 'loss'" in findings["drift"].reason
    assert red(checked(step, inputs=(step.folder / "1e+30.npz",), strict=True)) == ["drift"]


# --- the committed plan ---


def test_plan_is_red_when_the_graph_changed_since(step):
    plan = Plan.from_json(step.baseline.read_text())
    step.baseline.write_text(replace(plan, digest="0" * 64).to_json())
    findings = checked(step, baseline=step.baseline)
    assert red(findings) == ["plan"]
    assert [findings[name].status for name in ("casts", "step")] == [Status.NOT_CHECKED] * 2
    assert red(checked(step, baseline=step.baseline, max_casts=5)) == ["plan", "casts"]


def test_a_plan_for_another_runtime_is_refused(step):
    plan = Plan.from_json(step.baseline.read_text())
    assert plan.runtime == "onnxruntime"
    step.baseline.write_text(replace(plan, runtime="openvino").to_json())
    with pytest.raises(PlanMismatchError, match="is for openvino, the check for onnxruntime"):
        checked(step, baseline=step.baseline, target=target("v100"))


@pytest.mark.parametrize("runtime", [runtime.name for runtime in runtimes_for("cpu")])
def test_a_graph_that_stayed_in_fp32_is_checked_for_the_runtime_it_was_planned_for(step, runtime):
    options = Options(
        target=target("cpu", runtime), lists=preset("campo"), low=default_precision(runtime), strategy="fp32"
    )
    export_model(optimize(step.fp32, options).model, step.mixed)
    assert not red(checked(step))
    assert not red(checked(step, target=options.target))


def test_casts_is_red_beyond_the_limit(shared_step):
    findings = checked(shared_step, max_casts=5)
    assert red(findings) == ["casts"]
    assert (findings["casts"].value, findings["casts"].limit) == (6, 5)


def cast_twice(model):
    """Give one reader of a shared Cast a Cast of its own, as other tools do."""
    shared = next(n for n in model.graph.node if n.op_type == "Cast" and n.input[0] == "x")
    own = helper.make_node("Cast", ["x"], ["x_again"], name="again", to=TensorProto.FLOAT16)
    reader = next(n for n in model.graph.node if shared.output[0] in n.input)
    reader.input[:] = ["x_again" if name == shared.output[0] else name for name in reader.input]
    model.graph.node.insert(0, own)


def test_casts_and_step_are_red_against_a_better_baseline(step, edit):
    edit(cast_twice)
    findings = checked(step, baseline=step.baseline)
    assert red(findings) == ["casts", "step"]
    assert findings["casts"].value == findings["casts"].limit + 1
    assert not red(checked(step, target=target("v100")))  # an edited file no longer says what it is for


def test_step_is_red_when_the_graph_got_slower(step):
    options = Options(target=target("v100"), lists=preset("campo"), strategy="fp32")
    export_model(optimize(step.fp32, options).model, step.mixed)
    findings = checked(step, baseline=step.baseline)
    assert red(findings) == ["step"]
    assert findings["step"].value == pytest.approx(step.plan.fp32_us)
    assert findings["step"].limit == pytest.approx(step.plan.predicted_us)


# --- gain ---


def test_gain_is_red_below_what_is_required(shared_step):
    findings = checked(shared_step, min_speedup=2.5)
    assert red(findings) == ["gain"]
    assert findings["gain"].limit == 2.5


def test_gain_is_red_when_casts_do_not_pay(step):
    slow = replace(target("v100"), launch_us=50.0)
    assert red(checked(step, target=slow, max_drift=1)) == ["gain"]


# --- which device, strictness, several graphs ---


def test_the_device_is_the_policy_s_else_the_plan_s_else_the_file_s(step, edit):
    def device_of(**policy):
        return check(step.mixed, step.fp32, Policy(min_speedup=0, **policy)).device

    assert device_of() == "v100"
    assert device_of(target=target("a100")) == "a100"
    plan = Plan.from_json(step.baseline.read_text())
    step.baseline.write_text(replace(plan, device="t4").to_json())
    assert device_of(baseline=step.baseline) == "t4"


def test_an_error_in_one_graph_leaves_the_others_checked(shared_step, tmp_path):
    def pair(name, mixed):
        return Pair(name=name, mixed=mixed, against=shared_step.fp32, policy=Policy())

    steps = []
    verdicts = check_all(
        [pair("gone", tmp_path / "no.onnx"), pair("good", shared_step.mixed)],
        lambda done, total: steps.append((done, total)),
    )
    assert isinstance(verdicts[0].error, UsageError)
    assert [v.passed for v in verdicts] == [False, True]
    assert steps == [(0, 2), (1, 2), (2, 2)]


def test_gain_names_the_plans_own_prediction_where_only_that_would_pass(step, edit):
    def measured(model):
        stamp = read_stamp(model)
        write_stamp(model, replace(stamp, fp32_us=300.0, predicted_us=100.0))

    edit(measured)
    assert "predicted 3x, from measured times" in checked(step, min_speedup=2.5)["gain"].reason
    assert "measured" not in checked(step, min_speedup=3.5)["gain"].reason
    assert "measured" not in checked(step, min_speedup=2.5, target=target("h100"))["gain"].reason
