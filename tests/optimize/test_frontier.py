"""The frontier of predicted time against predicted error, against every assignment there is."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.view import TensorKind
from campo_onnx.ops.ports import Ports
from campo_onnx.optimize.frontier import assignment_at, frontier
from campo_onnx.optimize.parametric_cut import PricedNetwork
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Padding, PossiblePad
from campo_onnx.optimize.roundings import Rounding, roundings
from campo_onnx.optimize.strategies.optimal import free_nodes, optimal

MOST_FREE = 11


def drawn_errors(problem, rng, decades=6):
    """Squared errors of very different size; some values are exact in the low precision."""
    every = roundings(problem, free_nodes(problem))
    return {one: 0.0 if rng.randrange(6) == 0 else 10.0 ** -rng.uniform(3, 3 + decades) for one in every}


def every_assignment(problem, errors):
    """Time and squared error of each, node ``i`` being low where bit ``i`` of the index is set."""
    free = free_nodes(problem)
    times_us, squares = [], []
    for mask in range(1 << len(free)):
        low = frozenset(name for i, name in enumerate(free) if mask >> i & 1)
        times_us.append(problem.predicted_us(low))
        squares.append(math.fsum(e for one, e in errors.items() if _is_rounded(one, low)))
    return np.array(times_us), np.array(squares)


def _is_rounded(one, low):
    return bool(low.intersection({one.producer, one.reader})) and one.unless not in low


def vertices(times_us, squares):
    """Vertices of the lower left hull: all pairs are looked at, and no cut."""
    order = np.lexsort((squares, times_us))
    hull = []
    for i in order:
        point = (float(times_us[i]), float(squares[i]))
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and not _turns(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns(a, b, c):
    """Whether `b` lies below the line from `a` to `c`."""
    on_line = a[1] + (c[1] - a[1]) * (b[0] - a[0]) / (c[0] - a[0])
    return b[1] < on_line - 1e-9 * (a[1] - c[1])


def check_against_every_assignment(problem, errors):
    points = frontier(problem, errors)
    times_us, squares = every_assignment(problem, errors)
    expected = vertices(times_us, squares)
    assert [p.time_us for p in points] == pytest.approx([t for t, _ in expected], rel=1e-9)
    assert [p.squared_error for p in points] == pytest.approx([e for _, e in expected], rel=1e-9, abs=1e-15)
    tolerance_us = 1e-8 * (1.0 + problem.costs.fp32_us)
    for point in points:
        within = times_us[squares <= point.squared_error * (1 + 1e-12)]
        assert point.bound_us <= within.min() + tolerance_us
        assert point.bound_us == pytest.approx(point.time_us, abs=tolerance_us)
    return len(points)


@pytest.mark.parametrize("block", range(6))
def test_every_vertex_is_there_and_nothing_else(random_problem, block):
    several = 0
    for seed in range(50):
        rng = random.Random(f"frontier {block} {seed}")
        problem = random_problem(rng, most_nodes=14)
        if len(free_nodes(problem)) <= MOST_FREE:
            several += check_against_every_assignment(problem, drawn_errors(problem, rng)) > 2
    assert several > 8  # else this shows little


def test_every_vertex_where_errors_are_22_decades_apart(random_problem):
    for seed in range(60):
        rng = random.Random(f"decades {seed}")
        problem = random_problem(rng, most_nodes=12)
        if len(free_nodes(problem)) <= MOST_FREE:
            check_against_every_assignment(problem, drawn_errors(problem, rng, decades=22))


@pytest.mark.parametrize("count", [12, 13, 14])
def test_every_vertex_with_many_free_nodes(random_problem, count):
    for seed in range(400):
        rng = random.Random(f"many {seed}")
        problem = random_problem(rng, most_nodes=20)
        if len(free_nodes(problem)) == count:
            assert check_against_every_assignment(problem, drawn_errors(problem, rng)) > 1
            return
    raise AssertionError(f"no problem drawn has {count} free nodes")


@pytest.mark.slow
def test_the_ends_are_the_fastest_plan_and_one_without_error(random_problem):
    for seed in range(100):
        rng = random.Random(f"ends {seed}")
        problem = random_problem(rng, most_nodes=30)
        points = frontier(problem, drawn_errors(problem, rng))
        assert points[0].low == optimal(problem).low
        assert points[-1].squared_error == 0.0
        assert points[0].least_price_us == 0.0
        for before, after in pairwise(points):
            assert before.least_price_us < after.least_price_us
            assert before.time_us < after.time_us
            assert before.squared_error > after.squared_error


@pytest.mark.slow
def test_settled_choices_change_no_point(random_problem, monkeypatch):
    """Errors of any size, and frontiers that are not nested: the same as with every choice in every cut."""
    open_choices, not_nested = [], 0
    narrowed = PricedNetwork.between

    def counted(network, one, other):
        result = narrowed(network, one, other)
        open_choices.append(result.arcs.size / network.arcs.size)
        return result

    for seed in range(120):
        rng = random.Random(f"settled {seed}")
        problem = random_problem(rng, most_nodes=60)
        every = roundings(problem, free_nodes(problem))
        errors = {one: 10.0 ** rng.uniform(-14, -2) for one in every}
        monkeypatch.setattr(PricedNetwork, "between", counted)
        points = frontier(problem, errors)
        monkeypatch.setattr(PricedNetwork, "between", lambda network, one, other: network)
        expected = frontier(problem, errors)
        assert [(p.low, p.padded) for p in points] == [(p.low, p.padded) for p in expected]
        times_us = [problem.predicted_us(p.low) for p in points]
        assert [p.time_us for p in points] == pytest.approx(times_us, rel=1e-12)
        assert [p.bound_us for p in points] == pytest.approx(times_us, rel=1e-9)
        squares = [math.fsum(e for one, e in errors.items() if one.is_there(p.low)) for p in points]
        assert [p.squared_error for p in points] == pytest.approx(squares, rel=1e-9, abs=0.0)
        not_nested += any(not after.low <= before.low for before, after in pairwise(points))
    assert not_nested > 3
    assert max(open_choices) <= 1.0
    assert np.mean(open_choices) < 0.8


@pytest.mark.slow
def test_bounds_hold_where_weights_are_cast_at_once(random_problem, monkeypatch):
    """Two networks, of which each point has the better one: settled choices change no point there either."""
    at_once = 0
    for seed in range(150):
        rng = random.Random(f"flat {seed}")
        problem = random_problem(rng, most_nodes=14)
        weights = {t.name: t.elements for t in problem.view.tensors.values() if t.kind is TensorKind.INPUT}
        problem = replace(problem, flat=FlatWeights(sizes=weights))
        if len(free_nodes(problem)) > MOST_FREE:
            continue
        errors = drawn_errors(problem, rng)
        points = frontier(problem, errors)
        with monkeypatch.context() as whole:
            whole.setattr(PricedNetwork, "between", lambda network, one, other: network)
            expected = frontier(problem, errors)
        for values in ("time_us", "squared_error"):
            assert [getattr(p, values) for p in points] == pytest.approx(
                [getattr(p, values) for p in expected], rel=1e-9
            )
        times_us, squares = every_assignment(problem, errors)
        for point in points:
            within_us = times_us[squares <= point.squared_error * (1 + 1e-12)].min()
            assert point.bound_us <= within_us + 1e-8 * (1.0 + problem.costs.fp32_us)
            assert point.time_us == pytest.approx(problem.predicted_us(point.low))
            at_once += bool(problem.flat_casts(point.low))
    assert at_once > 5


def test_errors_of_single_nodes_raise_nodes_one_after_another(random_problem):
    """With errors on nodes alone the low sets are nested (Gallo, Grigoriadis, Tarjan 1989)."""
    for seed in range(60):
        rng = random.Random(f"nested {seed}")
        problem = random_problem(rng, most_nodes=30)
        alone = {
            Rounding(tensor=name, producer=name): 10.0 ** rng.uniform(-9, -3) for name in free_nodes(problem)
        }
        points = frontier(problem, alone)
        assert all(after.low <= before.low for before, after in pairwise(points))


CHAIN = """(float[2,8] x, float[8,8] w1, float[8,8] w2) => (float[2,8] y) {
    [a] t = MatMul(x, w1)
    [r] u = Relu(t)
    [b] y = MatMul(u, w2)
}"""


def rounding_of(problem, tensor):
    (one,) = [one for one in roundings(problem, free_nodes(problem)) if one.tensor == tensor]
    return one


def test_each_rounding_is_listed_once(problem_from):
    problem = problem_from(CHAIN)
    assert set(roundings(problem, free_nodes(problem))) == {
        Rounding(tensor="x", reader="a"),
        Rounding(tensor="w1", reader="a"),
        Rounding(tensor="t", producer="a", reader="r"),
        Rounding(tensor="u", reader="b", unless="r"),  # Relu writes what it has rounded
        Rounding(tensor="w2", reader="b"),
        Rounding(tensor="y", producer="b"),
    }


SHARED = """(float[2,8] x, float[8,8] w) => (float[2,8] y, float[2,8] z, float[2,8] t) {
    [a] t = MatMul(x, w)
    [b] y = MatMul(t, w)
    [d] z = Exp(t)
}"""


def test_a_reader_rounds_for_itself_and_a_producer_for_all(problem_from):
    problem = problem_from(SHARED)
    every = roundings(problem, free_nodes(problem))
    assert {one for one in every if one.tensor == "t"} == {
        Rounding(tensor="t", producer="a"),
        Rounding(tensor="t", reader="b", unless="a"),
    }
    assert {one.reader for one in every if one.tensor == "w"} == {"a", "b"}
    by_reader = Rounding(tensor="t", reader="b", unless="a")
    assert [by_reader.is_there(low) for low in (set(), {"b"}, {"a"}, {"a", "b"})] == [
        False,
        True,
        False,
        False,
    ]


def test_an_error_is_paid_once_between_low_nodes(problem_from):
    problem = problem_from(CHAIN)
    fastest, exact = frontier(problem, {rounding_of(problem, "t"): 0.25})
    assert fastest.low == {"a", "r", "b"}
    assert (fastest.error, exact.error) == (0.5, 0.0)
    assert exact.low == {"b"}  # which reads what Relu wrote, not `t`


def test_nodes_whose_rounding_breaks_the_step_stay_fp32(problem_from):
    problem = problem_from(CHAIN)
    w1, w2 = rounding_of(problem, "w1"), rounding_of(problem, "w2")
    points = frontier(problem, {w2: math.inf, w1: 1e-6})
    assert [point.low for point in points] == [{"a", "r"}, {"r"}]  # the Casts of r alone pay
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="squared error"):
            frontier(problem, {w1: wrong})


def test_pads_are_part_of_the_choice(problem_from):
    problem = problem_from(CHAIN, costs={"a": (10.0, 12.0), "b": (10.0, 12.0)})
    pad = PossiblePad(if_padded=("a",), if_unpadded=None, pad_us=1.0)
    padding = Padding(gains_us={"a": 9.0}, alone_us={"a": 1.0}, pads=(pad,))
    points = frontier(replace(problem, padding=padding), {rounding_of(problem, "w1"): 1e-6})
    assert points[0].padded == {"a"}
    unpadded_us = problem.predicted_us(points[0].low)
    assert points[0].time_us == unpadded_us - 8.0
    assert points[0].bound_us == pytest.approx(points[0].time_us, abs=1e-6)
    assert points[-1].padded == frozenset()


def test_a_point_says_why(problem_from):
    problem = problem_from(CHAIN)
    points = frontier(problem, {rounding_of(problem, "x"): 4e-6, rounding_of(problem, "w2"): 1e-8})
    fastest, middle = points[0], points[1]
    assert middle.low
    assert middle.low < fastest.low
    plan = make_plan(problem, assignment_at(problem, middle, fastest), strategy="frontier", lists="campo")
    assert plan.predicted_us == pytest.approx(middle.time_us)
    assert plan.lower_bound_us == pytest.approx(fastest.time_us)
    assert {d.decided_by for d in plan.decisions} == {Reason.FRONTIER_LOW, Reason.FRONTIER_FP32}
    assert any("within the predicted error of 0.0001" in d.reason for d in plan.decisions)


def test_ports_of_fixed_type_round_nothing(problem_from):
    problem = problem_from(CHAIN)
    ports = {**problem.ports, "a": Ports(low_inputs=frozenset({0}), low_outputs=frozenset({0}))}
    every = roundings(replace(problem, ports=ports), free_nodes(problem))
    assert "w1" not in {one.tensor for one in every}
