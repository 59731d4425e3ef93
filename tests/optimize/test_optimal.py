import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.view import FLOAT, TensorKind
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies.campo import campo
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.optimize.strategies.tf_amp import tf_amp
from campo_onnx.targets.cast_model import CastModel

GOES_LOW = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)
MOST_FREE = 14


def test_golden_optimal(golden):
    assert golden.answer() == golden.expected


def free_nodes(problem):
    tainted = taint(problem.view, problem.classification)
    return [
        node.name
        for node in problem.view.nodes
        if node.name not in problem.fixed
        and node.name not in tainted
        and problem.classification.classes[node.name].op_class in GOES_LOW
    ]


def steps_us(problem, free):
    """Time of the step for every assignment, from the graph itself: the readings, one by one.

    Entry ``m`` of the result is the assignment in which ``free[i]`` is low where bit ``i`` of ``m``
    is set.
    """
    view, ports = problem.view, problem.ports
    assignments = np.arange(1 << len(free))
    nobody = np.zeros(assignments.shape, bool)
    is_low = {name: (assignments >> i) & 1 == 1 for i, name in enumerate(free)}
    total_us = np.zeros(assignments.shape)
    for node in view.nodes:
        cost = problem.costs.nodes[node.name]
        total_us += np.where(is_low.get(node.name, nobody), cost.low_us, cost.fp32_us)
    for tensor, info in view.tensors.items():
        if info.dtype != FLOAT or info.kind is TensorKind.CONSTANT:
            continue
        made_low, cast_up = nobody, None
        maker = view.producer.get(tensor)
        if maker is not None and maker.outputs.index(tensor) in ports[maker.name].low_outputs:
            made_low = is_low.get(maker.name, nobody)
        elif maker is not None and maker.op.op_type == "Cast":
            cast_up = maker  # from a low tensor of the given graph
        wants_fp32, wants_low = nobody | info.is_output, nobody.copy()
        casts_down = []  # the first makes the low version, others the same once more
        for use in view.consumers.get(tensor, ()):
            reader = view.node[use.node]
            if reader.op.op_type == "Cast" and cast_up is None:
                casts_down.append(reader.name)
            elif use.position in ports[use.node].low_inputs:
                reads_low = is_low.get(use.node, nobody)
                wants_low |= reads_low
                wants_fp32 |= ~reads_low
            elif use.position not in ports[use.node].any_inputs:
                wants_fp32 |= True
        cast_us = problem.costs.cast.cast_us(info.elements)
        total_us += cast_us * (made_low & wants_fp32)
        total_us -= sum(problem.costs.nodes[cast].fp32_us for cast in casts_down) * made_low
        if cast_up is not None:
            total_us -= problem.costs.nodes[cast_up.name].fp32_us * (wants_low & ~wants_fp32)
        elif not casts_down:
            total_us += cast_us * (~made_low & wants_low)
    return total_us


def rounding_us(problem):
    """A bound of the rounding error of sums of floats."""
    return 1e-9 * (1.0 + problem.costs.fp32_us)


def check_against_every_assignment(problem):
    free = free_nodes(problem)
    if len(free) > MOST_FREE:
        return
    all_us = steps_us(problem, free)
    assignment = optimal(problem)
    predicted_us = problem.predicted_us(assignment.low)
    tolerance_us = rounding_us(problem)
    mask = sum(1 << i for i, name in enumerate(free) if name in assignment.low)
    assert assignment.low <= set(free)
    assert predicted_us == pytest.approx(all_us[mask], abs=1e-9)
    assert predicted_us <= all_us.min() + tolerance_us
    assert assignment.lower_bound_us <= all_us.min() + 1e-9
    assert assignment.lower_bound_us == pytest.approx(predicted_us, abs=tolerance_us)
    fastest = np.flatnonzero(all_us <= all_us.min() + 1e-6)
    assert len(assignment.low) == min(int(m).bit_count() for m in fastest)


@pytest.mark.parametrize("block", range(10))
def test_equals_brute_force_on_small_graphs(random_problem, block):
    for seed in range(150):
        check_against_every_assignment(random_problem(random.Random(block * 1000 + seed), most_nodes=9))


def test_equals_brute_force_with_many_free_nodes(random_problem):
    for seed in range(60):
        check_against_every_assignment(random_problem(random.Random(f"many {seed}"), most_nodes=18))


@given(rng=st.integers(0, 2**32 - 1).map(random.Random))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_equals_brute_force_on_drawn_graphs(random_problem, rng):
    check_against_every_assignment(random_problem(rng, most_nodes=8))


@pytest.mark.parametrize("block", range(4))
def test_equals_brute_force_but_for_rounding_with_costs_no_integer_holds(random_problem, block):
    for seed in range(100):
        problem = in_thirds(random_problem(random.Random(block * 1000 + seed), most_nodes=9))
        least_us = steps_us(problem, free_nodes(problem)).min()
        assignment = optimal(problem)
        assert abs(problem.predicted_us(assignment.low) - least_us) <= rounding_us(problem)
        assert least_us - rounding_us(problem) <= assignment.lower_bound_us <= least_us + 1e-9


def in_thirds(problem):
    nodes = {
        name: replace(cost, fp32_us=cost.fp32_us / 3, low_us=cost.low_us / 3)
        for name, cost in problem.costs.nodes.items()
    }
    cast = problem.costs.cast
    cast = CastModel(r_us=cast.r_us / 3, c_i_us=cast.c_i_us / 3)
    costs = replace(problem.costs, nodes=nodes, cast=cast)
    return replace(problem, costs=costs)


def test_the_random_graphs_are_worth_the_name(random_problem):
    """The draws hold what the claims above are about; otherwise they would show nothing."""
    seen = {"existing": 0, "needs_fp32": 0, "dropped": 0, "several readers": 0, "mixed": 0, "tainted": 0}
    for seed in range(300):
        problem = random_problem(random.Random(seed), most_nodes=9)
        low = optimal(problem).low
        seen["existing"] += any(edge.existing is not None for edge in problem.sites.values())
        seen["needs_fp32"] += any(edge.needs_fp32 for edge in problem.sites.values())
        seen["several readers"] += any(len(edge.consumers) > 1 for edge in problem.sites.values())
        seen["dropped"] += any(edge.dropped(low) for edge in problem.sites.values())
        seen["mixed"] += 0 < len(low) < len(free_nodes(problem))
        seen["tainted"] += bool(taint(problem.view, problem.classification))
    assert min(seen.values()) >= 20, seen


def test_is_never_above_the_other_strategies(random_problem):
    for seed in range(300):
        problem = random_problem(random.Random(seed), most_nodes=40)
        least_us = problem.predicted_us(optimal(problem).low)
        for low in (campo(problem).low, tf_amp(problem).low, frozenset()):
            assert least_us <= problem.predicted_us(low) + rounding_us(problem), seed


def test_an_infinite_cast_is_never_paid(problem_from):
    # Two outputs that FP32 readers want: their infinite arcs add up in one place of the network.
    text = """(float[2] x) => (float[2] y, float[2] z) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
        [c] s, t = Split<axis=0, num_outputs=2>(w)
        [d1] y = Exp(s)
        [d2] z = Exp(t)
    }"""
    problem = problem_from(text, cast_us=float("inf"), costs={"c": (1e6, 1.0)})
    assignment = optimal(problem)
    assert assignment.low == frozenset()
    assert assignment.lower_bound_us == pytest.approx(problem.costs.fp32_us)


def test_nothing_to_decide(problem_from):
    problem = problem_from("(float[2] x) => (float[2] y) { [d] y = Exp(x) }")
    assignment = optimal(problem)
    assert assignment.low == frozenset()
    assert assignment.lower_bound_us == problem.costs.fp32_us


def test_verdicts_tell_the_cut_from_lists_and_taint(problem_from):
    text = """(float[2,8] x, float[8,8] w1) => (float[2,8] y) {
        [a] t = MatMul(x, w1)
        [c] r = Relu(t)
        [d] s = Exp(r)
        [i] y = Tanh(s)
    }"""
    verdicts = optimal(problem_from(text, costs={"c": (1.0, 3.0)})).verdicts
    assert {name: v.decided_by for name, v in verdicts.items()} == {
        "a": Reason.CUT_LOW,
        "c": Reason.CUT_FP32,
        "d": Reason.DENY_LIST,
        "i": Reason.DOWNSTREAM_OF_DENY,
    }
    assert verdicts["a"].reason == "gains 5.0 us; FP16 gives the shortest step overall"
    assert verdicts["c"].reason == ("would lose 2.0 us; FP32 gives the shortest step overall, casts counted")


def test_a_large_graph_is_cut_exactly_by_its_own_certificate(random_problem):
    problem = random_problem(random.Random(7), most_nodes=3000)
    while len(problem.view.nodes) < 1000:
        problem = random_problem(random.Random(len(problem.view.nodes)), most_nodes=3000)
    assignment = optimal(problem)
    assert isinstance(problem.costs.cast, CastModel)
    assert assignment.low
    gap_us = problem.predicted_us(assignment.low) - assignment.lower_bound_us
    assert 0 <= gap_us + 1e-6 <= rounding_us(problem) + 1e-6


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30))
def test_weights_that_are_cast_at_once_never_cost_more(random_problem, seed):
    rng = random.Random(seed)
    apart = random_problem(rng, most_nodes=8)
    weights = {t.name: t.elements for t in apart.view.tensors.values() if t.kind is TensorKind.INPUT}
    problem = replace(apart, flat=FlatWeights(sizes=weights))
    free = free_nodes(problem)
    answer = optimal(problem)
    found_us, other_us = (problem.predicted_us(a.low) for a in (answer, optimal(apart)))
    assert found_us <= other_us + rounding_us(problem)
    subsets = range(1 << len(free)) if len(free) <= 8 else ()
    every_us = [problem.predicted_us(frozenset(n for i, n in enumerate(free) if m >> i & 1)) for m in subsets]
    assert answer.lower_bound_us <= min([found_us, *every_us]) + rounding_us(problem)
