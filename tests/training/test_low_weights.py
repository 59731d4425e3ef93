"""FP16 weights that are cast once per update, from the flat buffer."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from campo_onnx import Options, oplists, target
from campo_onnx.errors import UsageError
from campo_onnx.export.optimizers import Momentum
from campo_onnx.ir import flat_weights
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.traffic import planned_traffic
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.training import low_weights
from campo_onnx.training.flat_state import flat_layout
from campo_onnx.training.low_weights import with_low_weights
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

# Rounded to FP16 and widened again, which the CPU computes as it stands.
STEP = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[3,40] x, float[40,40] "param.w", float[40,2] "param.v", float[2] "param.b")
        => (float loss, float[40,40] "grad.w", float[40,2] "grad.v", float[2] "grad.b")
        <float[3,2] ones = {1, 1, 1, 1, 1, 1}, int64[1] first = {0}> {
    [cw] wl = Cast<to = 10>("param.w")
    [cv] vl = Cast<to = 10>("param.v")
    [w] wf = Cast<to = 1>(wl)
    [v] vf = Cast<to = 1>(vl)
    [a] a = MatMul(x, wf)
    [p] p = MatMul(a, vf)
    [y] y = Add(p, "param.b")
    [l] loss = ReduceSum<keepdims = 0>(y)
    [at] at = Transpose<perm = [1, 0]>(a)
    [gv] "grad.v" = MatMul(at, ones)
    [vt] vt = Transpose<perm = [1, 0]>(vf)
    [ga] ga = MatMul(ones, vt)
    [xt] xt = Transpose<perm = [1, 0]>(x)
    [gw] "grad.w" = MatMul(xt, ga)
    [gb] "grad.b" = ReduceSum<keepdims = 0>(ones, first)
    }""")
SHAPES = {"w": (40, 40), "v": (40, 2), "b": (2,)}


def trained(accumulate: int = 1) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    state = {f"param.{n}": numbers.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    update = WeightUpdate(optimizer=Momentum(momentum=0.9), accumulate=accumulate)
    settings = {"lr": np.float32(1e-3)}
    session = TrainingSession(STEP, state, update=update, settings=settings, provider="cpu", threads=1)
    losses = [session.step({"x": numbers.normal(size=(3, 40)).astype(np.float32)}).loss for _ in range(4)]
    return {**session.state(), "losses": np.asarray(losses)}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_the_same_to_the_bit(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = trained(accumulate)
    monkeypatch.setattr(flat_weights, "_FEWEST", 100)
    one_by_one = trained(accumulate)
    assert one_by_one.keys() == at_once.keys()
    for name, value in one_by_one.items():
        np.testing.assert_array_equal(at_once[name], value)
    assert len(set(at_once["losses"])) == 4


def test_the_graph_reads_what_it_cast() -> None:
    layout = flat_layout(SHAPES)
    changed, low = with_low_weights(STEP, layout)
    assert low == {"w": "wl", "v": "vl"}
    assert [v.name for v in changed.graph.input][-2:] == ["wl", "vl"]
    assert [n.name for n in changed.graph.node if n.op_type == "Cast"] == ["w", "v"]
    onnx.checker.check_model(changed, full_check=True)


def test_a_flat_buffer_that_is_mostly_read_in_fp32_is_not_cast() -> None:
    layout = flat_layout({**SHAPES, "large": (1000, 1000)})
    assert with_low_weights(STEP, layout) == (STEP, {})


# Products large enough to pay for Casts; a bias that is small, and an input that is not a weight.
LAYERS = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[512,1024] x, float[1024,1024] "param.w", float[1024,1024] "param.v", float[1024] "param.b")
        => (float loss, float[1024,1024] "grad.w", float[1024,1024] "grad.v", float[1024] "grad.b") {
    [a] a = Gemm(x, "param.w", "param.b")
    [h] h = Relu(a)
    [y] y = MatMul(h, "param.v")
    [l] loss = ReduceMean<keepdims = 0>(y)
    [ht] ht = Transpose<perm = [1, 0]>(h)
    [gv] "grad.v" = MatMul(ht, y)
    [vt] vt = Transpose<perm = [1, 0]>("param.v")
    [gh] gh = MatMul(y, vt)
    [xt] xt = Transpose<perm = [1, 0]>(x)
    [gw] "grad.w" = MatMul(xt, gh)
    [axes] axes = Constant<value_ints = [0]>()
    [gb] "grad.b" = ReduceSum<keepdims = 0>(gh, axes)
    }"""


@pytest.mark.parametrize("kept", [(), ("a", "gw")])
def test_the_planner_sees_what_the_session_casts(kept: tuple[str, ...]) -> None:
    imported = import_model(onnx.parser.parse_model(LAYERS))
    options = Options(target=target("v100"), lists=oplists("campo"), keep_fp32=kept, min_gain=0.0)
    apart = problem_of(imported, options)
    options = replace(options, flat_weights=low_weights.flat_weights)
    problem = problem_of(imported, options)
    plan = decide(problem, imported, options)
    cast = {c.tensor: c for c in plan.casts if c.tensor.startswith("param.")}
    assert len(cast) == (1 if kept else 3)
    # What is taken out of the graph by the session is what the plan counts as one Cast.
    layout = flat_layout({"w": (1024, 1024), "v": (1024, 1024), "b": (1024,)})
    _, taken = with_low_weights(rewrite(imported, plan), layout)
    assert {f"param.{n}" for n in taken} == {site.tensor for site in problem.flat_casts(plan.low_nodes)}
    assert len(taken) == (0 if kept else 3)
    casts = planned_traffic(problem, plan).casts
    assert casts.launches == len(plan.casts) - max(len(taken) - 1, 0)
    assert sum(c.cast_us for c in plan.casts) + sum(d.planned_us for d in plan.decisions) == pytest.approx(
        plan.predicted_us
    )
    if taken:
        elements = 2 * 1024 * 1024 + 1024
        assert sum(c.cast_us for c in cast.values()) == pytest.approx(problem.costs.cast.cast_us(elements))
        assert plan.predicted_us < decide(apart, imported, options).predicted_us
    assert plan.lower_bound_us == pytest.approx(plan.predicted_us, rel=1e-9)


def test_a_graph_that_updates_its_weights_has_none_in_one_buffer() -> None:
    text = LAYERS.replace('float[1024] "grad.b"', 'float[1024] "grad.b", float[1024] "new.b"')
    text = text.replace("[y] y", '[n] "new.b" = Neg("param.b") [y] y')
    with pytest.raises(UsageError, match="no weights lie in one buffer"):
        low_weights.flat_weights(import_model(onnx.parser.parse_model(text)).view)
