import random

import pytest

from campo_onnx.optimize.casts import CastKind, CastSite, ExistingVersion, existing_versions
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.strategies import STRATEGIES

EXISTING = ExistingVersion(name="t16", cast="k", is_source=False)


def site(**changes):
    defaults = {"tensor": "t", "producer": "p", "consumers": ("r", "s"), "needs_fp32": False}
    return CastSite(**(defaults | {"cast_us": 3.0} | changes))


@pytest.mark.parametrize(
    ("low", "changes", "down", "up"),
    [
        ("", {}, False, False),
        ("p r s", {}, False, False),
        ("r", {}, True, False),
        ("r s", {}, True, False),
        ("p", {}, False, True),
        ("p r", {}, False, True),
        ("p r s", {"needs_fp32": True}, False, True),
        ("r", {"needs_fp32": True}, True, False),
        ("r", {"existing": EXISTING}, False, False),
        ("p r", {"existing": EXISTING}, False, True),
        ("r", {"producer": None}, True, False),
        ("p", {"consumers": ()}, False, False),
        ("p", {"consumers": (), "needs_fp32": True}, False, True),
    ],
)
def test_a_site_needs_one_new_cast_at_most(low, changes, down, up):
    cast = site(**changes).new_cast(set(low.split()))
    assert (cast is not None and cast.kind is CastKind.DOWN) is down
    assert (cast is not None and cast.kind is CastKind.UP) is up
    assert site(**changes).new_cast_us(set(low.split())) == (3.0 if down or up else 0.0)


GRAPH = """(float[2,8] x, float[8,4] w) => (float[4,2] y, float[2,4] z, int64[2] s)
           <float[4] b = {1.0, 2.0, 3.0, 4.0}> {
    [a] t = MatMul(x, w)
    [i] u = Add(t, b)
    [h] s = Shape(u)
    [c] y = Transpose(u)
    [d] z = Sin(u)
}"""


def test_sites_leave_out_constants_and_readers_of_shapes(problem_from):
    sites = problem_from(GRAPH).sites
    assert {name: (s.producer, s.consumers, s.needs_fp32) for name, s in sites.items()} == {
        "x": (None, ("a",), False),
        "w": (None, ("a",), False),
        "t": ("a", ("i",), False),
        "u": ("i", ("c", "d"), False),
        "y": ("c", (), True),
        "z": ("d", (), True),
    }


def test_a_port_of_fixed_type_needs_fp32(problem_from):
    text = """(float[1,1,4,4] x) => (float[1,1,8,8] y) <int64[4] first = {0, 1, 2, 3}> {
        [k] one = Tanh(x)
        [f] flat = Flatten<axis=4>(one)
        [s] column = Squeeze(flat)
        [g] four = Gather(column, first)
        [r] y = Resize<mode="nearest">(one, , four)
    }"""
    sites = problem_from(text).sites
    assert sites["four"].needs_fp32
    assert sites["four"].consumers == ()
    assert sites["one"].consumers == ("f", "r")
    assert not sites["one"].needs_fp32


GIVEN_CASTS = """(float[2,8] x, float16[2,8] y16)
    => (float16[2,8] z, float[2,8] u, float16[2,8] v, float[2,8] p) {
    [down] x16 = Cast<to=10>(x)
    [again] v = Cast<to=10>(x)
    [up] y = Cast<to=1>(y16)
    [n] z = Add(x16, y16)
    [i] u = Tanh(y)
    [j] p = Sigmoid(x)
}"""


def test_low_versions_are_found_in_both_directions_and_the_first_one_counts(problem_from):
    problem = problem_from(GIVEN_CASTS)
    assert existing_versions(problem.view, problem.low) == {
        "x": ExistingVersion(name="x16", cast="down", is_source=False, copies=("again",)),
        "y": ExistingVersion(name="y16", cast="up", is_source=True),
    }
    assert not problem.sites["x"].needs_fp32  # neither Cast wants it for ever
    assert problem.sites["y"].producer is None


def test_a_dropped_cast_is_saved_once(problem_from):
    problem = problem_from(GIVEN_CASTS, costs={"up": (7.0, 7.0), "i": (10.0, 5.0)})
    low = frozenset({"i"})
    assert [cast.node for site in problem.sites.values() for cast in site.dropped(low)] == ["up"]
    # i saves 5, up saves 7, u is cast up for 1.
    assert problem.predicted_us(low) == problem.predicted_us(frozenset()) - 5 - 7 + 1


@pytest.mark.parametrize("name", ["optimal", "campo", "tf-amp"])
def test_the_prediction_is_the_sum_of_nodes_and_planned_casts(random_problem, name):
    for seed in range(150):
        problem = random_problem(random.Random(seed), most_nodes=25)
        plan = make_plan(problem, STRATEGIES[name].decide(problem), strategy=name, lists="")
        dropped = {cast.node for cast in plan.dropped}
        total_us = sum(cast.cast_us for cast in plan.casts)
        for node, cost in problem.costs.nodes.items():
            if node not in dropped:
                total_us += cost.low_us if node in plan.low_nodes else cost.fp32_us
        assert plan.predicted_us == pytest.approx(total_us)
        assert plan.predicted_us == pytest.approx(problem.predicted_us(plan.low_nodes))
