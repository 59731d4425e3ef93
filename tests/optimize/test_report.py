import random
from pathlib import Path

import pytest

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.report import report_of
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.strategies.campo import campo
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

GRAPH = """(float[2,8] x, float[8,8] w, float[8,4] v) => (float[2,4] y, float[2,8] z, int64[2] s) {
    [a1] t = MatMul(x, w)
    [i1] u = Tanh(t)
    [a2] y = MatMul(u, v)
    [d1] e = Exp(t)
    [i2] z = Tanh(e)
    [h] s = Shape(t)
    [o] r = Identity(s)
}"""


def test_a_report_counts(problem_from):
    problem = problem_from(GRAPH, costs={"h": (0.5, 0.5)})
    plan = make_plan(problem, campo(problem), strategy="campo", lists="campo")
    report = report_of(plan)
    assert plan.low_nodes == {"a1", "i1", "a2"}
    assert (report.float_nodes, report.low_nodes) == (6, 3)  # Shape reads floats, Identity does not here
    assert (report.casts_down, report.casts_up) == (3, 2)
    assert [(r.op_type, r.nodes, r.low_nodes, r.fp32_us, r.planned_us) for r in report.ops] == [
        ("MatMul", 2, 2, 20.0, 10.0),
        ("Tanh", 2, 1, 20.0, 15.0),
        ("Exp", 1, 0, 10.0, 10.0),
        ("Shape", 1, 0, 0.5, 0.5),
    ]
    assert [(r.why, r.nodes, r.fp32_us, r.op_types) for r in report.kept] == [
        ("follows an FP32-only node", 1, 10.0, "Tanh 1"),
        ("on the deny list", 1, 10.0, "Exp 1"),
        ("reads only the shape", 1, 0.5, "Shape 1"),
    ]
    assert report.unknown_ops == ()


def test_unknown_operators_are_named(problem_from):
    text = """(float[2,8] x) => (float[2,8] y) {
        [u1] t = com.microsoft.Fancy (x)
        [i] y = Tanh(x)
    }"""
    problem = problem_from(text)
    report = report_of(make_plan(problem, campo(problem), strategy="", lists=""))
    assert report.unknown_ops == (("com.microsoft:Fancy", 1),)


def check_sums(plan, problem):
    report = report_of(plan)
    decided = {d.node: d.precision for d in plan.decisions}
    other_us = sum(cost.fp32_us for node, cost in problem.costs.nodes.items() if decided[node] is None)
    assert sum(row.fp32_us for row in report.ops) + other_us == pytest.approx(problem.costs.fp32_us)
    planned_us = sum(row.planned_us for row in report.ops)
    assert planned_us + other_us + plan.cast_us == pytest.approx(plan.predicted_us)
    assert sum(row.nodes for row in report.ops) == report.float_nodes
    assert sum(row.low_nodes for row in report.ops) == report.low_nodes
    constants = sum(d.op_type == "Constant" and d.precision is Precision.FP32 for d in plan.decisions)
    assert sum(row.nodes for row in report.kept) == report.float_nodes - report.low_nodes - constants
    assert report.casts_down + report.casts_up == len(plan.casts)
    kept_us = sum(row.fp32_us for row in report.kept)
    assert kept_us == pytest.approx(
        sum(
            problem.costs.nodes[node].fp32_us
            for node, precision in decided.items()
            if precision is Precision.FP32 and node not in {cast.node for cast in plan.dropped}
        )
    )


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_the_sums_match_random_plans(random_problem, name):
    for seed in range(40):
        problem = random_problem(random.Random(seed), most_nodes=20)
        check_sums(make_plan(problem, STRATEGIES[name].decide(problem), strategy=name, lists=""), problem)


@pytest.mark.parametrize("graph", ["alexnet_like", "bert2_mlm_sdpa", "mlp", "resblocks"])
def test_the_sums_match_plans_of_exported_graphs(graph):
    path = Path(__file__).parents[1] / "data" / f"{graph}.onnx"
    result = optimize(path, Options(target=target("v100"), lists=preset("campo"), strategy="tf-amp"))
    assert result.plan.low_nodes
    check_sums(result.plan, result.problem)
