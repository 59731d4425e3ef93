"""Graphs with convolutions are planned in BF16 in the form in which these can run in it."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from campo_onnx_cli.main import app
from typer.testing import CliRunner

from campo_onnx.checking.context import context_of
from campo_onnx.checking.policy import Policy
from campo_onnx.emulation.numerics import emulate
from campo_onnx.emulation.probe import probe
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import CONVOLUTIONS_LOW, lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.auto_precision import choose_precision
from campo_onnx.planning.comparison import compare
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import apply, decide, form_for, fp32_us, optimize, problem_of
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
BF16 = Options(target=target("h200"), lists=preset("campo"), low=Precision.BF16)


def step(channels=512, size=32, tail="dx = ConvTranspose<pads=[1,1,1,1]>(dy, w)", halves=1):
    """A large convolution and its gradient, which pay in low precision."""
    image, weight = f"float[64,{channels},{size},{size}]", f"float[{channels},{channels},3,3]"
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g ({image} x, {weight} w, {image} d)'
        f" => (float[64,{channels},{size // halves},{size // halves}] dx)"
        f" {{ y = Conv<pads=[1,1,1,1]>(x, w) dy = Mul(y, d) {tail} }}"
    )


def training():
    """A convolution, its loss, and the gradients of both that it reads, without a loss scale."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    g (float[64,512,32,32] x, float[512,512,3,3] w) => (float loss, float[64,512,32,32] grad)
    <float one = {1.0}, float many = {33554432.0}>
    { a = Conv<pads=[1,1,1,1]>(x, w) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, w)
      loss = ReduceMean<keepdims=0>(y) s = Div(one, many) sizes = Shape(y) dy = Expand(s, sizes)
      dr = ConvTranspose<pads=[1,1,1,1]>(dy, w) da = Mul(dr, r)
      grad = ConvTranspose<pads=[1,1,1,1]>(da, w) }""")


def low_ops(optimized):
    return sorted(d.op_type for d in optimized.plan.decisions if d.node in optimized.plan.low_nodes)


def test_convolutions_and_their_gradients_run_in_bf16():
    optimized = optimize(step(), BF16)
    assert low_ops(optimized).count("Conv") == 2
    assert optimized.model.opset_import[0].version == 22
    assert optimized.imported.passes == ("data_gradients", "raise_opset")
    onnx.checker.check_model(optimized.model, full_check=True)
    assert [v.name for v in optimized.model.graph.input] == ["x", "w", "d"]


@pytest.mark.parametrize(
    ("precision", "opset"),
    [("fp16", 20), ("bf16", 22), ("auto", 22)],
)
def test_the_command_plans_the_same_form(tmp_path, precision, opset):
    source, mixed = tmp_path / "step.onnx", tmp_path / "mixed.onnx"
    onnx.save(step() if precision != "auto" else training(), source)
    command = ["optimize", str(source), "-o", str(mixed), "--device", "h200", "--probe", "off"]
    result = CliRunner().invoke(app, [*command, "--precision", precision])
    assert result.exit_code == 0, result.output
    assert onnx.load(mixed).opset_import[0].version == opset
    assert ("opset 22" in result.output) == (opset == 22)


def test_each_precision_has_its_form():
    choice = choose_precision(step(), BF16)
    assert {low: form.view.opset[""] for low, form in choice.forms.items()} == {
        Precision.FP16: 20,
        Precision.BF16: 22,
    }
    assert all(choice.plans[low].digest == form.digest for low, form in choice.forms.items())


def test_fp16_plans_are_of_the_given_graph():
    optimized = optimize(step(), replace(BF16, low=Precision.FP16))
    assert optimized.imported.given is None
    assert optimized.model.opset_import[0].version == 20


def test_a_form_with_a_slower_pool_is_taken_where_its_step_is_faster():
    pool = "p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(dy)"
    model = step(tail=f"{pool} dx = ConvTranspose<pads=[1,1,1,1]>(p, w)", halves=2)
    as_given = optimize(model, replace(BF16, lowers=False))
    optimized = optimize(model, BF16)
    assert "max_pool" in optimized.imported.passes
    assert optimized.plan.predicted_us < as_given.plan.predicted_us
    assert fp32_us(import_model(model).view, BF16) == pytest.approx(as_given.plan.fp32_us)


@pytest.mark.parametrize(
    "options",
    [
        replace(BF16, lowers=False),
        replace(BF16, forbidden={"n": Verdict(decided_by=Reason.USER)}),
        replace(BF16, target=target("cpu")),
    ],
    ids=["asked not to", "nodes that data forbids", "a CPU has no such kernels"],
)
def test_the_form_stays(options):
    imported = import_model(step())
    assert form_for(imported, options) is imported


def test_the_form_stays_where_an_operator_would_not_run():
    imported = import_model(step(tail="e = Elu(dy) dx = ConvTranspose<pads=[1,1,1,1]>(e, w)"))
    assert form_for(imported, BF16) is imported


def test_the_form_stays_where_low_precision_does_not_pay():
    imported = import_model(step(channels=4, size=4))
    assert form_for(imported, BF16) is imported
    optimized = optimize(step(channels=4, size=4), BF16)
    assert optimized.model.opset_import[0].version == 20


def test_the_result_is_known_as_planned():
    again = optimize(optimize(step(), BF16).model, BF16)
    assert again.was_optimized_before


def test_every_strategy_is_compared_in_one_form():
    comparison = compare(step(), BF16)
    assert comparison.imported.given is not None
    least = min(row.plan.predicted_us for row in comparison.rows)
    assert least == next(row.plan.predicted_us for row in comparison.rows if row.plan.strategy == "optimal")


@pytest.mark.slow
def test_convolutional_networks_gain():
    with_form = optimize(DATA / "resblocks.onnx", BF16)
    without = optimize(DATA / "resblocks.onnx", replace(BF16, lowers=False))
    assert with_form.plan.predicted_us <= without.plan.predicted_us


def test_a_step_that_draws_numbers_is_emulated_on_a_cpu(run):
    draws = "u = RandomUniform<shape=[64,8,4,4]>() e = Mul(dy, u) dx = ConvTranspose<pads=[1,1,1,1]>(e, w)"
    imported = import_model(step(channels=8, size=4, tail=draws))
    raised = lowered(imported, Place(target=target("v100")), CONVOLUTIONS_LOW)
    assert raised.view.opset[""] == 22
    low = Options(
        target=target("h200"), lists=preset("campo"), low=Precision.BF16, strategy="torch-amp", min_gain=0
    )
    mixed = rewrite(raised, decide(problem_of(raised, low), raised, low))
    emulated = emulate(mixed)
    assert emulated.opset_import[0].version == 21
    run(emulated)


def test_a_raised_graph_is_checked_against_the_given_one():
    optimized = optimize(step(), BF16)
    policy = Policy(target=target("h200"), lists=preset("campo"))
    context = context_of(import_model(step()), import_model(optimized.model), policy, title="mixed")
    assert context.changes.low_nodes == optimized.plan.low_nodes
    assert not context.interface_changes


def test_a_raised_plan_is_tried_on_data():
    draws = "u = RandomUniform<shape=[64,64,8,8]>() e = Mul(dy, u) dx = ConvTranspose<pads=[1,1,1,1]>(e, w)"
    imported = import_model(step(channels=64, size=8, tail=draws))
    raised = lowered(imported, Place(target=target("v100")), CONVOLUTIONS_LOW)
    options = replace(BF16, strategy="torch-amp", min_gain=0)
    problem = problem_of(raised, options)
    optimized = apply(decide(problem, raised, options), problem, raised)
    outcome = probe(optimized, options)
    assert not outcome.why_not
    assert outcome.coverage == 1
