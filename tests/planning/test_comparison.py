"""Every strategy side by side."""

from pathlib import Path

import pytest

from campo_onnx.errors import UsageError
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.comparison import ROWS, compare
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

LAYER = Path(__file__).parents[2] / "examples" / "bert_layer.onnx"
OPTIONS = Options(target=target("v100"), lists=preset("campo"))


@pytest.fixture(scope="module")
def comparison():
    return compare(LAYER, OPTIONS)


def test_every_strategy_has_a_row_with_its_own_lists(comparison):
    assert [(row.plan.strategy, row.plan.lists) for row in comparison.rows] == list(ROWS)
    assert {strategy for strategy, _ in ROWS} == set(STRATEGIES)
    assert {(s.name, s.default_lists) for s in STRATEGIES.values()} <= set(ROWS)


def test_rows_agree_with_optimize(comparison):
    plan = optimize(LAYER, OPTIONS).plan
    row = next(row for row in comparison.rows if row.plan.strategy == "optimal")
    assert row.plan == plan


def test_optimal_is_the_least_under_the_same_lists(comparison):
    same = [row.plan for row in comparison.rows if row.plan.lists == "campo"]
    best = min(same, key=lambda plan: plan.predicted_us)
    assert best.strategy == "optimal"
    assert best.predicted_us < min(p.predicted_us for p in same if p.strategy != "optimal")


def test_tensor_core_share_is_one_of_the_step(comparison):
    by_name = {(row.plan.strategy, row.plan.lists): row for row in comparison.rows}
    assert by_name["fp32", "campo"].tensor_core_share == 0
    assert 0.1 < by_name["optimal", "campo"].tensor_core_share < 1
    assert comparison.baseline is by_name["tf-amp", "tf115"]


def test_one_set_of_lists_for_all():
    rows = compare(LAYER, OPTIONS, lists=preset("tf2")).rows
    assert {row.plan.lists for row in rows} == {"tf2"}
    assert {row.plan.strategy for row in rows} == set(STRATEGIES)


def test_a_result_is_not_compared():
    with pytest.raises(UsageError, match="FP32 file it was made from"):
        compare(optimize(LAYER, OPTIONS).model, OPTIONS)
