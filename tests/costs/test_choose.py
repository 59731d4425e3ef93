"""Where costs come from, and what is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling
from campo_onnx.costs.choose import costs_for, measured_costs
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import DeviceMismatchError, DeviceUnavailableError, ProfileError, UsageError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.measure import node_timer
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.profiler import take_profile
from campo_onnx.measure.store import Store
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime.kernels import has_kernel
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import is_here, target_of
from campo_onnx.targets.target import target
from tests.timed_by_bytes import time_node

DATA = Path(__file__).parent.parent / "data"
CPU, H200 = target("cpu"), target("h200")
HERE = machine("cpu", threads=1)
LOW = Precision.FP16


@pytest.fixture(scope="module")
def imported() -> Imported:
    return import_model(DATA / "mlp.onnx")


@pytest.fixture(scope="module")
def ports(imported: Imported) -> Mapping[str, Ports]:
    return {node.name: ports_of(imported.view.signature(node.name), LOW) for node in imported.view.nodes}


@pytest.fixture(scope="module", autouse=True)
def _nodes_take_what_their_bytes_say() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_timer, "time_node", time_node)
        yield


@pytest.fixture(scope="module")
def timer() -> NodeTimer:
    return NodeTimer(machine=HERE, store=Store())


@pytest.fixture(scope="module")
def calibration(timer: NodeTimer) -> Calibration:
    sampling = Sampling(count=9, largest_bytes=1e5, largest_flops=1e7)
    workload = Workload(ops=("Add",), sampling=sampling, casts=3, largest_cast_elements=1 << 14)
    return calibrate(workload, timer, target_of(HERE), LOW)


def test_datasheet_needs_no_machine(imported: Imported, ports: Mapping[str, Ports]) -> None:
    table = costs_for(imported.view, ports, H200, LOW)
    assert table.source == "datasheet"


def test_measuring_here_finds_that_fp16_loses_on_a_cpu(
    imported: Imported, ports: Mapping[str, Ports], timer: NodeTimer
) -> None:
    seen: list[tuple[int, int]] = []
    table = measured_costs(imported.view, ports, CPU, LOW, timer, lambda *done: seen.append(done))
    kept = len(timer.store)
    assert measured_costs(imported.view, ports, CPU, LOW, timer) == table
    assert len(timer.store) == kept  # measured once
    assert seen[-1][0] == seen[-1][1]
    assert table.source == "measure"
    emulated = [n.name for n in imported.view.nodes if not has_kernel(n.op, 20, "cpu", LOW)]
    assert len(emulated) > 30
    for cost in table.nodes.values():  # FP32 kernels between Casts, and nothing that is lower for good
        assert cost.gain_us <= 0, cost.node
    fp32_us = sum(table.nodes[name].fp32_us for name in emulated)
    assert sum(table.nodes[name].low_us for name in emulated) > 1.1 * fp32_us
    assert table.cast.cast_us(1000) == pytest.approx(3 * (1 + 6))


def test_auto_measures_the_device_that_is_here() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[8,8] x) => (float[8,8] y) { y = Relu(x) }
    """)
    view = import_model(model).view
    own = {node.name: ports_of(view.signature(node.name), LOW) for node in view.nodes}
    assert is_here(CPU)
    with Store() as store:
        costs = costs_for(view, own, CPU, LOW, CostSource.AUTO, Evidence(store=store, threads=1))
    assert costs.source == "measure"
    assert costs.nodes[view.nodes[0].name].source == "measure"


def test_auto_takes_the_calibration_that_ships_and_falls_back_to_figures(
    imported: Imported, ports: Mapping[str, Ports]
) -> None:
    assert costs_for(imported.view, ports, H200, LOW, CostSource.AUTO).source == "model"
    assert costs_for(imported.view, ports, target("h100"), LOW, CostSource.AUTO).source == "datasheet"


@pytest.mark.skipif(is_here(H200), reason="this machine has an H200")
def test_nothing_is_measured_on_an_absent_gpu(imported: Imported, ports: Mapping[str, Ports]) -> None:
    with pytest.raises((DeviceUnavailableError, DeviceMismatchError)):
        costs_for(imported.view, ports, H200, LOW, CostSource.MEASURE)


def test_model_without_a_calibration(imported: Imported, ports: Mapping[str, Ports]) -> None:
    with pytest.raises(UsageError, match="campo-onnx calibrate"):
        costs_for(imported.view, ports, target("t4"), LOW, CostSource.MODEL)


def test_model_with_and_without_a_profile(
    imported: Imported, ports: Mapping[str, Ports], calibration: Calibration, timer: NodeTimer
) -> None:
    view = imported.view
    plain = costs_for(view, ports, CPU, LOW, CostSource.AUTO, Evidence(calibration=calibration))
    assert plain.source == "model"
    assert f"calibrated on {calibration.machine.device}" in plain.basis[0]
    assert calibration.measured_at in plain.basis[0]
    profile = take_profile(imported, synthesize(view), timer, target_of(HERE), steps=2)
    evidence = Evidence(calibration=calibration, profile=profile)
    profiled = costs_for(view, ports, CPU, LOW, CostSource.MODEL, evidence)
    assert profiled.fp32_us == pytest.approx(profile.nodes_us)
    assert "from a profile of this graph" in profiled.basis[-1]
    other = import_model(DATA / "alexnet_like.onnx").view
    with pytest.raises(ProfileError, match="another graph"):
        costs_for(other, {}, CPU, LOW, CostSource.MODEL, evidence)
    foreign = replace(profile, machine=replace(HERE, device="another CPU"))
    with pytest.raises(DeviceMismatchError, match="another CPU"):
        costs_for(view, ports, CPU, LOW, CostSource.MODEL, replace(evidence, profile=foreign))


def test_a_profile_without_a_calibration_is_not_passed_over(
    imported: Imported, ports: Mapping[str, Ports], timer: NodeTimer
) -> None:
    profile = take_profile(imported, synthesize(imported.view), timer, target_of(HERE), steps=1)
    with pytest.raises(UsageError, match="no calibration of cpu"):
        costs_for(imported.view, ports, CPU, LOW, CostSource.AUTO, Evidence(profile=profile))


def test_calibration_of_another_device_or_precision(
    imported: Imported, ports: Mapping[str, Ports], calibration: Calibration
) -> None:
    evidence = Evidence(calibration=calibration)
    for wanted, precision in ((H200, LOW), (CPU, Precision.BF16)):
        with pytest.raises(DeviceMismatchError, match="calibration is of cpu in fp16"):
            costs_for(imported.view, ports, wanted, precision, CostSource.MODEL, evidence)
