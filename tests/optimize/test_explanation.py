"""``explain`` says of a node what its plan and its problem hold."""

from pathlib import Path

import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.optimize.plan.explanation import explained
from campo_onnx.optimize.plan.plan import Plan

BERT = Path(__file__).parent.parent.parent / "examples" / "bert_layer.onnx"


@pytest.fixture(scope="module")
def optimized():
    return optimize_model(BERT, Options(target=target("v100"), lists=oplists("campo"), pads=False))


def test_the_other_precision_alone_costs_what_is_said(optimized):
    """Held against the price of the whole step, with one node turned."""
    problem, plan = optimized.problem, optimized.plan
    step_us = problem.predicted_us(plan.low_nodes)
    decisions = [d for d in plan.decisions if d.other_cast_us is not None]
    assert len(decisions) > 100
    for d in decisions:
        turned_us = problem.predicted_us(plan.low_nodes ^ {d.node})
        node_us = d.gain_us if d.is_lowered else -d.gain_us
        assert turned_us - step_us == pytest.approx(node_us + d.other_cast_us, abs=1e-6)
        assert turned_us >= step_us - 1e-6  # it is optimal


def test_sentences(optimized):
    plan = optimized.plan
    told = " ".join(explained(plan, "intermediate/Gemm"))
    assert "FP16 gains 1.71 ms here" in told
    assert "shared with intermediate/grad/MatMul" in told
    assert "alone in FP32 the step would be" in told
    assert "--range loss_scale=LOW:HIGH" in " ".join(
        sentence
        for d in plan.decisions
        if d.decided_by.value == "scalar-input"
        for sentence in explained(plan, d.node)
    )
    for decision in plan.decisions:
        for sentence in explained(plan, decision.node):
            assert "{" not in sentence
            assert sentence.endswith(".")


def test_a_plan_of_version_2_can_be_explained(optimized):
    import json

    from campo_onnx.optimize.plan.plan_file import _digest

    document = json.loads(optimized.plan.to_json())
    document.pop("decisions_digest")
    for row in document["decisions"]:
        del row["other_cast_us"]
    document["format_version"] = 2
    read = Plan.from_json(json.dumps(document | {"decisions_digest": _digest(document)}))
    assert read.decision["Div"].other_cast_us is None
    assert all(explained(read, d.node) is not None for d in read.decisions)
