"""Everything that a runtime must do: torch plans, runs, profiles, verifies and trains."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from campo_onnx import Options, Precision, oplists, optimize_model
from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.verify import verify
from campo_onnx.costs.choose import costs_for
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import DeviceUnavailableError, ModelError
from campo_onnx.export.optimizers import Momentum
from campo_onnx.hardware.datasheet import device
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.planning.pipeline import Optimized
from campo_onnx.runtime import choice
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import (
    check_precision,
    default_precision,
    machine,
    processor_for,
    runtime_called,
)
from campo_onnx.runtime.torch.program import TorchProgram
from campo_onnx.targets.detect import cpu_with_low_precision, resolve_target, this_cpu
from campo_onnx.targets.target import Target
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate
from tests.training.momentum_step import LR, MOMENTUM, batch, first_state, gradient_model

GRAPH = Path(__file__).parents[2] / "data" / "mlp.onnx"
OPTIONS = Options(
    target=Target.of(device("zen5"), "torch"),
    lists=oplists("campo"),
    low=Precision.BF16,
    strategy="torch-amp",
)


@pytest.fixture
def imported() -> Imported:
    return import_model(GRAPH)


@pytest.fixture(scope="module")
def planned() -> Optimized:
    return optimize_model(GRAPH, OPTIONS)


def test_what_it_computes_is_what_is_planned(planned: Optimized) -> None:
    here, feeds = machine("cpu", runtime="torch"), synthesize(planned.imported.view)
    fp32, other = (run(planned.imported.model, feeds, where) for where in (here, machine("cpu")))
    mixed = run(planned.model, feeds, here)
    assert planned.plan.low_nodes
    for name, value in fp32.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-6)
        error = float(np.linalg.norm(mixed[name] - value) / np.linalg.norm(value))
        assert error < 16 * 2**-8, name  # some roundings of BF16
    assert any(not np.array_equal(mixed[name], value) for name, value in fp32.items())


def test_a_profile_is_of_its_times(imported: Imported) -> None:
    timer = NodeTimer(machine=machine("cpu", runtime="torch"), store=Store())
    profile = take_profile(imported, synthesize(imported.view), timer, OPTIONS.target, steps=2)
    assert profile.machine.runtime == "torch"
    times = profile.fp32_us()
    assert sum(times.values()) == pytest.approx(profile.step_us, rel=0.01)
    products = [node.name for node in imported.view.nodes if node.op.op_type in ("MatMul", "Gemm")]
    assert products
    assert all(times[name] > 0 for name in products)


def test_costs_are_measured_in_it(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campo_onnx.costs.measured._CASTS", 3)
    here = this_cpu("torch")
    problem = optimize_model(GRAPH, replace(OPTIONS, target=here)).problem
    with Store() as store:
        evidence = Evidence(store=store)
        table = costs_for(problem.view, problem.ports, here, Precision.BF16, CostSource.MEASURE, evidence)
        assert {one.runtime for one in store.machines()} == {"torch"}
    products = [n.name for n in problem.view.nodes if n.op.op_type == "MatMul"]
    assert all(table.nodes[name].fp32_us > 0 and table.nodes[name].low_us > 0 for name in products)


def test_a_plan_is_verified_in_it(planned: Optimized) -> None:
    here = machine("cpu", runtime="torch")
    verified = verify(planned, OPTIONS, lambda graphs: bench(graphs, here, steps=4))
    assert all(attempt.result.machine.runtime == "torch" for attempt in verified.attempts)
    assert verified.attempts


def test_a_failing_graph_is_a_row(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ModelError("the step fails while it runs", why="a kernel breaks")

    monkeypatch.setattr(TorchProgram, "bound", fail)
    result = bench([Graph(name="a", imported=imported)], machine("cpu", runtime="torch"), steps=2)
    assert "a kernel breaks" in result.rows[0].failure


def test_it_trains() -> None:
    update = WeightUpdate(optimizer=Momentum(momentum=MOMENTUM), clip_norm=1.0, accumulate=2)
    mixed = optimize_model(gradient_model(), OPTIONS).model
    states = {}
    for runtime, model in (("torch", gradient_model()), ("auto", gradient_model()), ("mixed", mixed)):
        session = TrainingSession(
            model,
            first_state(),
            update=update,
            settings={"lr": LR},
            provider="cpu",
            runtime="torch" if runtime == "mixed" else runtime,
        )
        for number in range(6):
            session.step(batch(number))
        states[runtime] = session.state()
    for name, value in states["torch"].items():
        np.testing.assert_allclose(value, states["auto"][name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(states["mixed"][name], value, rtol=0.05)


def test_it_is_chosen_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes part in no choice before whole steps of it are measured."""
    assert runtime_called("torch").name == "torch"
    assert runtime_called("auto").name == "onnxruntime"
    assert Target.of(device("zen5")).runtime.name == "onnxruntime"
    assert "torch" not in {one.name for one in choice.runtimes_on_cpu()}
    for name in ("onnxruntime", "openvino"):
        kind = type(runtime_called(name))
        monkeypatch.setattr(kind, "problem", lambda self, processor: "not installed")
    assert cpu_with_low_precision() is None


def test_it_is_planned_for_where_it_runs() -> None:
    if runtime_called("torch").problem("cuda"):
        assert processor_for("auto", "torch") == "cpu"
        with pytest.raises(DeviceUnavailableError, match=r"torch cannot use CUDA: .*Choose --device cpu"):
            processor_for("cuda", "torch")
        chosen, note = resolve_target("auto", "torch")
        assert chosen == this_cpu("torch")
        assert "where torch runs" in note
    assert default_precision("torch") is Precision.BF16
    check_precision(Precision.FP16, "torch")  # on a GPU


def test_convolutions_stay_in_the_portable_form() -> None:
    from campo_onnx.lowering.place import Place
    from campo_onnx.lowering.sequence import as_it_runs
    from tests.conftest import parse_model

    graph = """
    g (float[8, 64, 6, 6] x, float[8, 64, 6, 6] dy) => (float[64, 64, 3, 3] dw) {
      images = Transpose <perm = [1, 0, 2, 3]> (x)
      kernel = Transpose <perm = [1, 0, 2, 3]> (dy)
      taps = Conv <pads = [1, 1, 1, 1]> (images, kernel)
      dw = Transpose <perm = [1, 0, 2, 3]> (taps)
    }
    """
    step = import_model(parse_model(graph))
    of = {
        name: as_it_runs(step, Place(target=replace(Target.of(device("zen5"), name))), chooses=True)
        for name in ("torch", "openvino")
    }
    assert of["torch"] is step
    assert of["openvino"] is not step
