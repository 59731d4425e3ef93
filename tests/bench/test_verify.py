"""Verification and repair, on a device whose true costs the test makes up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.bench import verify as verification
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.bench.verify import scaled_costs, verify
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import ModelError
from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, optimize
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import target

GRAPH = Path(__file__).parents[1] / "data" / "alexnet_like.onnx"
# Casts and launches next to nothing, so that the small graph is worth rewriting.
EAGER = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
OPTIONS = Options(target=EAGER, lists=preset("campo"), pads=False)

Truth = Callable[[CostTable], CostTable]


def dearer_low(factor: float) -> Truth:
    def truth(costs: CostTable) -> CostTable:
        nodes = {n: replace(c, low_us=c.low_us * factor) for n, c in costs.nodes.items()}
        return replace(costs, nodes=nodes)

    return truth


def dearer_casts(constant_us: float) -> Truth:
    return lambda costs: replace(costs, cast=CastModel(r_us=costs.cast.r_us, c_i_us=constant_us))


@dataclass
class FakeDevice:
    """Measures a graph by the true costs of the nodes that are low in it."""

    planned: Optimized
    truth: Truth
    failing: tuple[str, ...] = ()
    measured: list[frozenset[str]] = field(default_factory=list)

    def true_us(self, graph: Graph) -> float:
        problem = self.planned.problem
        true = replace(problem, costs=self.truth(problem.costs))
        return true.predicted_us(self.low_of(graph))

    def low_of(self, graph: Graph) -> frozenset[str]:
        return frozenset(self._typed_low(graph.imported.view)) - frozenset(
            self._typed_low(self.planned.imported.view)
        )

    def _typed_low(self, view: GraphView) -> Iterator[str]:
        low = self.planned.problem.low.onnx_dtype
        for name, ports in self.planned.problem.ports.items():
            node = view.node[name]
            tensors = [node.inputs[i] for i in ports.low_inputs] + [
                node.outputs[i] for i in ports.low_outputs
            ]
            if any(view.tensors[tensor].dtype == low for tensor in tensors if tensor):
                yield name

    def __call__(self, graphs: Sequence[Graph]) -> BenchResult:
        fp32, mixed = (self.true_us(graph) for graph in graphs)
        self.measured.append(self.low_of(graphs[1]))
        assert not self.low_of(graphs[0])
        verdict = Outcome.NO_DIFFERENCE if abs(fp32 / mixed - 1) < 0.01 else None
        verdict = verdict or (Outcome.FASTER if mixed < fp32 else Outcome.SLOWER)
        rows = (self.row(graphs[0], fp32, Outcome.BASELINE), self.row(graphs[1], mixed, verdict, fp32))
        return BenchResult(
            machine=machine("cpu"),
            rows=rows,
            steps=10,
            measured_at="2026-01-01T00:00:00+00:00",
            samples_us={},
            tolerance=0.01,
        )

    def row(self, graph: Graph, us: float, verdict: Outcome, fp32_us: float = 0.0) -> BenchRow:
        if graph.name in self.failing:
            failed = Outcome.FAILED
            return BenchRow(name=graph.name, step_us=None, speedup=None, verdict=failed, failure="no memory")
        ratio = fp32_us / us
        return BenchRow(
            name=graph.name,
            step_us=Interval(median=us, low=us, high=us),
            speedup=Interval(median=ratio, low=ratio, high=ratio) if fp32_us else None,
            verdict=verdict,
        )


@pytest.fixture
def planned() -> Optimized:
    optimized = optimize(GRAPH, OPTIONS)
    assert optimized.plan.low_nodes
    return optimized


@pytest.fixture
def no_timing(planned, monkeypatch):
    """Timing nodes one by one finds what was planned with."""
    asked = []

    def costs_for(view, *_):
        asked.append(view)
        return replace(planned.problem.costs, source="measure")

    monkeypatch.setattr(verification, "costs_for", costs_for)
    return asked


def test_a_plan_that_wins_is_returned_as_it_is(planned):
    fake = FakeDevice(planned, truth=lambda costs: costs)
    done = verify(planned, OPTIONS, fake, repairs=3)
    assert done.won
    assert done.returned is planned
    assert fake.measured == [planned.plan.low_nodes]


@pytest.mark.parametrize("factor", [20.0, None])
def test_a_plan_that_does_not_win_gives_way_to_fp32(planned, factor):
    truth = dearer_low(factor) if factor else equal_times(planned)
    done = verify(planned, OPTIONS, FakeDevice(planned, truth))
    assert not done.won
    assert not done.returned.plan.casts
    assert done.returned.plan.lower_bound_us == planned.plan.lower_bound_us > 0
    ops = [node.op_type for node in done.returned.model.graph.node]
    assert ops == [node.op_type for node in planned.imported.model.graph.node]
    reasons = {d.reason for d in done.returned.plan.decisions if d.decided_by is Reason.VERIFIED_SLOWER}
    assert len(reasons) == 1
    assert ("slower" if factor else "no difference") in reasons.pop()


def equal_times(planned: Optimized) -> Truth:
    free = CastModel(r_us=0.0, c_i_us=0.0)

    def truth(costs: CostTable) -> CostTable:
        nodes = {n: replace(c, low_us=c.fp32_us) for n, c in costs.nodes.items()}
        return replace(costs, nodes=nodes, cast=free)

    return truth


def test_a_plan_without_low_nodes_needs_no_measuring(planned):
    nothing = optimize(GRAPH, replace(OPTIONS, strategy="fp32"))
    fake = FakeDevice(planned, truth=lambda costs: costs)
    assert verify(nothing, OPTIONS, fake).returned is nothing
    assert not fake.measured


@pytest.mark.parametrize(("low_is_dearer_by", "is_raised"), [(20.0, True), (0.01, False), (None, False)])
def test_a_file_that_is_low_already_is_what_is_measured_against(
    planned, low_is_dearer_by, is_raised, no_timing, monkeypatch
):
    """The plan raises everything; whether that is faster than the file is measured, and else it stays."""
    low_model = onnx.ModelProto()
    low_model.CopyFrom(planned.model)
    del low_model.metadata_props[:]
    dear = replace(OPTIONS, strategy="fp32")
    raised = optimize(low_model, dear)
    assert raised.problem.starts_low
    assert not raised.plan.low_nodes
    truth = dearer_low(low_is_dearer_by) if low_is_dearer_by else equal_times(raised)
    names = []

    def measure(graphs: Sequence[Graph]) -> BenchResult:
        fake = FakeDevice(raised, truth)
        true = replace(raised.problem, costs=truth(raised.problem.costs))
        given_us, planned_us = (true.predicted_us(low) for low in (raised.problem.low_as_given, frozenset()))
        names.append([graph.name for graph in graphs])
        assert graphs[0].imported is raised.imported.as_given
        verdict = Outcome.FASTER if planned_us < given_us else Outcome.SLOWER
        verdict = verdict if planned_us != given_us else Outcome.NO_DIFFERENCE
        first = fake.row(graphs[0], given_us, Outcome.BASELINE)
        rows = (first, fake.row(graphs[1], planned_us, verdict, given_us))
        return BenchResult(
            machine=machine("cpu"),
            rows=rows,
            steps=10,
            measured_at="2026-01-01T00:00:00+00:00",
            samples_us={},
            tolerance=0.01,
        )

    done = verify(raised, dear, measure, repairs=3)
    assert names[0] == ["as given", "fp32"]
    assert done.won is is_raised
    if is_raised:
        assert done.returned is raised
    else:
        assert done.returned.model == low_model
        assert done.returned.plan.low_nodes == raised.problem.low_as_given
        told = [d.reason for d in done.returned.plan.decisions if d.decided_by is Reason.VERIFIED_AS_GIVEN]
        assert told
        assert "as the file has it" in told[0]


def test_a_file_that_stays_as_it_is_needs_no_measuring(planned):
    low_model = onnx.ModelProto()
    low_model.CopyFrom(planned.model)
    del low_model.metadata_props[:]
    again = optimize(low_model, OPTIONS)
    assert again.plan.low_nodes == again.problem.low_as_given != frozenset()
    fake = FakeDevice(again, truth=lambda costs: costs)
    assert verify(again, OPTIONS, fake).returned is again
    assert not fake.measured


def test_a_step_that_does_not_run_gives_way_to_fp32(planned):
    done = verify(planned, OPTIONS, FakeDevice(planned, lambda costs: costs, failing=("fp16",)))
    assert not done.won
    assert any("no memory" in d.reason for d in done.returned.plan.decisions)


def test_an_fp32_step_that_does_not_run_is_an_error(planned):
    with pytest.raises(ModelError, match="no memory"):
        verify(planned, OPTIONS, FakeDevice(planned, lambda costs: costs, failing=("fp32",)))


def test_half_a_measurement_decides_nothing(planned):
    fake = FakeDevice(planned, lambda costs: costs)
    with pytest.raises(KeyboardInterrupt):
        verify(planned, OPTIONS, lambda graphs: replace(fake(graphs), interrupted=True))


def test_repair_times_nodes_first_and_then_learns_from_the_step(planned, no_timing):
    # Some products gain much, some little; with casts this dear only the former pay.
    share = np.median([c.cast_us for c in planned.plan.casts])
    fake = FakeDevice(planned, dearer_casts(constant_us=float(_gain_per_cast_us(planned) * 1.5 + share)))
    done = verify(planned, OPTIONS, fake, repairs=6)
    assert no_timing
    assert len(fake.measured) > 1
    sizes = [len(low) for low in fake.measured]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(fake.measured)) == len(fake.measured)
    if done.won:
        assert done.returned.plan.low_nodes == fake.measured[-1]
    assert fake.true_us(_mixed_graph(done.returned)) <= fake.true_us(_fp32_graph(planned))


def _gain_per_cast_us(planned: Optimized) -> float:
    return (planned.plan.fp32_us - planned.plan.predicted_us) / len(planned.plan.casts)


def _mixed_graph(optimized: Optimized) -> Graph:
    from campo_onnx.ir.importer import import_model

    return Graph(name="kept", imported=import_model(optimized.model))


def _fp32_graph(optimized: Optimized) -> Graph:
    return Graph(name="fp32", imported=optimized.imported)


def test_repair_ends_when_planning_again_changes_nothing(planned, no_timing):
    by_lists = replace(OPTIONS, strategy="tf-amp")
    fixed = optimize(GRAPH, by_lists)
    fake = FakeDevice(fixed, dearer_low(20.0))
    done = verify(fixed, by_lists, fake, repairs=5)
    assert not done.won
    assert len(fake.measured) == 1


def test_scaled_costs_explain_the_measured_step(planned):
    fake = FakeDevice(planned, dearer_low(3.0))
    result = fake((_fp32_graph(planned), _mixed_graph(planned)))
    problem = replace(planned.problem, costs=scaled_costs(planned.problem.costs, planned.plan, result))
    fp32, mixed = (row.step_us.median for row in result.rows)
    assert problem.predicted_us(planned.plan.low_nodes) / problem.predicted_us(frozenset()) == pytest.approx(
        mixed / fp32, rel=0.02
    )


def test_scaled_costs_say_that_they_are(planned, no_timing):
    def casts_and_products_cost_more(costs: CostTable) -> CostTable:
        return dearer_low(3.0)(dearer_casts(1.0)(costs))

    fake = FakeDevice(planned, casts_and_products_cost_more)
    scaled = scaled_costs(
        planned.problem.costs, planned.plan, fake((_fp32_graph(planned), _mixed_graph(planned)))
    )
    assert scaled.source is CostSource.SCALED
    assert {cost.source for cost in scaled.nodes.values()} == {CostSource.SCALED}
    done = verify(planned, OPTIONS, fake, repairs=6)
    sources = [attempt.optimized.plan.source for attempt in done.attempts]
    assert "scaled" in sources
    assert sources == sorted(sources, key=["datasheet", "measure", "scaled"].index)
