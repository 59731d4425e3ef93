"""Reading both profilers, on traces of the documented formats; no GPU is needed."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime import kineto
from campo_onnx.runtime.onnxruntime.kernel_trace import Kernel, Launch, Window, disagreement, join
from campo_onnx.runtime.onnxruntime.kineto import MARKER, clock_offset_ns, read_trace, read_windows, record
from campo_onnx.runtime.registry import machine

DATA = Path(__file__).parent.parent / "data"
BASE_NS = 1_790_857_026_000_000_000

# Written by hand after the format of PyTorch's Chrome traces, not recorded on a GPU.
TRACE = {
    "schemaVersion": 1,
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": BASE_NS,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0.0, "args": {"name": "python"}},
        {"ph": "X", "cat": "user_annotation", "name": MARKER, "pid": 1, "tid": 1, "ts": 5.017, "dur": 0.5},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 10.25,
            "dur": 4.5,
            "args": {"cbid": 211, "correlation": 41, "External id": 0},
        },
        {
            "ph": "X",
            "cat": "cuda_driver",
            "name": "cuLaunchKernelEx",
            "pid": 1,
            "tid": 1,
            "ts": 20.5,
            "dur": 3.0,
            "args": {"cbid": 652, "correlation": 42},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaStreamSynchronize",
            "pid": 1,
            "tid": 1,
            "ts": 50.0,
            "dur": 90.0,
            "args": {"cbid": 131, "correlation": 43},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "void gemm<128>(float*)",
            "pid": 0,
            "tid": 7,
            "ts": 16.125,
            "dur": 100.5,
            "args": {"device": 0, "stream": 7, "correlation": 41},
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy DtoD (Device -> Device)",
            "pid": 0,
            "tid": 7,
            "ts": 117.0,
            "dur": 2.0,
            "args": {"device": 0, "stream": 7, "correlation": 42, "bytes": 64},
        },
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "ts": 120.0, "dur": 1.0},
        {"ph": "s", "id": 41, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 16.125},
    ],
}


def ns(us: float) -> int:
    return BASE_NS + round(us * 1000)


def test_a_trace_is_read_to_the_nanosecond() -> None:
    seen = read_trace(TRACE)
    gemm, copy, fill = seen.kernels
    assert gemm == Kernel(
        name="void gemm<128>(float*)", start_ns=ns(16.125), end_ns=ns(116.625), correlation=41
    )
    assert (copy.end_ns - copy.start_ns, copy.correlation) == (2_000, 42)
    assert [kernel.is_copy for kernel in seen.kernels] == [False, True, True]
    assert fill.correlation == -1  # its launch is not known
    assert Launch(correlation=41, at_ns=ns(10.25)) in seen.launches
    assert Launch(correlation=42, at_ns=ns(20.5)) in seen.launches
    assert seen.markers_ns == (ns(5.017),)


def test_from_both_files_to_nodes() -> None:
    events = [
        {"cat": "Session", "name": "session_initialization", "ts": 1, "dur": 5},
        *node("before", 2, 7),
        {"cat": "Session", "name": "model_run", "ts": 1, "dur": 9},
        *node("matmul", 9, 8),
        *node("copy", 19, 6),
        {"cat": "Session", "name": "SequentialExecutor::Execute", "ts": 9, "dur": 20},
        {"cat": "Session", "name": "model_run", "ts": 8, "dur": 150},
    ]
    windows = read_windows(events, BASE_NS, skip=1)
    assert windows == (
        Window(node="matmul", step=0, start_ns=ns(9), end_ns=ns(17)),
        Window(node="copy", step=0, start_ns=ns(19), end_ns=ns(25)),
    )
    seen = read_trace(TRACE)
    joined = join(seen.kernels, seen.launches, windows)
    assert joined.nodes_us == {"matmul": (100.5,), "copy": (2.0,)}
    assert "Memset" in disagreement(joined, {})


def node(name: str, ts: int, dur: int) -> list[dict[str, object]]:
    return [{"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {}}]


def test_the_quickest_marker_tells_the_offset() -> None:
    read_ns = [(1_000_000, 1_900_000), (2_000_000, 2_000_100), (3_000_000, 3_050_000)]
    assert clock_offset_ns(read_ns, [400_000, 1_500_050, 2_600_000]) == 500_000
    assert clock_offset_ns(read_ns, [1]) == 0
    assert clock_offset_ns([], []) == 0


def test_without_a_profiler_of_cuda_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = import_model(DATA / "mlp.onnx")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceUnavailableError, match="PyTorch, whose profiler") as error:
        record(imported.model, {}, machine("cpu", 1), steps=1)
    assert error.value.exit_code == 8
    monkeypatch.setitem(sys.modules, "torch", fake_torch({}, cuda=False))
    with pytest.raises(DeviceUnavailableError, match="built without CUDA"):
        record(imported.model, {}, machine("cpu", 1), steps=1)


def fake_torch(trace: dict[str, object], *, cuda: bool = True, refusal: str = "") -> ModuleType:
    """The part of PyTorch that is used, writing `trace` as its Chrome trace."""

    @contextmanager
    def profile(activities: object) -> Iterator[SimpleNamespace]:
        if refusal:
            raise RuntimeError(refusal)
        yield SimpleNamespace(
            export_chrome_trace=lambda path: Path(path).write_text(json.dumps(trace), encoding="utf-8")
        )

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        assert name == MARKER
        yield

    module = ModuleType("torch")
    module.profiler = SimpleNamespace(  # type: ignore[attr-defined]
        ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1),
        supported_activities=lambda: {0, 1} if cuda else {0},
        profile=profile,
        record_function=record_function,
    )
    return module


def test_steps_run_under_both_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = import_model(DATA / "mlp.onnx")
    feeds, here = synthesize(imported.view), machine("cpu", 1)
    seen: list[tuple[Window, ...]] = []
    monkeypatch.setattr(kineto, "join", lambda kernels, launches, windows, offset_ns: seen.append(windows))
    monkeypatch.setitem(sys.modules, "torch", fake_torch(TRACE))
    done: list[None] = []
    began_ns = time.time_ns()
    record(imported.model, feeds, here, steps=3, warmup=1, on_step=lambda: done.append(None))
    (windows,) = seen
    assert len(done) == 4
    # Both count from the epoch; that they are one clock, and nobody sets it meanwhile, is not asked.
    assert abs(windows[0].start_ns - began_ns) < 3600e9
    assert windows[0].start_ns < windows[-1].end_ns
    assert {window.step for window in windows} == {0, 1, 2}
    names = {node.name for node in imported.model.graph.node if node.op_type != "Constant"}
    assert {window.node for window in windows} == names
    for earlier, later in pairwise(windows):
        assert earlier.end_ns <= later.start_ns + 1_000


def test_a_profiler_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = import_model(DATA / "mlp.onnx")
    monkeypatch.setitem(sys.modules, "torch", fake_torch(TRACE, refusal="CUPTI_ERROR_NOT_INITIALIZED"))
    with pytest.raises(DeviceUnavailableError, match="CUPTI_ERROR_NOT_INITIALIZED"):
        record(imported.model, synthesize(imported.view), machine("cpu", 1), steps=1)
