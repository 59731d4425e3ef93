"""Counters of single nodes: read once, kept, and only fitted where all shapes have them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling, samples_of
from campo_onnx.costs.predicted import CostModel
from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.measure.counters import COUNTERS, Counted, counters_of
from campo_onnx.measure.node_timer import VIEW_NODE, NodeTimer
from campo_onnx.measure.one_node import NODE, one_node_view
from campo_onnx.measure.store import Store
from campo_onnx.ops.facts import moved_bytes, ports_of
from campo_onnx.ops.ports import Ports, lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.ncu import DURATION
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Timing
from campo_onnx.targets.target import target

GPU = Machine(
    provider="cuda", device="NVIDIA H200", driver="580", cuda="13.0", ort="1.31.1", tf32=True, threads=0
)
SAMPLING = Sampling(count=45, largest_bytes=4e6, largest_flops=1e9)
READ = COUNTERS[0]


def counts(number: int = 45) -> tuple[Signature, ...]:
    return samples_of("Add", replace(SAMPLING, count=number))


def test_read_in_batches_kept_and_looked_up() -> None:
    timer = NodeTimer(machine=GPU, store=Store())
    batches: list[int] = []

    def read(files: Sequence[Path]) -> Sequence[Mapping[str, float] | None]:
        batches.append(len(files))
        assert all(len(onnx.load(file).graph.node) == 1 for file in files)
        return [None if i == 1 else {READ: float(i), DURATION: 9.0} for i in range(len(files))]

    signatures = [*counts(), VIEW_NODE]
    counters = counters_of(signatures, timer, read)
    assert batches == [40, 5]
    assert counters.refusal == ""
    assert counters.by_key[signatures[2].key] == {READ: 2.0}  # time is not a counter
    assert {s.key for s in signatures} - set(counters.by_key) == {
        signatures[1].key,
        signatures[41].key,
        VIEW_NODE.key,
    }
    assert counters_of(signatures, timer, read) == counters
    assert batches == [40, 5]  # not read again, not even what could not be read


def test_a_refusal_keeps_what_was_read() -> None:
    timer = NodeTimer(machine=GPU, store=Store())

    def read(files: Sequence[Path]) -> Sequence[Mapping[str, float] | None]:
        if len(files) < 40:
            raise DeviceUnavailableError("hardware counters cannot be read", why="the GPU was taken away")
        return [{READ: 1.0}] * len(files)

    counters = counters_of(counts(), timer, read)
    assert len(counters.by_key) == 40
    assert "taken away" in counters.refusal


def test_a_cpu_has_none() -> None:
    counters = counters_of(counts(3), NodeTimer(machine=machine("cpu", 1), store=Store()))
    assert counters.by_key == {}
    assert "only CUDA devices" in counters.refusal


class Imagined(NodeTimer):
    """A GPU on which the FP16 time hangs on something that no shape tells."""

    def time(self, signature: Signature) -> Timing:
        is_low = any(info.dtype != 1 for info in signature.operands)
        us = 10 + moved_bytes(signature, Ports(), None) / 1e5 * (hidden(signature) / 2 if is_low else 1)
        return Timing(median_us=us, spread_us=0.0, repeats=1)


def hidden(signature: Signature) -> float:
    largest = max(operand.elements for operand in signature.operands)
    return 0.5 + largest % 97 / 97


def ask(signatures: Iterable[Signature], timer: NodeTimer) -> Counted:
    return Counted(by_key={s.key: {READ: hidden(s), COUNTERS[1]: 1.0} for s in signatures})


WORKLOAD = Workload(ops=("Add",), sampling=SAMPLING, casts=6, largest_cast_elements=1 << 18)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    timer = Imagined(machine=GPU, store=Store())
    return calibrate(WORKLOAD, timer, target("h200"), Precision.FP16, None, ask)


def test_counters_are_selected_beside_derived_events(calibration: Calibration) -> None:
    (entry,) = calibration.entries
    assert entry.with_counters is not None
    assert READ in entry.with_counters.features
    assert READ not in entry.model.features  # nodes without counters are predicted without
    assert entry.scores.with_counters is not None
    assert entry.scores.with_counters > entry.scores.chosen
    assert Calibration.from_json(calibration.to_json()) == calibration


def test_without_counters_of_every_shape_they_are_not_fitted() -> None:
    def ask_some(signatures: Iterable[Signature], timer: NodeTimer) -> Counted:
        counters = dict(ask(signatures, timer).by_key)
        counters.pop(next(iter(counters)))
        return Counted(by_key=counters, refusal="ncu died")

    timer = Imagined(machine=GPU, store=Store())
    fitted = calibrate(WORKLOAD, timer, target("h200"), Precision.FP16, None, ask_some)
    assert fitted.entries[0].with_counters is None
    assert fitted.entries[0].scores.with_counters is None
    assert fitted.counters_refusal == "ncu died"


def test_predictions_use_counters_where_they_are_known(calibration: Calibration) -> None:
    fresh = samples_of("Add", replace(SAMPLING, seed=3, count=20))
    timer = Imagined(machine=GPU, store=Store())
    model = CostModel(calibration)
    plain, counted = 0.0, 0.0
    for signature in fresh:
        ports = {NODE: ports_of(signature, Precision.FP16)}
        low = lowered(signature, ports[NODE], Precision.FP16)
        assert low is not None
        fp32_us, low_us = timer.time(signature).median_us, timer.time(low).median_us
        counters = {NODE: {READ: hidden(signature), COUNTERS[1]: 1.0}}
        args = (one_node_view(signature), ports, {NODE: fp32_us})
        plain += abs(model.predict(*args).nodes[NODE].low_us / low_us - 1)
        counted += abs(model.predict(*args, counters).nodes[NODE].low_us / low_us - 1)
        some = model.predict(*args, {NODE: {"another": 1.0}})
        assert some == model.predict(*args)
    assert counted < plain
