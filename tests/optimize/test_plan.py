import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from campo_onnx.errors import PlanMismatchError, UsageError
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.strategies.optimal import optimal

FP32, FP16 = Precision.FP32, Precision.FP16

GRAPH = """(float[2,8] x, float[8,4] w) => (float[2,4] y, float[2,4] z) {
    [a] t = MatMul(x, w)
    [i] y = Tanh(t)
    [d] z = Exp(t)
}"""


@pytest.fixture
def plan(problem_from):
    problem = problem_from(GRAPH)
    return make_plan(problem, optimal(problem), strategy="optimal", lists="campo")


def test_golden_casts(golden):
    assert golden.answer() == golden.expected


def test_a_plan_says_what_was_decided(plan):
    assert plan.low_nodes == {"a", "i"}
    assert [(d.node, d.op_type, d.op_class, d.precision) for d in plan.decisions] == [
        ("a", "MatMul", OpClass.ALLOW, FP16),
        ("i", "Tanh", OpClass.INFER, FP16),
        ("d", "Exp", OpClass.DENY, FP32),
    ]
    assert [(c.tensor, c.src, c.dst, c.consumers) for c in sorted(plan.casts, key=lambda c: c.tensor)] == [
        ("t", FP16, FP32, (("d", 0),)),
        ("w", FP32, FP16, (("a", 1),)),
        ("x", FP32, FP16, (("a", 0),)),
        ("y", FP16, FP32, ()),
    ]
    assert (plan.fp32_us, plan.cast_us, plan.predicted_us) == (30.0, 4.0, 24.0)
    assert plan.speedup == 1.25
    assert [d.cast_us for d in plan.decisions] == [3.0, 2.0, 1.0]
    assert plan.lower_bound_us == pytest.approx(24.0)
    assert (plan.strategy, plan.lists, plan.device, plan.source, plan.low) == (
        *("optimal", "campo", "paper", "hand"),
        FP16,
    )


def test_a_step_without_cost_has_no_speedup(problem_from):
    problem = problem_from(GRAPH, default=(0.0, 0.0))
    assert make_plan(problem, optimal(problem), strategy="", lists="").speedup == 1.0


def test_a_plan_survives_json(plan):
    assert Plan.from_json(plan.to_json()) == plan


def test_a_decision_and_a_cast_take_one_line_each(plan):
    lines = plan.to_json().splitlines()
    assert sum('"node":' in line for line in lines) == 3
    assert sum('"tensor":' in line for line in lines) == 4


def test_an_empty_plan_survives_json(problem_from):
    problem = problem_from("(float[2] x) => (float[2] y) { [d] y = Exp(x) }")
    plan = make_plan(problem, STRATEGIES["fp32"].decide(problem), strategy="fp32", lists="campo")
    assert plan.casts == ()
    assert plan.lower_bound_us is None
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_about_nodes_without_a_decision_is_refused(plan):
    (cast,) = [cast for cast in plan.casts if cast.tensor == "t"]
    for strange in (
        replace(cast, producer="zzz"),
        replace(cast, consumers=(cast.consumers[0]._replace(node="zzz"),)),
    ):
        with pytest.raises(ValueError, match=r"the cast of 't' names 'zzz', which has no decision"):
            replace(plan, casts=(strange,))


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"strategy": "campo"}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(UsageError, match=r"p\.json is not a plan file") as caught:
        Plan.from_json(text, title="p.json")
    assert caught.value.remedy


def test_another_format_version_is_refused(plan):
    document = json.loads(plan.to_json()) | {"format_version": 99}
    with pytest.raises(UsageError, match="written by a newer campo-onnx"):
        Plan.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("casts"),
        lambda d: d.pop("digest"),
        lambda d: d.update(surplus=1),
        lambda d: d["decisions"][0].pop("decided_by"),
        lambda d: d["casts"][0].pop("consumers"),
        lambda d: d["casts"].append("x"),
        lambda d: d["decisions"].append(3),
        lambda d: d.update(pads=4),
    ],
)
def test_a_damaged_plan_is_refused(plan, damage):
    document = json.loads(plan.to_json())
    damage(document)
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.from_json(json.dumps(document))


def test_a_plan_fits_its_own_graph_only(plan, read):
    plan.check_fits(read(GRAPH))
    with pytest.raises(PlanMismatchError, match="does not fit"):
        plan.check_fits(read(GRAPH.replace("8", "6")))
    with pytest.raises(PlanMismatchError, match="does not fit"):
        plan.check_fits(read(GRAPH.replace("Tanh", "Sigmoid")))


def test_nodes_of_the_given_graph_that_are_low_already_are_not_turned_low(problem_from):
    text = """(float[2,8] x, float16[8,4] v) => (float[2,4] y, int64[2] s) {
        [k] x16 = Cast<to=10>(x)
        [n] t = MatMul(x16, v)
        [u] y = Cast<to=1>(t)
        [h] s = Shape(t)
    }"""
    problem = problem_from(text)
    plan = make_plan(problem, optimal(problem), strategy="", lists="")
    assert {d.node: (d.precision, d.decided_by) for d in plan.decisions} == {
        "k": (FP32, Reason.GIVEN_CAST),
        "n": (FP16, Reason.ALREADY_LOW),
        "u": (FP32, Reason.GIVEN_CAST),
        "h": (FP16, Reason.ALREADY_LOW),
    }
    assert plan.low_nodes == frozenset()


def test_an_if_that_computes_low_already_is_not_turned_low(problem_from):
    text = """(bool c, float16[4] x, float[4] f) => (float16[4] y, float[4] g) {
        [k] y = If(c) <
            then_branch = then () => (float16[4] p) { p = Neg(x) },
            else_branch = other () => (float16[4] q) { q = Abs(x) }
        >
        [d] g = Exp(f)
    }"""
    problem = problem_from(text)
    plan = make_plan(problem, optimal(problem), strategy="", lists="")
    assert plan.low_nodes == frozenset()


def boundaries(problem, low):
    """Every reading whose precision differs from the tensor's, as ``(tensor, wanted, use)``."""
    view, ports, readings = problem.view, problem.ports, set()
    for tensor, site in problem.sites.items():
        made_low = site.producer in low
        existing = () if site.existing is None else (site.existing.cast, *site.existing.copies)
        if made_low and view.tensors[tensor].is_output:
            readings.add((tensor, FP32, None))
        for use in view.consumers.get(tensor, ()):
            reader = ports[use.node]
            if use.position in reader.any_inputs or use.node in existing:
                continue
            wants_low = use.node in low and use.position in reader.low_inputs
            if wants_low and not made_low and site.existing is None:
                readings.add((tensor, FP16, use))
            if made_low and not wants_low:
                readings.add((tensor, FP32, use))
    return readings


@pytest.mark.parametrize("name", ["optimal", "campo", "tf-amp"])
def test_every_boundary_has_exactly_one_cast(random_problem, name):
    for seed in range(100):
        problem = random_problem(random.Random(seed), most_nodes=25)
        plan = make_plan(problem, STRATEGIES[name].decide(problem), strategy=name, lists="")
        crossed = boundaries(problem, plan.low_nodes)
        assert {(c.tensor, c.dst) for c in plan.casts} == {(tensor, wanted) for tensor, wanted, _ in crossed}
        served = Counter((c.tensor, c.dst, reader) for c in plan.casts for reader in c.consumers)
        assert served == Counter((t, wanted, reader) for t, wanted, reader in crossed if reader is not None)
        assert max(Counter((c.tensor, c.dst) for c in plan.casts).values(), default=1) == 1
        assert all(c.src != c.dst for c in plan.casts)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_random_plans_survive_json(random_problem, name):
    for seed in range(30):
        problem = random_problem(random.Random(seed), most_nodes=15)
        plan = make_plan(problem, STRATEGIES[name].decide(problem), strategy=name, lists="")
        assert Plan.from_json(plan.to_json()) == plan
        assert replace(plan, strategy="other") != plan


def test_text_in_place_of_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="cut-low takes a number for gain_us, not text"):
        Verdict(decided_by=Reason.CUT_LOW, facts={"gain_us": "much", "low": "FP16"})
