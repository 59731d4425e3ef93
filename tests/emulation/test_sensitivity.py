"""Errors of single roundings, and of whole plans: what is emulated is what a plan rounds."""

import math
import random
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx import Options, Precision, oplists, target
from campo_onnx.emulation import sensitivity
from campo_onnx.emulation.adjoint import reverse
from campo_onnx.emulation.affordable import nominal_step_s
from campo_onnx.emulation.batches import draw_batches
from campo_onnx.emulation.drift import Reference
from campo_onnx.emulation.emulated_steps import EmulatedSteps
from campo_onnx.emulation.first_order import first_order, squared_error
from campo_onnx.emulation.frontier import measured_frontier
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.rounded import with_roundings
from campo_onnx.emulation.sensitivity import (
    MOST_RUNS,
    _Groups,
    measure_sensitivities,
    references_of,
    runs_for,
)
from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.roundings import Rounding, roundings
from campo_onnx.optimize.strategies.optimal import answer, free_nodes
from campo_onnx.planning.frontier import least_error_within
from campo_onnx.planning.pipeline import optimize, problem_of
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

DATA = Path(__file__).parents[1] / "data"


def posed(name, low=Precision.FP16):
    options = Options(target=target("v100").captured, lists=oplists("campo"), low=low, min_gain=0.0)
    imported = import_model(DATA / f"{name}.onnx")
    return imported, problem_of(imported, options), options


def batch_of(imported):
    return next(draw_batches(imported.view)).feeds


@pytest.mark.parametrize("name", ["mlp", "alexnet_like"])
@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
def test_the_roundings_of_a_plan_are_what_the_plan_computes(name, low):
    """To the bit, for random sets of low nodes: none is missing, and none too many."""
    imported, problem, _ = posed(name, low)
    free, feeds, here = free_nodes(problem), batch_of(imported), machine("cpu", 1)
    every = roundings(problem, free)
    for seed in range(4):
        rng = random.Random(f"{name} {seed}")
        chosen = frozenset(node for node in free if rng.random() < (0.2, 0.5, 0.8, 1.0)[seed])
        plan = make_plan(
            problem, answer(problem, chosen, frozenset(), lower_bound_us=0.0), strategy="", lists=""
        )
        expected = run(seeded(emulate(rewrite(imported, plan))), feeds, here)
        group = [one for one in every if one.is_there(chosen)]
        actual = run(with_roundings(seeded(imported.model), group, problem), feeds, here)
        exact = run(seeded(imported.model), feeds, here)
        assert any(not np.array_equal(expected[output], exact[output]) for output in exact)
        for output, value in expected.items():
            np.testing.assert_array_equal(actual[output], value, err_msg=f"{output} {sorted(chosen)}")


def test_squared_errors_of_outputs_that_move_by_a_known_share():
    imported, _, _ = posed("mlp")
    (reference,) = references_of(imported, [batch_of(imported)])
    kinds = {min(v.ndim, 2) for v in reference.outputs.values() if v.dtype.kind == "f"}
    moved = [(n, v * np.float32(1.125) if v.dtype.kind == "f" else v) for n, v in reference.outputs.items()]
    assert reference.squared_error_of(reference.outputs.items()) == 0.0
    assert reference.squared_error_of(moved) == pytest.approx(len(kinds) / 64, rel=1e-5)
    name, value = moved[0]
    broken = [(name, np.full_like(value, np.inf)), *moved[1:]]
    assert reference.squared_error_of(broken) == math.inf


def steps_of(imported, feeds=None):
    return EmulatedSteps(references_of(imported, [batch_of(imported)] if feeds is None else feeds))


@cache
def one_by_one(name):
    """Errors of all roundings of a graph, each of its own, and what was told of the progress."""
    imported, problem, _ = posed(name)
    told = []
    single = measure_sensitivities(
        problem, steps_of(imported), tell=lambda done, most: told.append((done, most))
    )
    return single, told


@pytest.mark.parametrize("name", ["mlp", "alexnet_like"])
@pytest.mark.parametrize("has_rules", [True, False])
def test_with_few_runs_neighbours_share_what_they_do_together(name, has_rules, monkeypatch):
    imported, problem, _ = posed(name)
    steps, (single, told) = steps_of(imported), one_by_one(name)
    assert (single.together, single.directions) == (0, 0)
    assert single.runs == len(single.squared_errors) == len(told)
    if not has_rules:
        monkeypatch.setattr(reverse, "RULES", {})
    few = measure_sensitivities(problem, steps, most_runs=9, directions=4)
    assert few.directions == (4 if has_rules else 0)
    assert few.runs <= 9
    assert few.together > 0
    assert few.squared_errors.keys() == single.squared_errors.keys()
    whole = measure_sensitivities(problem, steps, most_runs=1)
    assert (len(set(whole.squared_errors.values())) == 1) is not has_rules
    if has_rules:
        exact, near = (math.sqrt(sum(one.squared_errors.values())) for one in (single, few))
        assert exact / 4 < near < exact * 4


def test_first_order_is_what_single_roundings_do():
    """Where nothing chooses: rectifiers and poolings of other values change a gradient at once."""
    imported, problem, _ = posed("mlp")
    steps = steps_of(imported)
    single = one_by_one("mlp")[0].squared_errors
    model = first_order(problem, steps.references, [*single])
    sums = [model.sums(steps.references[0], direction) for direction in range(16)]
    factors = [
        math.sqrt(squared_error([one[rounding] for one in sums]) / single[rounding])
        for rounding in model.outputs
        if single[rounding]
    ]
    assert len(factors) > 60
    assert 0.75 < np.quantile(factors, 0.05) < np.quantile(factors, 0.95) < 1.33


def test_gradients_do_not_wait_for_each_other():
    """Each is read by what tells its roundings, and dropped, before the next ones are computed."""
    imported, problem, _ = posed("bert2_mlm_sdpa")
    every = roundings(problem, free_nodes(problem))
    model = first_order(problem, steps_of(imported).references, every).model
    onnx.checker.check_model(model)
    added = model.graph.node[len(imported.model.graph.node) :]
    at_end = sorted(added, key=lambda node: node.name.startswith("rounding/"))
    assert {node.name for node in at_end} == {node.name for node in added}
    assert _most_waiting(added) < _most_waiting(at_end) / 3


def _most_waiting(nodes):
    """Tensors that are computed, and read later, at most."""
    last = {name: index for index, node in enumerate(nodes) for name in node.input}
    waiting, most = set(), 0
    for index, node in enumerate(nodes):
        waiting |= {name for name in node.output if last.get(name, -1) > index}
        waiting = {name for name in waiting if last[name] > index}
        most = max(most, len(waiting))
    return most


def test_runs_are_as_many_as_ten_minutes_hold(monkeypatch):
    imported, problem, _ = posed("mlp")
    assert runs_for(problem.view, 1) == MOST_RUNS
    steps = steps_of(imported)
    step_s = nominal_step_s(problem.view)
    monkeypatch.setattr(sensitivity, "_RUNS_S", 20.5 * step_s)
    assert [runs_for(problem.view, batches) for batches in (1, 2, 100)] == [20, 10, 1]
    measured = measure_sensitivities(problem, steps)
    assert 0 < measured.runs <= 20
    assert measured.together > 0


def test_what_overflows_is_infinite_to_first_order_too():
    imported, problem, _ = posed("mlp")
    feeds = dict(batch_of(imported)) | {"input0": np.full((8, 784), 1e5, np.float32)}
    measured = measure_sensitivities(problem, steps_of(imported, [feeds]), most_runs=5)
    broken = {one.tensor for one, error in measured.squared_errors.items() if error == math.inf}
    assert "input0" in broken


def test_killed_work_resumes(tmp_path, monkeypatch):
    imported, problem, _ = posed("mlp")
    references = references_of(imported, [batch_of(imported)])

    def stop(done, most):
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), EmulatedSteps(references, tmp_path) as steps:
        measure_sensitivities(problem, steps, tell=stop)
    ran = []
    squared_error_of = Reference.squared_error_of
    monkeypatch.setattr(
        Reference, "squared_error_of", lambda self, actual: ran.append(1) or squared_error_of(self, actual)
    )
    with EmulatedSteps(references, tmp_path) as steps:
        again = measure_sensitivities(problem, steps)
    assert len(ran) == len(again.squared_errors) - 30
    assert again == measure_sensitivities(problem, EmulatedSteps(references))
    other = [{**references[0].feeds, "input0": references[0].feeds["input0"] + 1}]
    ran.clear()
    with EmulatedSteps(references_of(imported, other), tmp_path) as steps:
        measure_sensitivities(problem, steps)
    assert len(ran) == len(again.squared_errors)  # another batch


def test_large_errors_do_not_hide_what_small_ones_do_together():
    """One rounding is most of the error, as estimated; the others choose otherwise, and are far larger."""
    every = [Rounding(tensor=f"t{i}", producer=f"n{i}") for i in range(9)]
    estimates = {one: 1.0 if one is every[4] else 1e-6 for one in every}
    truth = {one: 1.0 if one is every[4] else 1e-3 for one in every}
    groups = _Groups(lambda some: sum(truth[one] for one in some), estimates, every, 10)
    groups.split(10)
    assert groups.shared() == pytest.approx(truth)
    assert groups.runs <= 10


def test_several_batches_are_averaged():
    imported, problem, _ = posed("mlp")
    drawn = [batch.feeds for batch in draw_batches(imported.view)][:2]
    assert len(drawn) == 2
    one, other, both = (
        measure_sensitivities(problem, steps_of(imported, feeds)) for feeds in (drawn[:1], drawn[1:], drawn)
    )
    for rounding, error in both.squared_errors.items():
        mean = (one.squared_errors[rounding] + other.squared_errors[rounding]) / 2
        assert error == pytest.approx(mean)
    assert both.runs == 2 * len(both.squared_errors)


def test_the_frontier_of_a_graph_is_near_what_its_plans_compute():
    imported, problem, options = posed("alexnet_like")
    frontier = measured_frontier(imported, problem, options, [batch_of(imported)])
    assert len(frontier.plans) > 2
    fastest, exact = frontier.plans[0], frontier.plans[-1]
    assert fastest.plan.low_nodes == optimize(DATA / "alexnet_like.onnx", options).plan.low_nodes
    assert (exact.point.error, exact.emulated_error) == (0.0, 0.0)
    assert all(0.3 < factor < 3.0 for factor in frontier.factors)
    assert len(frontier.factors) == len(frontier.plans) - 1
    for one in frontier.plans:
        assert (one.point.time_us, one.speedup) == pytest.approx((one.plan.predicted_us, one.plan.speedup))
        assert (one.low_nodes, one.casts) == (len(one.plan.low_nodes), len(one.plan.casts))
    assert any(one.casts for one in frontier.plans)
    between = least_error_within(frontier.plans, frontier.plans[1].point.time_us)
    assert between == frontier.plans[1]
    assert Reason.FRONTIER_LOW in {d.decided_by for d in between.plan.decisions}
    with pytest.raises(UsageError, match="the fastest is predicted to take"):
        least_error_within(frontier.plans, fastest.point.time_us / 2)


def test_what_cannot_be_measured_is_told():
    imported, problem, options = posed("mlp")
    with pytest.raises(UsageError, match="no batch"):
        references_of(imported, [])
    feeds = {
        name: np.full_like(v, np.nan) if v.dtype.kind == "f" else v for name, v in batch_of(imported).items()
    }
    with pytest.raises(ModelError, match="the FP32 step is not finite"):
        references_of(imported, [feeds])
    with pytest.raises(UsageError, match="measure nothing"):
        measure_sensitivities(problem, steps_of(imported), most_runs=0)
    assert isinstance(references_of(imported, [batch_of(imported)])[0], Reference)
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (int64[2] y) { y = Cast <to = 7> (x) }'
    without_loss = import_model(onnx.parser.parse_model(text))
    with pytest.raises(UsageError, match="returns no floating-point values"):
        references_of(without_loss, [{"x": np.ones(2, np.float32)}])
    done = import_model(optimize(DATA / "alexnet_like.onnx", options).model)
    with pytest.raises(UsageError, match="result of campo-onnx already"):
        measured_frontier(done, problem, options, [batch_of(imported)])


def test_results_that_cannot_be_kept_are_in_memory(tmp_path, monkeypatch):
    imported, _, _ = posed("mlp")
    with EmulatedSteps(references_of(imported, [batch_of(imported)]), tmp_path) as steps:
        assert steps.once("a", lambda: [1.0]) == [1.0]

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.write", full)
        assert steps.once("b", lambda: [2.0]) == [2.0]
        monkeypatch.undo()
        assert steps.once("a", lambda: [3.0]) == [1.0]
        assert steps.once("c", lambda: [4.0]) == [4.0]
    with EmulatedSteps(references_of(imported, [batch_of(imported)]), tmp_path) as steps:
        assert [steps.once(key, lambda: [5.0]) for key in "abc"] == [[1.0], [5.0], [5.0]]
