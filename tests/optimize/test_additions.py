"""Adding a strategy and a pattern rule: each is found by name, planned with, and executed."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.errors import UsageError
from campo_onnx.optimize import strategies
from campo_onnx.optimize.lists import patterns
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Findings
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment
from campo_onnx.optimize.strategy import Strategy

GRAPH = """g (float[64,64] x, float[64,64] w) => (float[64,64] y, float[64,64] z) {
    [p] t = MatMul(x, w) [r] y = Relu(t) [e] z = Exp(x)
}"""
OPTIONS = Options(target=target("v100"), lists=oplists("campo"))


def only(problem, *, nodes=1.0):
    """Turn the first few products low."""
    free = [node.name for node in problem.view.nodes if problem.is_free(node.name)]
    products = [name for name in free if problem.op_class(name) is OpClass.ALLOW]
    return Assignment(
        low=frozenset(products[: int(nodes)]),
        verdicts=dict.fromkeys(free, Verdict(decided_by=Reason.ALLOW_LIST)),
    )


@pytest.fixture
def toy_strategy(monkeypatch):
    toy = Strategy(name="toy", title="the first product", rule=only, parameters={"nodes": 1.0})
    monkeypatch.setattr(strategies, "STRATEGIES", MappingProxyType({**strategies.STRATEGIES, "toy": toy}))
    return toy


def test_a_strategy_is_found_by_its_name_and_planned_with(toy_strategy, model_text, well_cast):
    result = optimize_model(model_text(GRAPH), replace(OPTIONS, strategy="toy"))
    assert result.plan.strategy == "toy"
    assert result.plan.low_nodes == {"p"}
    well_cast(result.imported, result.model)


def test_a_strategy_is_tuned_by_the_parameters_it_has(toy_strategy):
    assert toy_strategy.tuned(nodes=0.0, margin_us=3.0).parameters == {"nodes": 0.0}
    with pytest.raises(TypeError):
        toy_strategy.parameters["nodes"] = 2.0


def test_an_unknown_strategy_is_refused_where_options_are_made():
    with pytest.raises(UsageError, match="unknown strategy 'optimum'") as caught:
        replace(OPTIONS, strategy="optimum")
    assert caught.value.remedy.startswith("Did you mean 'optimal'?")


def exponentials(view, update):
    """Every Exp is harmless."""
    names = [node.name for node in view.nodes if node.op.op_type == "Exp"]
    return Findings(classes=dict.fromkeys(names, (OpClass.ALLOW, "an exponential of little")))


def test_a_pattern_rule_is_found_by_its_name_and_planned_with(monkeypatch, model_text):
    rules = MappingProxyType({**patterns.PATTERN_RULES, "exponentials": exponentials})
    monkeypatch.setattr("campo_onnx.optimize.lists.classify.PATTERN_RULES", rules)
    monkeypatch.setattr("campo_onnx.optimize.lists.oplists.PATTERNS", tuple(rules))
    model, options = model_text(GRAPH), replace(OPTIONS, strategy="tf-amp")
    assert "e" not in optimize_model(model, options).plan.low_nodes
    lists = replace(options.lists, patterns=(*options.lists.patterns, "exponentials"))
    assert "e" in optimize_model(model, replace(options, lists=lists)).plan.low_nodes
