"""A runtime is a value: one that the program does not know plans, runs, profiles, verifies and trains."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from campo_onnx import Options, Precision, oplists, optimize_model
from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.verify import verify
from campo_onnx.costs.choose import costs_for
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import DeviceUnavailableError, ModelError, UsageError
from campo_onnx.export.optimizers import Momentum
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.pipeline import Optimized
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import machine, processor_for, runtime_called, temporary_runtime
from campo_onnx.targets.detect import resolve_target, this_cpu
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate
from tests.runtime.toy import BF16_CPU, PRODUCTS, Toy, ToyProgram
from tests.training.momentum_step import LR, MOMENTUM, batch, first_state, gradient_model

GRAPH = Path(__file__).parents[1] / "data" / "mlp.onnx"
OPTIONS = Options(target=BF16_CPU, lists=oplists("campo"), low=Precision.BF16)


@pytest.fixture(autouse=True)
def toy() -> Iterator[Toy]:
    with temporary_runtime(Toy()) as _:
        yield Toy()


@pytest.fixture
def imported() -> Imported:
    return import_model(GRAPH)


@pytest.fixture
def planned() -> Optimized:
    return optimize_model(GRAPH, OPTIONS)


def test_its_kernels_decide_what_may_be_low(planned: Optimized) -> None:
    ops = {planned.imported.view.node[name].op.op_type for name in planned.plan.low_nodes}
    assert ops & PRODUCTS
    assert ops <= PRODUCTS | {"Relu", "Transpose"}
    refused = [d for d in planned.plan.decisions if d.decided_by is Reason.KERNEL]
    assert "the toy provider has no bf16 kernel for Gelu" in {d.reason for d in refused}
    assert not optimize_model(GRAPH, replace(OPTIONS, low=Precision.FP16)).plan.low_nodes


def test_sums_in_the_low_precision_stay_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "sums_low", lambda self, signature, *_: signature.op.op_type == "MatMul")
    plan = optimize_model(GRAPH, OPTIONS).plan
    kept = [d for d in plan.decisions if d.decided_by is Reason.SUMS_LOW]
    assert {d.reason for d in kept} == {"the toy provider adds the terms of MatMul in bf16 itself"}
    assert not {d.node for d in kept} & plan.low_nodes


def test_what_it_computes_is_what_is_planned(planned: Optimized) -> None:
    here, feeds = machine("cpu", runtime="toy"), synthesize(planned.imported.view)
    fp32, other = (run(planned.imported.model, feeds, where) for where in (here, machine("cpu")))
    mixed = run(planned.model, feeds, here)
    for name, value in fp32.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-6)
        error = float(np.linalg.norm(mixed[name] - value) / np.linalg.norm(value))
        assert error < 16 * 2**-8, name  # some roundings of BF16
    assert any(not np.array_equal(mixed[name], value) for name, value in fp32.items())


def test_a_profile_is_of_its_times(imported: Imported) -> None:
    timer = NodeTimer(machine=machine("cpu", runtime="toy"), store=Store())
    profile = take_profile(imported, synthesize(imported.view), timer, BF16_CPU, steps=2)
    assert profile.machine.runtime == "toy"
    times = profile.fp32_us()
    for node in imported.view.nodes:
        if node.op.op_type in PRODUCTS:
            assert times[node.name] >= 10_000
    assert set(profile.table["measured"]) == {"trace", "constant"}


def test_costs_are_measured_in_it(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campo_onnx.costs.measured._CASTS", 3)
    problem = optimize_model(GRAPH, OPTIONS).problem
    with Store() as store:
        evidence = Evidence(store=store)
        table = costs_for(problem.view, problem.ports, BF16_CPU, Precision.BF16, CostSource.MEASURE, evidence)
        assert {one.runtime for one in store.machines()} == {"toy"}
    products = [n.name for n in problem.view.nodes if n.op.op_type == "MatMul"]
    assert all(table.nodes[name].fp32_us > table.nodes[name].low_us for name in products)


def test_a_plan_is_verified_in_it(planned: Optimized) -> None:
    here = machine("cpu", runtime="toy")
    verified = verify(planned, OPTIONS, lambda graphs: bench(graphs, here, steps=8))
    (attempt,) = verified.attempts
    assert attempt.result.machine.runtime == "toy"
    assert verified.won


def test_a_failing_graph_is_a_row(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ModelError("the graph fails while it runs", why="a toy breaks")

    monkeypatch.setattr(ToyProgram, "run", fail)
    result = bench([Graph(name="a", imported=imported)], machine("cpu", runtime="toy"), steps=2)
    assert "a toy breaks" in result.rows[0].failure


def test_it_trains() -> None:
    update = WeightUpdate(optimizer=Momentum(momentum=MOMENTUM), clip_norm=1.0, accumulate=2)
    mixed = optimize_model(gradient_model(), replace(OPTIONS, strategy="torch-amp")).model
    states = {}
    for runtime, model in (("toy", gradient_model()), ("auto", gradient_model()), ("mixed", mixed)):
        session = TrainingSession(
            model,
            first_state(),
            update=update,
            settings={"lr": LR},
            provider="cpu",
            runtime="toy" if runtime == "mixed" else runtime,
        )
        for number in range(6):
            session.step(batch(number))
        states[runtime] = session.state()
    for name, value in states["toy"].items():
        np.testing.assert_allclose(value, states["auto"][name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(states["mixed"][name], value, rtol=0.05)


def test_it_is_chosen_by_name() -> None:
    assert runtime_called("toy").name == "toy"
    assert processor_for("auto", "toy") == "cpu"
    with pytest.raises(DeviceUnavailableError, match="the toy runs on no GPU"):
        processor_for("cuda", "toy")
    chosen, note = resolve_target("auto", "toy")
    assert chosen == this_cpu("toy")
    assert chosen.runtime.name == "toy"
    assert "toy" in note
    with pytest.raises(UsageError, match=r"unknown runtime 'tox'.*Choose one of auto, onnxruntime.*, toy"):
        runtime_called("tox")


def test_the_toy_is_small() -> None:
    assert len((Path(__file__).parent / "toy.py").read_text(encoding="utf-8").splitlines()) < 150
