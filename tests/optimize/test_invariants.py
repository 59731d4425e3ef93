"""Invariants of every strategy on every graph, whatever the costs."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.ops.ports import Ports
from campo_onnx.optimize.lists.classify import Classification
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.targets.cast_model import CastModel

GOES_LOW = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)
COST_AWARE = ["campo", "optimal"]
KEEP_TAINT = ["campo", "optimal", "tf-amp"]
EVERY = sorted(set(STRATEGIES) - {"fp32"})  # which decides nothing

# A seed a graph: drawing every choice through hypothesis would cost more than what is tested.
draws = given(rng=st.integers(0, 2**32 - 1).map(Random))
thrifty = settings(max_examples=60, deadline=None, derandomize=True)


def planned(problem, name):
    return make_plan(problem, STRATEGIES[name].decide(problem), strategy=name, lists="")


def with_costs(problem, *, cast=None, nodes=None):
    costs = replace(problem.costs, cast=cast or problem.costs.cast, nodes=nodes or problem.costs.nodes)
    return replace(problem, costs=costs)


@draws
@thrifty
def test_what_must_stay_fp32_does_and_every_node_has_a_reason(random_problem, rng):
    problem = random_problem(rng, most_nodes=20)
    tainted = taint(problem.view, problem.classification)
    optimal_us = planned(problem, "optimal").predicted_us
    for name in EVERY:
        plan = planned(problem, name)
        assert [d.node for d in plan.decisions] == [node.name for node in problem.view.nodes], name
        for decision in plan.decisions:
            if decision.node in plan.low_nodes:
                assert decision.op_class in GOES_LOW, name
                assert decision.node not in problem.fixed, name
            assert decision.reason
            assert decision.decided_by
        if name in KEEP_TAINT:
            assert not plan.low_nodes & tainted, name
        if name in (*KEEP_TAINT, "fine-grained"):
            assert optimal_us <= plan.predicted_us * (1 + 1e-9), name
        if name in COST_AWARE:
            assert plan.predicted_us <= plan.fp32_us + 1e-6, name
        if name == "optimal":
            assert plan.lower_bound_us == pytest.approx(plan.predicted_us, rel=1e-9, abs=1e-9)


@draws
@thrifty
def test_an_infinite_cast_cost_adds_no_cast(random_problem, rng):
    problem = random_problem(rng, most_nodes=20)
    for cast_us in (1e12, float("inf")):
        dear = with_costs(problem, cast=CastModel(r_us=0.0, c_i_us=cast_us))
        assert [planned(dear, name).casts for name in COST_AWARE] == [()] * len(COST_AWARE)


@draws
@thrifty
def test_free_casts_and_positive_gains_turn_every_allowed_node_low(random_problem, rng):
    problem = random_problem(rng, most_nodes=20)
    nodes = {name: replace(c, fp32_us=c.low_us + 1.0) for name, c in problem.costs.nodes.items()}
    problem = with_costs(problem, cast=CastModel(r_us=0.0, c_i_us=0.0), nodes=nodes)
    tainted = taint(problem.view, problem.classification)
    assert planned(problem, "optimal").low_nodes == {
        node.name
        for node in problem.view.nodes
        if node.name not in problem.fixed
        and node.name not in tainted
        and problem.op_class(node.name) in GOES_LOW
    }


@draws
@thrifty
def test_no_gain_no_low_node(random_problem, rng):
    problem = random_problem(rng, most_nodes=20, casts=False)
    nodes = {name: replace(c, low_us=c.fp32_us) for name, c in problem.costs.nodes.items()}
    problem = with_costs(problem, nodes=nodes)
    assert not any(planned(problem, name).low_nodes for name in COST_AWARE)


def reordered(view, rng):
    """The nodes in another topological order, drawn by chance."""
    tensors = {t for t in view.tensors if t not in view.producer}
    waiting, order = list(view.nodes), []
    while waiting:
        ready = [node for node in waiting if all(t in tensors for t in node.inputs if t)]
        node = rng.choice(ready)
        waiting.remove(node)
        order.append(node)
        tensors.update(node.outputs)
    return order


def renamed(problem, rng):
    """The same problem under other names of nodes and tensors, in another order."""
    view = problem.view
    node_names = [f"node{i}" for i in range(len(view.nodes))]
    rng.shuffle(node_names)
    node_name = dict(zip(view.node, node_names, strict=True))
    tensor_names = [f"tensor{i}" for i in range(len(view.tensors))]
    rng.shuffle(tensor_names)
    tensor_name = dict(zip(view.tensors, tensor_names, strict=True)) | {"": ""}
    order = reordered(view, rng)
    tensors = [replace(info, name=tensor_name[name]) for name, info in view.tensors.items()]
    rng.shuffle(tensors)
    other = GraphView(
        nodes=tuple(
            replace(
                node,
                name=node_name[node.name],
                inputs=tuple(tensor_name[t] for t in node.inputs),
                outputs=tuple(tensor_name[t] for t in node.outputs),
            )
            for node in order
        ),
        tensors={info.name: info for info in tensors},
        inputs=tuple(tensor_name[t] for t in view.inputs),
        outputs=tuple(tensor_name[t] for t in view.outputs),
        opset=view.opset,
    )
    ports: dict[str, Ports] = {node_name[n]: p for n, p in problem.ports.items()}
    costs = replace(
        problem.costs,
        nodes={node_name[n]: replace(c, node=node_name[n]) for n, c in problem.costs.nodes.items()},
    )
    classification = Classification(
        classes={node_name[n]: c for n, c in problem.classification.classes.items()},
        contained=frozenset(Use(node_name[u.node], u.position) for u in problem.classification.contained),
        taint_through_decisions=problem.classification.taint_through_decisions,
    )
    fixed = {node_name[n]: v for n, v in problem.fixed.items()}
    return node_name, replace(
        problem,
        view=other,
        ports=ports,
        costs=costs,
        classification=classification,
        fixed=fixed,
    )


@draws
@settings(max_examples=100, deadline=None, derandomize=True)
def test_names_and_order_decide_nothing(random_problem, rng):
    problem = random_problem(rng, most_nodes=20)
    # With several Casts of one tensor in the given graph, the first is the one that is reused.
    casts = [node.inputs[0] for node in problem.view.nodes if node.op.op_type == "Cast"]
    if len(set(casts)) < len(casts):
        problem = random_problem(rng, most_nodes=20, casts=False)
    node_name, other = renamed(problem, rng)
    for name in EVERY:
        plan, other_plan = planned(problem, name), planned(other, name)
        before = {node_name[d.node]: (d.precision, d.decided_by) for d in plan.decisions}
        assert {d.node: (d.precision, d.decided_by) for d in other_plan.decisions} == before, name
        assert other_plan.predicted_us == pytest.approx(plan.predicted_us), name
