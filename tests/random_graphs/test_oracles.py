"""The oracles see what is wrong: results that are doctored, and graphs lowered where they must not be."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from campo_onnx import Precision
from campo_onnx.planning.pipeline import Optimized
from tests.random_graphs import oracles
from tests.random_graphs.builder import RandomGraph, run
from tests.random_graphs.oracles import Setting, check
from tests.random_graphs.raised import OracleError
from tests.random_graphs.reach import within_reach

SETTING = Setting(strategy="optimal", lists="campo", low=Precision.FP16, device="v100", cost_seed=5)
LAYER = """g (float[8,8] x, float[8,8] w) => (float[8,8] y) {
    [mm] h = MatMul(x, w)
    [sub] s = Sub(h, x)
    [act] y = Relu(s)
}"""


@pytest.fixture
def fed(model_text):
    """A graph with data for its inputs."""

    def fed_graph(text, **feeds):
        model = model_text(text)
        chance = np.random.default_rng(0)
        for value in model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            feeds.setdefault(value.name, chance.standard_normal(shape).astype(np.float32))
        return RandomGraph(seed=0, model=model, feeds=feeds, values={})

    return fed_graph


def with_other_sides(result):
    (node,) = [node for node in result.model.graph.node if node.name == "sub"]
    node.input[:] = reversed(node.input)
    return result


def with_a_wrong_type(result):
    cast = next(node for node in result.model.graph.node if node.op_type == "Cast")
    cast.attribute[0].i = TensorProto.DOUBLE
    return result


def with_another_interface(result):
    result.model.graph.output[0].doc_string = "changed"
    return result


def with_another_price(result):
    return replace(result, plan=replace(result.plan, predicted_us=result.plan.predicted_us + 1.0))


def with_a_higher_bound(result):
    return replace(result, plan=replace(result.plan, lower_bound_us=result.plan.fp32_us + 1.0))


@pytest.mark.parametrize(
    ("doctored", "kind"),
    [
        (lambda result: result, None),
        (with_other_sides, "other values in FP32"),
        (with_a_wrong_type, "invalid"),
        (with_another_interface, "interface"),
        (with_another_price, "price"),
        (with_a_higher_bound, "lower bound"),
    ],
)
def test_a_doctored_result_is_seen(fed, monkeypatch, doctored, kind):
    graph = fed(LAYER)
    honest = oracles.optimized

    def doctor(model, setting):
        result = honest(model, setting)
        assert result.plan.low_nodes or result.was_optimized_before
        return doctored(result) if model is graph.model else result

    monkeypatch.setattr(oracles, "optimized", doctor)
    monkeypatch.setattr(oracles, "_once", lambda result, setting: None)  # its stamp tells a doctored graph
    if kind is None:
        assert check(graph, SETTING) == "ok"
    else:
        with pytest.raises(OracleError) as caught:
            check(graph, SETTING)
        assert caught.value.kind == kind


LOST = {
    "not finite": (
        "g (float[4] x) => (float[4] y) <float[4] m = {0, 1, 0, 1}, float big = {-1e9}>"
        "{ [n] h = Mul(m, big) [a] y = Add(x, h) }"
    ),
    "wrong whole numbers": (
        "g (float[1] x) => (int64[3] z) <int64[3] k = {4090, 4091, 4092}, float one = {1}>"
        "{ f = Cast<to = 1>(k) [n] h = Add(f, one) z = Cast<to = 7>(h) }"
    ),
    "beyond reach": (
        "g (float[4] x) => (float[4] y) <float tiny = {1e-12}>"
        "{ h = Sub(x, x) [n] s = Add(h, tiny) [d] y = Div(s, tiny) }"
    ),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_value_that_is_lost_is_seen(fed, lower, kind):
    graph = fed(LOST[kind])
    with np.errstate(over="ignore"):
        lowered = lower(graph.model, ["n"])
    result = Optimized(
        model=lowered.model, plan=lowered.plan, problem=lowered.problem, imported=lowered.imported
    )
    with pytest.raises(OracleError) as caught:
        within_reach(graph, result, run)
    assert caught.value.kind == kind


def test_rounding_is_not_what_is_looked_for(fed, lower):
    graph = fed(LAYER)
    lowered = lower(graph.model)
    result = Optimized(
        model=lowered.model, plan=lowered.plan, problem=lowered.problem, imported=lowered.imported
    )
    within_reach(graph, result, run)
    onnx.checker.check_model(result.model, full_check=True)
