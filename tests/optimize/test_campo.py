import random

import pytest

from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies.campo import campo, traverse_1, traverse_2, traverse_3, traverse_4


def test_golden_traverses(golden):
    assert golden.answer() == golden.expected


STEP = """(float[2,8] x, float[8,8] w1, float[8,6] w2) => (float[2,6] y, float[2,8] z) {
    [c1] t0 = Relu(x)
    [a1] t1 = MatMul(t0, w1)
    [i1] t2 = Tanh(t1)
    [a2] y = MatMul(t2, w2)
    [d1] t3 = Exp(t1)
    [i2] z = Tanh(t3)
}"""


def test_each_traverse_by_itself(problem_from):
    problem = problem_from(STEP)
    low = traverse_1(problem).low
    assert low == {"a1", "a2"}
    tainted = traverse_2(problem)
    assert tainted == {"i2"}
    assert traverse_3(problem, low, tainted) == {"i1"}
    assert traverse_4(problem, low | {"i1"}, tainted).low == {"c1"}


def test_every_free_node_learns_which_traverse_decided(problem_from):
    problem = problem_from(STEP)
    by = {name: verdict.decided_by for name, verdict in campo(problem).verdicts.items()}
    assert by == {
        "c1": Reason.TRAVERSE_4_LOW,
        "a1": Reason.TRAVERSE_1_LOW,
        "i1": Reason.BETWEEN,
        "a2": Reason.TRAVERSE_1_LOW,
        "d1": Reason.DENY_LIST,
        "i2": Reason.DOWNSTREAM_OF_DENY,
    }


def test_traverse_1_says_what_the_casts_cost(problem_from):
    reasons = traverse_1(problem_from(STEP)).verdicts
    assert reasons["a1"].reason == "gains 5.0 us; its casts cost 3.0 us"
    reasons = traverse_1(problem_from(STEP, cast_us=2)).verdicts
    assert reasons["a2"].reason == "would gain 5.0 us; its casts would cost 6.0 us"


def test_traverse_4_says_how_the_casts_change(problem_from):
    problem = problem_from(STEP)
    verdicts = traverse_4(problem, frozenset({"a1"}), frozenset({"i2"})).verdicts
    assert verdicts["c1"].reason == "gains 5.0 us in a group of 1 clear nodes; casts change by +0.0 us"


def test_a_group_that_pays_only_beside_another_group(problem_from):
    # c2 gains 0.5. Alone it brings casts of s and y; beside c1 the Cast of s is there, and that of t goes.
    text = """(float[2,8] x, float[8,8] w) => (float[4,8] y, float[4,8] z) {
        [d1] s = Exp(x)
        [a1] t = MatMul(x, w)
        [c2] y = Concat<axis=0>(t, s)
        [c1] z = Concat<axis=0>(t, s)
    }"""
    problem = problem_from(text, costs={"c2": (4.0, 3.5), "c1": (9.0, 4.0)})
    assignment = traverse_4(problem, frozenset({"a1"}), frozenset())
    assert assignment.low == {"c1", "c2"}


def test_a_taken_back_assignment_says_so(problem_from):
    problem = problem_from(STEP, costs={"i1": (10.0, 200.0)})
    assignment = campo(problem)
    assert assignment.low == frozenset()
    assert {assignment.verdicts[name].decided_by for name in ("a1", "a2", "i1", "c1")} == {Reason.NEVER_WORSE}
    assert assignment.verdicts["i2"].decided_by is Reason.DOWNSTREAM_OF_DENY


def test_a_fixed_node_is_not_asked(problem_from):
    problem = problem_from(STEP, keep_fp32=("a1",))
    assignment = campo(problem)
    assert "a1" not in assignment.low | assignment.verdicts.keys()
    assert assignment.low == {"a2"}


@pytest.mark.parametrize("seed", range(100))
def test_never_worse(random_problem, seed):
    problem = random_problem(random.Random(seed), most_nodes=20)
    plan = make_plan(problem, campo(problem), strategy="campo", lists="")
    assert plan.predicted_us < plan.fp32_us or not plan.low_nodes
