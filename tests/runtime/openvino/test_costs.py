"""Costs on the real plugin: profiles, and a calibration that is filed under CPU and runtime."""

import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Effort
from campo_onnx.targets.detect import target_of
from tests.conftest import DATA

SHORT = Effort(warmup=1, repeats=5, least=3, budget_s=0.02)


@pytest.fixture(scope="module")
def timer():
    with Store() as store:
        yield NodeTimer(machine=machine("cpu", runtime="openvino"), store=store, effort=SHORT)


@pytest.mark.usefixtures("bf16_units")
def test_a_calibration_is_of_this_cpu_and_goes_on_from_the_store(timer):
    sampling = Sampling(count=16, largest_bytes=2e5, largest_flops=1e7)
    workload = Workload(ops=("Conv", "MatMul"), sampling=sampling, casts=6, largest_cast_elements=1 << 16)
    figures = target_of(timer.machine)
    calibration = calibrate(workload, timer, figures, Precision.BF16)
    assert (calibration.target.name, calibration.target.runtime.name) == (figures.name, "openvino")
    assert calibration.machine.software.startswith("OpenVINO ")
    assert calibration.failures == {}
    kinds = {("Conv", True), ("Conv", False), ("MatMul", True)}  # the second are grouped
    if figures.hardware.efficiency.unaligned < 1:
        kinds.add(("MatMul", False))  # sums of odd length, which tiles do not take
    assert {(entry.op, entry.on_tensor_cores) for entry in calibration.entries} == kinds
    assert all(entry.scores.shapes for entry in calibration.entries)
    stored = NodeTimer(machine=timer.machine, store=timer.store, only_stored=True)
    again = calibrate(workload, stored, figures, Precision.BF16)
    assert again.entries == calibration.entries
    assert again.cast == calibration.cast


@pytest.mark.usefixtures("bf16_units")
def test_nodes_are_timed_in_both_precisions(timer):
    options = Options(
        target=target_of(timer.machine),
        lists=preset("campo"),
        low=Precision.BF16,
        costs=CostSource.MEASURE,
        evidence=Evidence(store=timer.store),
    )
    table = optimize(DATA / "mlp.onnx", options).problem.costs
    assert table.source is CostSource.MEASURE
    assert {one.runtime for one in timer.store.machines()} == {"openvino"}
    assert any(cost.low_us != cost.fp32_us for cost in table.nodes.values())


def test_a_profile_is_of_the_whole_step(timer):
    imported = import_model(DATA / "mlp.onnx")
    profile = take_profile(imported, synthesize(imported.view), timer, target_of(timer.machine), steps=3)
    assert profile.machine.runtime == "openvino"
    times = profile.fp32_us()
    products = [node.name for node in imported.view.nodes if node.op.op_type in ("MatMul", "Gemm")]
    assert times.keys() >= set(products)
    assert any(times[name] > 0 for name in products)  # the plugin counts whole microseconds
    assert "trace" in set(profile.table["measured"])
    assert set(profile.table["measured"]) <= {"trace", "constant"}  # what is not executed is not timed alone
    assert times.keys() == set(imported.view.node)
    assert sum(times.values()) == pytest.approx(profile.step_us)
    assert profile.accounted is None
