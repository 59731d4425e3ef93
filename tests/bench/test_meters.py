"""Energy per step, memory, and use of the tensor cores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from campo_onnx.bench import meters
from campo_onnx.bench.meters import BLOCK_S, BLOCKS, energy_samples, memory_meter, with_tensor_pipe
from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime.nvml import GpuMeter
from campo_onnx.runtime.onnxruntime.ncu import TENSOR_PIPE
from campo_onnx.runtime.registry import machine

CPU = machine("cpu", 1)
POWER_W = {"a": 400.0, "b": 250.0}


class Gpu:
    """Draws power while steps run; its counter is updated every 100 ms."""

    def __init__(self, step_s: float, period_s: float = 0.1) -> None:
        self.now_s = self.drawn_j = self.shown_j = 0.0
        self.step_s, self.period_s = step_s, period_s
        self.steps = {name: self.step(power) for name, power in POWER_W.items()}

    def step(self, power_w: float):
        def run() -> None:
            before = self.now_s // self.period_s
            self.now_s += self.step_s
            self.drawn_j += power_w * self.step_s
            if self.now_s // self.period_s > before:
                self.shown_j = self.drawn_j

        return run

    def clock(self) -> float:
        return self.now_s


@pytest.mark.parametrize("step_s", [0.0007, 0.01, 0.3, 7.0])
def test_energy_per_step(step_s: float) -> None:
    gpu = Gpu(step_s)
    done: list[int] = []
    samples = energy_samples(gpu.steps, lambda: gpu.shown_j, clock=gpu.clock, on_block=done.append)
    for name, power_w in POWER_W.items():
        assert samples[name] == pytest.approx([power_w * step_s] * BLOCKS, rel=0.01)
    assert done == list(range(1, 2 * BLOCKS + 1))
    assert gpu.now_s >= 2 * BLOCKS * BLOCK_S


def test_a_counter_that_stands_still_is_no_measurement() -> None:
    gpu = Gpu(0.01, period_s=1e9)
    assert energy_samples(gpu.steps, lambda: gpu.shown_j, clock=gpu.clock) == {}
    assert gpu.now_s < 10


def test_no_counter_is_no_measurement() -> None:
    gpu = Gpu(0.01)
    assert energy_samples(gpu.steps, lambda: None, clock=gpu.clock) == {}
    readings = iter([1.0, 2.0])
    assert energy_samples(gpu.steps, lambda: next(readings, None), clock=gpu.clock) == {}


def test_a_gpu_that_tells_nothing() -> None:
    meter = memory_meter(replace(CPU, provider="cuda"), GpuMeter(problem="no NVML here"))
    assert meter.growth(meter.read()) is None
    assert meter.source == "not measured: no NVML here"


def test_resident_memory_of_a_cpu() -> None:
    meter = memory_meter(CPU, GpuMeter())
    before = meter.read()
    if before is None:
        pytest.skip("this system does not tell")
    assert meter.growth(before) is None  # too little to tell
    held = np.ones(96 << 20, np.uint8)
    assert (grown := meter.growth(before)) is not None
    assert held.nbytes * 0.7 < grown < held.nbytes * 1.5


FILES = [Path("a.onnx"), Path("b.onnx"), Path("c.onnx")]


@pytest.fixture
def result():
    rows = [BenchRow(name=n, step_us=None, speedup=None, verdict=Outcome.NOT_COMPARED) for n in "abc"]
    rows[1] = replace(rows[1], verdict=Outcome.FAILED, failure="out of memory")
    return BenchResult(
        machine=replace(machine("cpu"), provider="cuda"),
        rows=tuple(rows),
        steps=6,
        measured_at="",
        samples_us={},
        tolerance=0.01,
    )


def test_each_graph_that_ran_gets_its_share(result, monkeypatch):
    asked = []

    def count(files, *, metrics, dims):
        asked.append((files, metrics, dims))
        return ({TENSOR_PIPE: 40.0}, None)

    monkeypatch.setattr(meters, "count", count)
    bench_result = with_tensor_pipe(result, FILES, {"batch": 4})
    assert asked == [([FILES[0], FILES[2]], [TENSOR_PIPE], {"batch": 4})]
    assert [row.tensor_pipe_share for row in bench_result.rows] == [pytest.approx(0.4), None, None]


def test_where_counters_cannot_be_read_the_rest_stays(result, monkeypatch):
    def count(*_, **__):
        raise DeviceUnavailableError("hardware counters cannot be read", why="ncu is not installed")

    monkeypatch.setattr(meters, "count", count)
    bench_result = with_tensor_pipe(result, FILES)
    assert bench_result.rows == result.rows
    assert "ncu is not installed" in bench_result.notes[-1]


def test_a_cpu_has_no_tensor_cores(result):
    with pytest.raises(UsageError, match="no tensor cores"):
        with_tensor_pipe(replace(result, machine=machine("cpu")), FILES)
