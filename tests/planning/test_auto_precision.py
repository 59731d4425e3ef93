"""The choice of a low precision: by what survives, then by time, and always with a reason."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from campo_onnx_cli.main import app
from onnx import numpy_helper
from typer.testing import CliRunner

from campo_onnx import Options, Target, oplists, optimize_model, target
from campo_onnx.costs.evidence import CostSource
from campo_onnx.ops.precision import Precision, temporary_precision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning import auto_precision
from campo_onnx.planning.auto_precision import choose_precision


def chain(*, scaled: bool, constant: float = 1.0) -> onnx.ModelProto:
    """A loss of two large products and its gradient by the first weight; with a loss scale or without."""
    scale, seed = ("float loss_scale, ", "loss_scale") if scaled else ("", "one")
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    g ({scale}float[2048,2048] x, float[2048,2048] w) => (float loss, float[2048,2048] grad)
    <float one = {{1.0}}, float many = {{4194304.0}}> {{
        h = MatMul (x, w)
        k = Mul (h, constant)
        r = Relu (k)
        a = MatMul (r, x)
        loss = ReduceMean <keepdims = 0> (a)
        s = Div ({seed}, many)
        sizes = Shape (a)
        da = Expand (s, sizes)
        xt = Transpose <perm = [1, 0]> (x)
        dr = MatMul (da, xt)
        {"up" if scaled else "grad"} = MatMul (xt, dr)
        {"grad = Div (up, loss_scale)" if scaled else ""}
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array(constant, np.float32), "constant"))
    return model


def options(figures: str | Target = "a100") -> Options:
    device = target(figures) if isinstance(figures, str) else figures
    return Options(target=device, lists=oplists("campo"))


def test_without_a_loss_scale_bf16_is_taken() -> None:
    choice = choose_precision(chain(scaled=False), options())
    assert choice.low is Precision.BF16
    assert "does not scale its loss" in choice.why
    assert choice.plans[Precision.FP16].low_nodes


def test_with_a_loss_scale_the_finer_one_is_taken_where_both_are_as_fast() -> None:
    choice = choose_precision(chain(scaled=True), options())
    assert choice.low is Precision.FP16
    assert "rounds finer" in choice.why
    assert choice.plans[Precision.FP16].low_nodes
    assert choice.plans[Precision.BF16].low_nodes


def test_a_format_that_is_calibrated_is_compared_with_one_that_is_not_by_public_figures() -> None:
    """The H200's calibration is of FP16. Beside its times, figures would make BF16 look faster than it is."""
    best = replace(options("h200"), costs=CostSource.AUTO)
    choice = choose_precision(chain(scaled=True), best)
    assert {low: plan.source for low, plan in choice.plans.items()} == {
        Precision.FP16: "model",
        Precision.BF16: "datasheet",
    }
    by_figures = choose_precision(chain(scaled=True), replace(best, costs=CostSource.DATASHEET))
    assert (choice.low, choice.why) == (by_figures.low, by_figures.why)
    assert choice.low is Precision.FP16


def test_the_faster_one_is_taken_where_times_differ() -> None:
    # 1e30 has no place in FP16: what meets it stays FP32 there.
    choice = choose_precision(chain(scaled=True, constant=1e30), options())
    assert choice.low is Precision.BF16
    assert "faster" in choice.why
    assert choice.plans[Precision.BF16].predicted_us < choice.plans[Precision.FP16].predicted_us


@pytest.mark.parametrize(("name", "words"), [("v100", "only low precision"), ("k80", "computes in none")])
def test_a_device_may_leave_no_choice(name: str, words: str) -> None:
    figures = target("v100")
    if name == "k80":
        without = replace(figures.hardware, name=name, fp16_tensor_flops_per_s=None, fp16_flops_per_s=None)
        figures = replace(figures, hardware=without)
    choice = choose_precision(chain(scaled=False), options(figures))
    assert choice.low is Precision.FP16
    assert words in choice.why


def test_a_cpu_without_units_has_the_precision_of_its_runtime() -> None:
    bare = replace(target("zen4", "openvino").hardware, bf16_tensor_flops_per_s=None, bf16_flops_per_s=None)
    without = replace(options(), target=Target.of(bare, target("zen4", "openvino").runtime))
    choice = choose_precision(chain(scaled=False), without)
    assert choice.low is Precision.BF16  # OpenVINO's plugin for CPUs refuses plans in FP16
    assert not optimize_model(chain(scaled=False), replace(without, low=choice.low)).plan.low_nodes


def test_where_nothing_pays_that_is_said() -> None:
    tiny = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[4,4] x) => (float[4,4] y) { y = MatMul (x, x) }"""
    )
    assert "FP32 stays" in choose_precision(tiny, options()).why


def test_a_result_keeps_its_precision() -> None:
    mixed = optimize_model(chain(scaled=True), replace(options(), low=Precision.BF16)).model
    assert choose_precision(mixed, options()).low is Precision.BF16


@pytest.mark.slow
def test_the_command_says_what_was_chosen(tmp_path: Path) -> None:
    source, out = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(chain(scaled=False), source)
    words = ["optimize", str(source), "-o", str(out), "--device", "a100", "--precision", "auto"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "BF16 was chosen. The graph does not scale its loss" in " ".join(answer.output.split())
    types = {info.type.tensor_type.elem_type for info in onnx.load(out).graph.value_info}
    casts = {a.i for n in onnx.load(out).graph.node if n.op_type == "Cast" for a in n.attribute}
    assert onnx.TensorProto.BFLOAT16 in casts | types


# --- devices with other formats than FP16 and BF16 ---


@pytest.fixture
def tiny() -> Iterator[Precision]:
    """A third format: as wide as BF16, and coarser."""
    facts = Precision.BF16
    with temporary_precision(
        "bf12",
        onnx_dtype=17,
        onnx_name="float8e4m3fn",
        itemsize_bytes=1,
        fraction_bits=3,
        largest=facts.largest,
        smallest_normal=facts.smallest_normal,
    ) as precision:
        yield precision


def computing_in(monkeypatch: pytest.MonkeyPatch, *lows: Precision) -> Options:
    monkeypatch.setattr(Target, "computes_in", lambda _, low: low in (Precision.FP32, *lows))
    return options()


def faster(monkeypatch: pytest.MonkeyPatch, times_us: dict[Precision, float]) -> None:
    """Let plans take other times."""

    def decided(problem: Problem, *rest: object) -> Plan:
        plan = decide(problem, *rest)
        return replace(plan, predicted_us=times_us.get(plan.low, plan.predicted_us))

    decide = auto_precision.decide
    monkeypatch.setattr(auto_precision, "decide", decided)


def test_every_format_of_the_device_is_planned_and_may_be_taken(
    monkeypatch: pytest.MonkeyPatch, tiny: Precision
) -> None:
    three = computing_in(monkeypatch, Precision.FP16, Precision.BF16, tiny)
    faster(monkeypatch, {tiny: 1.0})
    choice = choose_precision(chain(scaled=True), three)
    assert choice.plans.keys() == {Precision.FP16, Precision.BF16, tiny}
    assert choice.low is tiny
    assert choice.why.startswith("Its step is fastest: predicted ")
    assert choice.why.endswith("and 0.001 ms in BF12.")


def test_of_three_that_are_about_as_fast_the_finest_is_taken(
    monkeypatch: pytest.MonkeyPatch, tiny: Precision
) -> None:
    three = computing_in(monkeypatch, tiny, Precision.FP16, Precision.BF16)
    faster(monkeypatch, {Precision.FP16: 1.0, Precision.BF16: 1.0, tiny: 1.0})
    choice = choose_precision(chain(scaled=True), three)
    assert (choice.low, "FP16 rounds finest" in choice.why) == (Precision.FP16, True)


def test_among_those_that_keep_gradients_time_decides(
    monkeypatch: pytest.MonkeyPatch, tiny: Precision
) -> None:
    three = computing_in(monkeypatch, Precision.FP16, Precision.BF16, tiny)
    faster(monkeypatch, {Precision.FP16: 1.0, tiny: 2.0})
    choice = choose_precision(chain(scaled=False), three)
    assert choice.low is tiny
    assert choice.why.startswith("Small gradients would vanish in FP16. Its step is fastest")


@pytest.mark.parametrize("has_fp16", [True, False])
def test_a_device_may_have_a_format_that_is_neither_fp16_nor_bf16(
    monkeypatch: pytest.MonkeyPatch, tiny: Precision, has_fp16: bool
) -> None:
    other = Precision.FP16 if has_fp16 else Precision.BF16
    two = computing_in(monkeypatch, other, tiny)
    choice = choose_precision(chain(scaled=False), two)
    assert choice.plans.keys() == {other, tiny}
    assert choice.low is (tiny if has_fp16 else Precision.BF16)
    only = choose_precision(chain(scaled=False), computing_in(monkeypatch, tiny))
    assert (only.low, "only low precision" in only.why) == (tiny, True)
