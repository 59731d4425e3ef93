"""The benchmark as a whole: rows, failures, notes, and the document it writes."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from campo_onnx.bench import bench as bench_module
from campo_onnx.bench import loading
from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.result import FORMAT, Outcome
from campo_onnx.bench.rounds import time_rounds
from campo_onnx.errors import DeviceUnavailableError, ModelError, UnsupportedModelError, UsageError
from campo_onnx.files import write_text
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.traffic import traffic
from campo_onnx.runtime.registry import machine

CPU = machine("cpu", 1)
STEP = "g (float[8, 4] x, float[4, 2] w) => (float[8, 2] y) { y = MatMul(x, w) }"
OUT_OF_MEMORY = ModelError(
    "the training step fails while it runs",
    why="[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 Failed to allocate memory for "
    "requested buffer of size 1342177280",
)
LOST = ModelError("the training step fails", why="CUDA failure 719: unspecified launch failure")


@pytest.fixture
def graphs(model_text):
    imported = import_model(model_text(STEP))
    return [Graph(name=name, imported=imported) for name in ("a", "b", "c")]


@pytest.fixture
def staged(monkeypatch):
    """Replace sessions by steps of given lengths on a clock of their own; an error fails a graph."""
    stage = SimpleNamespace(now_s=0.0, bytes_by_name={}, used_bytes=0, lengths_s={}, remark="", steps=0)

    def open_staged(graph, buffers, machine, *, cuda_graph):
        length = stage.lengths_s[graph.name]
        if isinstance(length, UnsupportedModelError):
            raise length
        stage.used_bytes += stage.bytes_by_name.get(graph.name, 0)
        taken = 0

        def step() -> None:
            nonlocal taken
            taken += 1
            stage.steps += 1
            after, error, length_s = length if isinstance(length, tuple) else (0, None, length)
            if error is not None and taken > after:
                raise error
            stage.now_s += length_s

        return step, stage.remark

    monkeypatch.setattr(loading, "open_step", open_staged)
    monkeypatch.setattr(bench_module, "time_rounds", partial(time_rounds, clock=lambda: stage.now_s))
    return stage


def test_real_graphs_run(graphs) -> None:
    progress: list[tuple[int, int]] = []
    result = bench(graphs, CPU, steps=8, on_progress=lambda *done: progress.append(done))
    assert [row.name for row in result.rows] == ["a", "b", "c"]
    assert result.rows[0].verdict is Outcome.BASELINE
    assert result.rows[0].speedup is None
    assert all(row.step_us is not None and row.step_us.low > 0 for row in result.rows)
    assert {name: len(times) for name, times in result.samples_us.items()} == {"a": 8, "b": 8, "c": 8}
    assert (result.steps, result.interrupted) == (8, False)
    assert progress[-1] == (
        14,
        14,
    )  # after the two steps of loading, one round of warm-up in each of six runs
    assert result.rounds_per_run == (2, 2, 1, 1, 1, 1)
    counted = [traffic(graph.imported.view) for graph in graphs]
    assert [row.alive_bytes for row in result.rows] == [each.peak_bytes for each in counted]
    assert all(row.alive_bytes for row in result.rows)


def test_speed_ups_are_told_apart(graphs, staged) -> None:
    staged.lengths_s = {"a": 0.010, "b": 0.005, "c": 0.020}
    result = bench(graphs, CPU, steps=10, batch=32)
    assert result.notes == ()
    first, faster, slower = result.rows
    assert (first.verdict, faster.verdict, slower.verdict) == (
        *(Outcome.BASELINE, Outcome.FASTER, Outcome.SLOWER),
    )
    assert faster.speedup is not None
    assert faster.speedup.median == pytest.approx(2.0)
    assert faster.samples_per_s == pytest.approx(32 / 0.005)
    assert result.batch == 32


def test_a_graph_given_twice_is_no_difference(graphs, staged) -> None:
    staged.lengths_s = dict.fromkeys("abc", 0.010)
    assert [row.verdict for row in bench(graphs, CPU).rows[1:]] == [Outcome.NO_DIFFERENCE] * 2


def test_what_changes_from_run_to_run_is_no_difference(graphs, staged, monkeypatch) -> None:
    # Each time it is loaded b runs at one speed, steady as a clock: faster five times, slower once.
    speeds_s = iter([0.005, 0.005, 0.005, 0.020, 0.005, 0.005])
    open_steady = loading.open_step

    def open_anew(graph, *args, **options):
        if graph.name == "b":
            staged.lengths_s["b"] = next(speeds_s)
        return open_steady(graph, *args, **options)

    monkeypatch.setattr(loading, "open_step", open_anew)
    staged.lengths_s = {"a": 0.010, "c": 0.020}
    result = bench(graphs, CPU, steps=60)
    _, changing, steady = result.rows
    assert (changing.verdict, changing.speedup.median) == (Outcome.NO_DIFFERENCE, pytest.approx(2.0))
    assert (changing.speedup.low, changing.speedup.high) == pytest.approx((0.5, 2.0))
    assert changing.step_us.high == pytest.approx(20_000)
    assert steady.verdict is Outcome.SLOWER
    assert next(speeds_s, None) is None  # loaded six times


def test_a_graph_that_failed_is_not_loaded_again(graphs, staged, monkeypatch) -> None:
    opened = []
    open_steady = loading.open_step

    def open_counted(graph, *args, **options):
        opened.append(graph.name)
        return open_steady(graph, *args, **options)

    monkeypatch.setattr(loading, "open_step", open_counted)
    staged.lengths_s = {"a": 0.010, "b": (5, OUT_OF_MEMORY, 0.010), "c": UnsupportedModelError("no kernel")}
    rows = bench(graphs, CPU, steps=60).rows
    assert [row.verdict for row in rows[1:]] == [Outcome.FAILED, Outcome.FAILED]
    assert (opened.count("a"), opened.count("b"), opened.count("c")) == (6, 1, 1)


def test_tolerance_is_the_callers(graphs, staged) -> None:
    staged.lengths_s = {"a": 0.010, "b": 0.0097, "c": 0.010}
    assert bench(graphs, CPU).rows[1].verdict is Outcome.FASTER
    assert bench(graphs, CPU, tolerance=0.05).rows[1].verdict is Outcome.NO_DIFFERENCE


def test_very_short_steps_are_not_told_apart(graphs, staged) -> None:
    staged.lengths_s = {"a": 100e-6, "b": 96e-6, "c": 90e-6}
    result = bench(graphs, CPU)
    assert [row.verdict for row in result.rows[1:]] == [Outcome.NO_DIFFERENCE, Outcome.FASTER]
    assert "below 5 us (5.0% of a step)" in result.notes[0]


def test_one_that_fails_is_a_row(graphs, staged) -> None:
    staged.lengths_s = {"a": 0.010, "b": (9, OUT_OF_MEMORY, 0.010), "c": 0.010}
    result = bench(graphs, CPU, steps=60)
    failed = result.rows[1]
    assert failed.verdict is Outcome.FAILED
    assert "out of memory" in failed.failure
    assert "--dim batch" in failed.failure
    assert failed.failure_code == DeviceUnavailableError.exit_code
    assert (failed.speedup, len(result.samples_us["b"])) == (None, 6)  # three were warm-up
    assert failed.step_us is not None
    assert result.rows[2].verdict is Outcome.NO_DIFFERENCE


@pytest.mark.parametrize("length", [(0, LOST, 1.0), (5, LOST, 1.0), UnsupportedModelError("no kernel")])
def test_without_the_first_there_is_no_speed_up(graphs, staged, length) -> None:
    staged.lengths_s = {"a": length, "b": 0.010, "c": 0.010}
    first, *others = bench(graphs, CPU, steps=60).rows
    assert first.verdict is Outcome.FAILED
    assert "nvidia-smi" in first.failure or "no kernel" in first.failure
    for row in others:
        assert (row.verdict, row.speedup) == (Outcome.NOT_COMPARED, None)
        assert row.step_us is not None


def test_all_may_fail(graphs, staged) -> None:
    staged.lengths_s = dict.fromkeys("abc", UnsupportedModelError("no kernel"))
    result = bench(graphs, CPU)
    assert {row.verdict for row in result.rows} == {Outcome.FAILED}
    assert {row.failure_code for row in result.rows} == {UnsupportedModelError.exit_code}
    assert result.steps == 0
    json.loads(result.to_json())


def test_interruption_reports_what_there_is(graphs, staged) -> None:
    staged.lengths_s = {"a": 0.010, "b": 0.005, "c": (6, KeyboardInterrupt(), 0.010)}
    result = bench(graphs, CPU, steps=50)
    assert (result.interrupted, result.steps) == (True, 3)
    assert {row.verdict for row in result.rows[1:]} == {
        Outcome.NOT_COMPARED
    }  # too few rounds for an interval
    assert result.rows[1].step_us is not None
    assert result.rows[1].step_us.median == pytest.approx(5000.0)


def test_an_interruption_between_runs_keeps_what_there_is(graphs, staged, monkeypatch) -> None:
    staged.lengths_s = {"a": 0.010, "b": 0.005, "c": 0.010}
    opened = iter([None] * 4 + [KeyboardInterrupt()])
    open_steady = loading.open_step

    def open_until(graph, *args, **options):
        if (error := next(opened)) is not None:
            raise error
        return open_steady(graph, *args, **options)

    monkeypatch.setattr(loading, "open_step", open_until)
    result = bench(graphs, CPU, steps=60)
    assert (result.interrupted, result.rounds_per_run) == (True, (10,))
    assert result.rows[1].speedup.median == pytest.approx(2.0)
    # Ten rounds of one start decide nothing, however clear they are.
    assert {row.verdict for row in result.rows[1:]} == {Outcome.NOT_COMPARED}


def test_the_time_is_that_of_all_runs(graphs, staged) -> None:
    staged.lengths_s = dict.fromkeys("abc", 1.0)
    assert bench(graphs, CPU, steps=600, budget_s=0.0).rounds_per_run == (1,) * 6
    assert bench(graphs, CPU, steps=600, budget_s=36.0).rounds_per_run == (2,) * 6


def test_energy_and_memory_of_a_gpu(graphs, staged, monkeypatch) -> None:
    def no_buffers(*_args, **_options):
        return SimpleNamespace(nbytes=1000)

    staged.lengths_s = {"a": 0.010, "b": 0.005, "c": UnsupportedModelError("no kernel")}
    staged.bytes_by_name = {"a": 5000, "b": 3000}
    gpu = SimpleNamespace(
        problem="",
        process_bytes=lambda: staged.used_bytes,
        energy_j=lambda: 300 * staged.now_s,
        sm_clock_mhz=lambda: 1980,
    )
    monkeypatch.setattr(bench_module, "_buffers", no_buffers)
    monkeypatch.setattr(bench_module, "_meter", lambda _: bench_module.nullcontext(gpu))
    measured = partial(bench_module.energy_samples, clock=lambda: staged.now_s)
    monkeypatch.setattr(bench_module, "energy_samples", measured)
    cuda = replace(CPU, provider="cuda", threads=0)
    progress: list[tuple[int, int]] = []
    result = bench(graphs, cuda, steps=6, on_progress=lambda *done: progress.append(done))
    first, second, _ = result.rows
    assert (first.peak_bytes, second.peak_bytes) == (6000, 4000)
    assert first.energy_j is not None
    assert second.energy_j is not None
    assert (first.energy_j.median, second.energy_j.median) == pytest.approx((3.0, 1.5))
    assert "NVML" in result.energy_from
    assert set(result.sm_clock_mhz) == {1980}
    assert FORMAT.decode(FORMAT.encode(result)) == result
    assert progress[-1] == (12 + 12, 12 + 12)  # rounds and warm-up of six runs; blocks


def test_energy_can_be_left_out(graphs) -> None:
    result = bench(graphs, CPU, steps=6, energy=False)
    assert result.energy_from == "not measured: switched off"
    assert all(row.energy_j is None for row in result.rows)


def test_nodes_that_run_elsewhere_are_noted(graphs, staged) -> None:
    staged.lengths_s, staged.remark = dict.fromkeys("abc", 0.01), "3 nodes run elsewhere"
    assert bench(graphs, CPU, steps=6).notes[0] == "a: 3 nodes run elsewhere"


def test_fp16_on_a_cpu_is_noted(model_text) -> None:
    low = "g (float[2] x) => (float[2] y) { h = Cast<to = 10>(x) z = Neg(h) y = Cast<to = 1>(z) }"
    graph = Graph(name="mixed", imported=import_model(model_text(low)))
    assert "says nothing about a GPU" in bench([graph], CPU, steps=1).notes[0]


def test_values_are_shared_and_checked(graphs) -> None:
    feeds = {"x": np.ones((8, 4), np.float32), "w": np.ones((4, 2), np.float32)}
    assert bench(graphs, CPU, feeds=feeds, steps=1).rows[0].step_us is not None
    with pytest.raises(UsageError, match="no value for w"):
        bench(graphs, CPU, feeds={"x": feeds["x"]}, steps=1)
    with pytest.raises(UsageError, match="no input z"):
        bench(graphs, CPU, feeds=feeds | {"z": feeds["x"]}, steps=1)
    with pytest.raises(UsageError, match="'w' is float64"):
        bench(graphs, CPU, feeds=feeds | {"w": np.ones((4, 2))}, steps=1)


def test_dimensions_unknown_to_the_graph_are_given_by_onnx_runtime(model_text) -> None:
    text = "g (float[4] x) => (float[n] y) { c = Abs(x) i = NonZero(c) k = Squeeze(i) y = Gather(c, k) }"
    graph = Graph(name="sparse", imported=import_model(model_text(text), {"n": 4}))
    assert bench([graph], CPU, steps=2).rows[0].failure == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"batch": 0}, "batch"),
        ({"cuda_graph": True}, "CUDA graph"),
    ],
)
def test_arguments_out_of_range(graphs, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        bench(graphs, CPU, **options)


def test_spinning_threads_are_waited_for(graphs, staged, monkeypatch) -> None:
    naps: list[float] = []
    staged.lengths_s = dict.fromkeys("abc", 0.01)
    monkeypatch.setattr(bench_module.time, "sleep", naps.append)
    bench(graphs, CPU, steps=6, warmup=1)
    assert naps == []
    bench(graphs, replace(CPU, threads=2), steps=6, warmup=1)
    assert len(naps) == 18


def test_document(graphs, staged) -> None:
    staged.lengths_s = dict.fromkeys("abc", 0.010)
    document = json.loads(bench(graphs, CPU, steps=6).to_json())
    assert document["format_version"] == FORMAT.version
    assert document["machine"]["provider"] == "cpu"
    assert document["rows"][1]["verdict"] == "no difference"
    assert document["rows"][1]["speedup"].keys() == {"median", "low", "high"}
    assert len(document["samples_us"]["c"]) == 6
    assert document["measured_at"].endswith("+00:00")


def test_a_result_is_read_back(graphs, staged, tmp_path) -> None:
    staged.lengths_s = {"a": 0.010, "b": 0.005, "c": UnsupportedModelError("no kernel")}
    result = bench(graphs, CPU, steps=12, batch=4)
    write_text(FORMAT.encode(result), tmp_path / "result.json")
    assert FORMAT.load(tmp_path / "result.json") == result


def test_a_result_of_version_1_is_read(graphs, staged) -> None:
    staged.lengths_s = dict.fromkeys("abc", 0.010)
    result = bench(graphs, CPU, steps=12)
    document = json.loads(result.to_json())
    document |= {"format_version": 1, "starts": document.pop("rounds_per_run")}
    assert FORMAT.decode(json.dumps(document)) == result


def test_a_file_of_something_else_is_no_result() -> None:
    with pytest.raises(UsageError, match=r"r\.json cannot be read: colour: unknown field"):
        FORMAT.decode('{"format_version": 2, "colour": "red"}', "r.json")
