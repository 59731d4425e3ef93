"""Record a step under two profilers at once: ONNX Runtime's and PyTorch's (Kineto).

PyTorch is used for its profiler alone: it records every kernel of the process, ONNX Runtime's as well.
The published ONNX Runtime wheels have no such profiler.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.files import temporary_folder
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.kernel_trace import Joined, Kernel, Launch, Window, align, join
from campo_onnx.runtime.onnxruntime.program import OnnxProgram
from campo_onnx.runtime.onnxruntime.traces import read_profiling

MARKER = "campo_onnx clock"
"""Name of the marks at which both clocks are read."""

_MARKERS = 20
_STEPS = 10  # a trace takes about a kilobyte per kernel and step
_KERNEL = "kernel"
_GPU_CATEGORIES = frozenset({_KERNEL, "gpu_memcpy", "gpu_memset"})
_LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
_SUFFIX = "_kernel_time"
_RUN = "model_run"
_WHAT = "kernels cannot be traced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Kernels and launches that a profiler of CUDA recorded."""

    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    markers_ns: tuple[int, ...]  # when each marker began, by the profiler's clock


def record(
    model: onnx.ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    machine: Machine,
    *,
    steps: int,
    warmup: int = 2,
    folder: Path | None = None,
    on_step: Callable[[], None] | None = None,
) -> Joined:
    """Run some steps on the GPU and join their kernels to nodes.

    `steps` count, ten at most; `warmup` steps before them do not. DeviceUnavailableError says that PyTorch is
    missing, was built without CUDA, or may not trace.
    """
    profiler = _profiler()
    with temporary_folder() as workshop:
        settings = LoadSettings(must_stay=False)
        program = OnnxProgram(
            model, machine.provider, machine.threads, folder, settings, trace_to=workshop / "nodes"
        )
        step, session = program.placed(feeds), program.session
        for _ in range(warmup):
            step()
            if on_step is not None:
                on_step()
        try:
            with profiler.profile(
                activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
            ) as profile:
                read_ns = [_mark(profiler) for _ in range(_MARKERS)]
                for _ in range(min(steps, _STEPS)):
                    step()
                    if on_step is not None:
                        on_step()
        except RuntimeError as error:  # what PyTorch raises when CUPTI refuses
            raise DeviceUnavailableError(_WHAT, why=str(error).strip()) from None
        kernels_file = workshop / "kernels.json"
        profile.export_chrome_trace(str(kernels_file))
        start_ns = session.get_profiling_start_time_ns()
        nodes = read_profiling(session)
        seen = read_trace(json.loads(kernels_file.read_text(encoding="utf-8")))
    windows = read_windows(nodes, start_ns, skip=warmup)
    offset_ns = align(
        seen.kernels, seen.launches, windows, guess_ns=clock_offset_ns(read_ns, seen.markers_ns)
    )
    return join(seen.kernels, seen.launches, windows, offset_ns=offset_ns)


def read_trace(trace: Mapping[str, Any]) -> Recording:
    """Read a Chrome trace as PyTorch writes it.

    Times are microseconds with three decimals since ``baseTimeNanoseconds`` of the epoch; what the GPU
    did has the category ``kernel``, ``gpu_memcpy`` or ``gpu_memset``, calls of CUDA ``cuda_runtime`` or
    ``cuda_driver``, and both a ``correlation`` among their arguments.
    """
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    kernels, launches, markers = [], [], []
    for event in trace["traceEvents"]:
        category, correlation = event.get("cat"), event.get("args", {}).get("correlation")
        if event.get("ph") != "X":
            continue
        start_ns = base_ns + round(float(event["ts"]) * 1000)
        if event.get("name") == MARKER and category == "user_annotation":
            markers.append(start_ns)
        elif category in _GPU_CATEGORIES:
            end_ns = start_ns + round(float(event["dur"]) * 1000)
            kernels.append(
                Kernel(
                    name=event["name"],
                    start_ns=start_ns,
                    end_ns=end_ns,
                    correlation=-1 if correlation is None else int(correlation),
                    is_copy=category != _KERNEL,
                )
            )
        elif category in _LAUNCH_CATEGORIES and correlation is not None:
            launches.append(Launch(correlation=int(correlation), at_ns=start_ns))
    return Recording(kernels=tuple(kernels), launches=tuple(launches), markers_ns=tuple(sorted(markers)))


def read_windows(events: Sequence[Mapping[str, Any]], start_ns: int, *, skip: int = 0) -> tuple[Window, ...]:
    """Collect node windows from ONNX Runtime's profile.

    Events are in whole microseconds since the profile began, at `start_ns` since the epoch; the event of a
    step follows those of its nodes.
    """
    windows, step = [], 0
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            if step >= skip:
                began_ns = start_ns + int(event["ts"]) * 1000
                windows.append(
                    Window(
                        node=name.removesuffix(_SUFFIX),
                        step=step - skip,
                        start_ns=began_ns,
                        end_ns=began_ns + int(event["dur"]) * 1000,
                    )
                )
        elif name == _RUN:
            step += 1
    return tuple(windows)


def clock_offset_ns(read_ns: Sequence[tuple[int, int]], markers_ns: Sequence[int]) -> int:
    """Offset from the profiler's clock to the system's, which ONNX Runtime uses.

    Both count from the epoch, but the profiler converts its own ticks. The marker that was set quickest tells
    the offset best. `read_ns` is the system's clock just before and just after each marker, `markers_ns` the
    beginning of each by the profiler's clock; the offset is 0 if any is missing.
    """
    if not markers_ns or len(read_ns) != len(markers_ns):
        return 0
    brackets = zip(read_ns, markers_ns, strict=True)
    (before, after), marker = min(brackets, key=lambda bracket: bracket[0][1] - bracket[0][0])
    return (before + after) // 2 - marker


def _mark(profiler: Any) -> tuple[int, int]:
    before = time.time_ns()
    with profiler.record_function(MARKER):
        pass
    return before, time.time_ns()


def _profiler() -> Any:
    try:
        from torch import profiler
    except ImportError as error:
        raise DeviceUnavailableError(
            _WHAT, why=f"PyTorch, whose profiler records them, does not load ({error})"
        ) from None
    if profiler.ProfilerActivity.CUDA not in profiler.supported_activities():
        raise DeviceUnavailableError(_WHAT, why="this PyTorch was built without CUDA")
    return profiler
