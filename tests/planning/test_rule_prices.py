"""Prices of rules are differences of two answers, found in another way here."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx import target
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.lists.oplists import preset, with_overrides
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.planning.rule_prices import rule_prices

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def imported():
    return import_model(DATA / "resblocks.onnx")


@pytest.fixture(scope="module")
def options():
    cheap = replace(target("v100").hardware, fp32_flops_per_s=1e11)  # long kernels, so that rules bind
    lists = with_overrides(preset("campo"), deny=["Conv", "Relu"])
    return Options(target=replace(target("v100"), hardware=cheap), lists=lists, keep_fp32=("MatMul|Gemm",))


@pytest.fixture(scope="module")
def prices(imported, options):
    return rule_prices(imported, problem_of(imported, options), options)


def predicted_us(imported, options):
    options = replace(options, min_gain=0.0)
    return decide(problem_of(imported, options), imported, options).predicted_us


@pytest.mark.parametrize("op", ["Conv", "Relu"])
def test_a_deny_row_costs_what_allowing_its_operator_saves(imported, options, prices, op) -> None:
    allowed = replace(options, lists=with_overrides(options.lists, allow=[op]))
    saved_us = predicted_us(imported, options) - predicted_us(imported, allowed)
    (price,) = [one for one in prices.prices if (one.rule, one.subject) == (Reason.DENY_LIST, op)]
    assert price.price_us == pytest.approx(saved_us, rel=1e-6, abs=1e-3)
    assert price.nodes == sum(node.op.label == op for node in imported.view.nodes)


def test_keeping_nodes_costs_what_leaving_the_option_out_saves(imported, options, prices) -> None:
    saved_us = predicted_us(imported, options) - predicted_us(imported, replace(options, keep_fp32=()))
    (price,) = [one for one in prices.prices if one.rule is Reason.USER]
    assert price.price_us == pytest.approx(saved_us, rel=1e-6, abs=1e-3)
    assert saved_us > 0


def test_prices_are_sorted_and_the_dearest_is_no_rounding(imported, options, prices) -> None:
    figures = [one.price_us for one in prices.prices]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > 0.01 * prices.predicted_us
    assert min(figures) >= 0.0
    assert prices.predicted_us == pytest.approx(predicted_us(imported, options))
    titles = [one.title for one in prices.prices]
    assert len({*titles}) == len(titles)


def test_nodes_without_a_low_variant_have_no_price(imported, options, prices) -> None:
    problem = problem_of(imported, options)
    kept = sum(price.nodes for price in prices.prices)
    able = [
        n
        for n, ports in problem.ports.items()
        if not ports.refusal and (ports.low_inputs or ports.low_outputs)
    ]
    assert 0 < kept <= len(able) < len(problem.ports)


def test_errors_are_of_the_plan_without_the_rule(imported, options) -> None:
    problem = problem_of(imported, options)
    seen: list[Plan] = []

    def error_of(plan: Plan) -> float:
        seen.append(plan)
        convolutions = {d.op_type for d in plan.decisions if d.is_lowered} & {"Conv"}
        return math.inf if convolutions else 1e-3

    prices = rule_prices(imported, problem, options, error_of=error_of)
    binding = [price for price in prices.prices if price.price_us]
    assert prices.error == 1e-3
    assert len(seen) == 1 + len(binding)  # rules that cost nothing change nothing
    for price in prices.prices:
        is_of_conv = (price.rule, price.subject) == (Reason.DENY_LIST, "Conv")
        assert price.breaks == is_of_conv
        assert price.error == (None if is_of_conv else 1e-3)
        sentence = prices.sentence(price)
        assert ("is not finite" in sentence) == is_of_conv
        assert ("saves no error" in sentence) == (not is_of_conv)


def test_a_plan_keeps_its_prices(imported, options, prices) -> None:
    plan = decide(problem_of(imported, options), imported, options)
    assert plan.rules is None
    read = Plan.from_json(replace(plan, rules=prices).to_json())
    assert read.rules == prices
