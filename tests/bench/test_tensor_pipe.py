"""The tensor pipe's share joins the rows of a benchmark."""

from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx.bench import tensor_pipe
from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.bench.tensor_pipe import with_tensor_pipe
from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime.ncu import TENSOR_PIPE
from campo_onnx.runtime.providers import machine

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

    monkeypatch.setattr(tensor_pipe, "count", count)
    found = with_tensor_pipe(result, FILES, {"batch": 4})
    assert asked == [([FILES[0], FILES[2]], [TENSOR_PIPE], {"batch": 4})]
    assert [row.tensor_pipe_share for row in found.rows] == [pytest.approx(0.4), None, None]


def test_where_counters_cannot_be_read_the_rest_stays(result, monkeypatch):
    def count(*_, **__):
        raise DeviceUnavailableError("hardware counters cannot be read", why="ncu is not installed")

    monkeypatch.setattr(tensor_pipe, "count", count)
    found = with_tensor_pipe(result, FILES)
    assert found.rows == result.rows
    assert "ncu is not installed" in found.notes[-1]


def test_a_cpu_has_none(result):
    with pytest.raises(UsageError, match="no tensor cores"):
        with_tensor_pipe(replace(result, machine=machine("cpu")), FILES)
