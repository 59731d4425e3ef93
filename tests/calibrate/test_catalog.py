"""Calibrations found by name, what is known of devices, and what is passed over or refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx.calibrate import catalog as calibrations
from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import (
    Origin,
    file_name,
    found_calibrations,
    make_folder,
    shipped_folder,
    user_folder,
)
from campo_onnx.calibrate.knowledge import Knowledge, known_devices
from campo_onnx.calibrate.op_model import OpModel, TimeModel
from campo_onnx.costs.choose import costs_for
from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import DeviceMismatchError, ProfileError, UsageError
from campo_onnx.hardware.datasheet import devices
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.store import Execution, Store, TimingKey
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Timing
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.detect import target_of
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
LOW = Precision.FP16
CPU = machine("cpu")
GPU = Machine(
    provider="cuda", device="NVIDIA H200", driver="580", cuda="13.0", ort="1.31.1", tf32=True, threads=0
)


def calibration_of(name: str, on: Machine, precision: Precision = LOW) -> Calibration:
    figures = target(name) if name != "cpu" else target_of(on)
    return Calibration(
        machine=on,
        hardware=figures.hardware,
        precision=precision,
        execution=Execution.STREAM,
        cast=CastModel(r_us=1e-4, c_i_us=2.0),
        cast_score=0.9,
        cast_paper_score=0.8,
        host_us=1.0,
        entries=(),
        general=OpModel(features=("time",), weights=(0.5,), sigma_us=0.0, ratios=(0.4, 1.0)),
        general_time=TimeModel(features=("moved_bytes",), weights=(1e-6,), constant_us=3.0),
        failures={},
        measured_at="2026-11-21T05:01:35+00:00",
    )


def keep(calibration: Calibration, folder: Path | None = None) -> Path:
    where = folder or user_folder()
    make_folder(where)
    path = where / file_name(calibration.target, calibration.precision)
    path.write_text(calibration.to_json(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def view() -> GraphView:
    return import_model(DATA / "mlp.onnx").view


@pytest.fixture(scope="module")
def ports(view: GraphView) -> Mapping[str, Ports]:
    return {node.name: ports_of(view.signature(node.name), LOW) for node in view.nodes}


def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_name(target("h200"), LOW) == "h200-fp16.json"
    assert file_name(target("h200"), Precision.BF16, Execution.GRAPH) == "h200-bf16-graph.json"
    assert file_name(target("zen4", "openvino"), Precision.BF16) == "zen4-openvino-bf16.json"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "campo-onnx" / "calibrations"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert user_folder() == Path.home() / ".local" / "share" / "campo-onnx" / "calibrations"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert list(found_calibrations(target("t4"), LOW)) == []
    assert list(found_calibrations(target("h200"), LOW, shipped=tmp_path)) == []
    assert list(found_calibrations(target("h200"), LOW, shipped=tmp_path / "missing")) == []


def test_shipped_ones_lie_with_the_package() -> None:
    assert str(shipped_folder()).endswith("campo_onnx/calibrate/data/calibrations")


def test_the_users_own_come_first(tmp_path: Path) -> None:
    own, shipped = calibration_of("h200", GPU), replace(calibration_of("h200", GPU), host_us=9.0)
    keep(own)
    keep(shipped, tmp_path / "shipped")
    first, second = found_calibrations(target("h200"), LOW, shipped=tmp_path / "shipped")
    assert (first.origin, first.calibration, first.refusal) == (Origin.HERE, own, "")
    assert (second.origin, second.calibration, second.refusal) == (Origin.SHIPPED, shipped, "")
    assert first.file == str(user_folder() / "h200-fp16.json")


@pytest.mark.parametrize("source", [CostSource.AUTO, CostSource.MODEL])
def test_costs_take_a_shipped_calibration_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    view: GraphView,
    ports: Mapping[str, Ports],
    source: CostSource,
) -> None:
    monkeypatch.setattr(calibrations, "shipped_folder", lambda: tmp_path / "shipped")
    keep(calibration_of("a100", GPU), tmp_path / "shipped")
    assert costs_for(view, ports, target("a100"), LOW, source).source == "model"
    with pytest.raises(UsageError, match="no calibration of t4"):
        costs_for(view, ports, target("t4"), LOW, CostSource.MODEL)


def test_costs_take_what_was_calibrated_here(view: GraphView, ports: Mapping[str, Ports]) -> None:
    keep(calibration_of("cpu", CPU))
    for source in (CostSource.AUTO, CostSource.MODEL):
        table = costs_for(view, ports, target("cpu"), LOW, source)
        assert table.source == "model"
        # Its model says half the time, but a CPU runs FP32 kernels between Casts.
        assert all(cost.gain_us <= 0 for cost in table.nodes.values())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ort": "0.1"}, "ONNX Runtime was 0.1 when it was made"),
        ({"device": "another CPU"}, "the device was another CPU"),
        ({"threads": 99}, "the number of threads was 99"),
    ],
)
def test_a_calibration_that_no_longer_fits(
    change: Mapping[str, object], why: str, view: GraphView, ports: Mapping[str, Ports]
) -> None:
    path = keep(calibration_of("cpu", replace(CPU, **change)))
    (entry,) = found_calibrations(target("cpu"), LOW)
    assert why in entry.refusal
    with pytest.raises(DeviceMismatchError, match=why) as error:
        costs_for(view, ports, target("cpu"), LOW, CostSource.MODEL)
    assert str(path) in str(error.value)
    assert error.value.exit_code == 6


def test_a_file_under_a_wrong_name(tmp_path: Path) -> None:
    path = keep(calibration_of("a100", GPU))
    path.rename(path.with_name("h100-fp16.json"))
    (entry,) = found_calibrations(target("h100"), LOW)
    assert entry.refusal == "it is of a100"


def test_a_damaged_one_is_told(view: GraphView, ports: Mapping[str, Ports]) -> None:
    path = keep(calibration_of("cpu", CPU))
    path.write_text(path.read_text()[:200])
    with pytest.raises(ProfileError, match=r"cpu-fp16\.json cannot be read"):
        costs_for(view, ports, target("cpu"), LOW, CostSource.AUTO)
    cpu = {device.target.name: device for device in known_devices(None)}["cpu"]
    assert cpu.calibrations == ()
    assert "cannot be read" in cpu.problems[0]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="--output"):
        make_folder(tmp_path / "file" / "calibrations")


def knowledge() -> dict[str, Knowledge]:
    with Store() as store:
        for on in (CPU, replace(CPU, device="another CPU"), GPU):
            key = TimingKey(machine=on, signature="x")
            store.add(key, Timing(median_us=1.0, spread_us=0.0, repeats=1))
        return {entry.target.name: entry for entry in known_devices(store)}


def test_what_is_known_of_each_device() -> None:
    keep(calibration_of("h100", GPU))
    entries = knowledge()
    assert list(entries) == list(devices())
    assert {name: entry.timings for name, entry in entries.items() if entry.timings} == {"h200": 1, "cpu": 1}
    (calibration,) = entries["h100"].calibrations
    assert calibration.origin is Origin.HERE
    facts = entries["h100"].to_dict()
    assert facts["calibrations"][0]["precision"] == "fp16"
    assert facts["calibrations"][0]["model_accuracy"] is None
    json.dumps(facts)


def test_every_assumption_has_a_reason() -> None:
    for name in devices():
        assumed = target(name).assumptions
        on_a_core = {"core_gb_per_s"} & set(assumed)
        assert bool(on_a_core) == (not target(name).hardware.is_gpu and name != "cpu")
        assert set(assumed) - on_a_core == {
            "launch_us",
            "host_us",
            "bandwidth",
            "cuda_cores",
            "tensor_cores",
            "unaligned",
        }
        assert all(entry.reason for entry in assumed.values())
        assert assumed["bandwidth"].value == target(name).hardware.efficiency.bandwidth


def test_a_model_of_an_event_that_is_none_is_refused(tmp_path: Path) -> None:
    text = calibration_of("h200", GPU).to_json().replace('"moved_bytes"', '"moved_bites"')
    with pytest.raises(ProfileError, match="unknown event 'moved_bites'"):
        Calibration.from_json(text)
