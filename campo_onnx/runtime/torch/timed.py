"""Times of a compiled program's kernels, joined to the nodes of the ONNX graph that they compute."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import NodeTime, StepTimes
from campo_onnx.runtime.timing import Step, timing_of
from campo_onnx.runtime.torch.compiled import Kernel

_STEP = "campo_onnx step"
_PROGRAM = "## Call CompiledFxGraph"
_GENERATED = re.compile(r"(?:graph_\d+_)?(?P<kernel>(?:cpp|triton)_\w+)")
_LIBRARY = "aten::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kernel of a step, or a call of a library's, as a profiler saw it."""

    name: str
    us: float


def step_times(
    step: Step,
    kernels: Sequence[Kernel],
    precisions: Mapping[str, Precision],
    *,
    repeats: int,
    warmup: int,
    on_step: Callable[[], None] | None,
) -> StepTimes:
    """Run a step some times under torch's profiler; of the steps that count the faster half is told."""
    steps: list[tuple[float, list[Event]]] = []
    done = 0
    try:
        for _ in range(warmup):
            step()
            done = _told(done, on_step)
        for _ in range(repeats):
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                began = time.perf_counter_ns()
                with record_function(_STEP):
                    step()
                step_us = (time.perf_counter_ns() - began) / 1000
            steps.append((step_us, list(_events(seen.events()))))
            done = _told(done, on_step)
    except KeyboardInterrupt:
        if not steps:
            raise
    usual = Counter(tuple(event.name for event in events) for _, events in steps).most_common(1)[0][0]
    alike = [(us, events) for us, events in steps if tuple(event.name for event in events) == usual]
    faster = sorted(alike, key=lambda one: one[0])[: (len(alike) + 1) // 2]
    times = zip(*([event.us for event in events] for _, events in faster), strict=True)
    return StepTimes(
        nodes=tuple(
            NodeTime(nodes=nodes, kernel=name, precision=_precision(nodes, precisions), time=timing_of(us))
            for (name, nodes), us in zip(joined(usual, kernels), times, strict=True)
        ),
        step=timing_of([us for us, _ in faster]),
        accounted=median(sum(event.us for event in events) / us for us, events in faster),
        interrupted=done < warmup + repeats,
    )


def joined(events: Iterable[str], kernels: Sequence[Kernel]) -> list[tuple[str, tuple[str, ...]]]:
    """Give the name of each event's kernel, and the nodes that it computes; none where nothing tells.

    Generated kernels have names of their own; calls of a library come in the order of the program.

    >>> product, sums = Kernel(name="extern_kernels.mm", nodes=("a",)), Kernel(name="cpp_0", nodes=("b", "c"))
    >>> joined(["aten::mm", "aten::fill_", "graph_0_cpp_0"], [product, sums])
    [('aten::mm', ('a',)), ('aten::fill_', ()), ('cpp_0', ('b', 'c'))]
    """
    generated = {kernel.name: kernel.nodes for kernel in kernels}
    calls = [kernel for kernel in kernels if not _GENERATED.fullmatch(kernel.name)]
    rows: list[tuple[str, tuple[str, ...]]] = []
    for name in events:
        if match := _GENERATED.fullmatch(name):
            kernel = match["kernel"]
            rows.append((kernel, generated.get(kernel, ())))
            continue
        operation = name.removeprefix(_LIBRARY)
        place = next((i for i, call in enumerate(calls) if _is_call_of(operation, call.name)), None)
        rows.append((name, () if place is None else calls[place].nodes))
        del calls[: 0 if place is None else place + 1]
    return rows


def _is_call_of(operation: str, kernel: str) -> bool:
    """Whether a kernel, as ``extern_kernels.mm`` or ``torch.ops.aten.mm.default``, calls an operation."""
    return operation in kernel.split(".")


def _told(done: int, on_step: Callable[[], None] | None) -> int:
    if on_step is not None:
        on_step()
    return done + 1


def _events(seen: Iterable[Any]) -> Iterable[Event]:
    """Events right below the compiled program, or below the step of one that is not compiled."""
    on_host = [event for event in seen if event.device_type == DeviceType.CPU]
    is_compiled = any(event.name.startswith(_PROGRAM) for event in on_host)
    for event in on_host:
        parent = "" if event.cpu_parent is None else event.cpu_parent.name
        if parent.startswith(_PROGRAM) if is_compiled else parent == _STEP:
            yield Event(name=event.name, us=event.time_range.elapsed_us())


def _precision(nodes: Sequence[str], precisions: Mapping[str, Precision]) -> Precision | None:
    told = {precisions[node] for node in nodes if node in precisions}
    return told.pop() if len(told) == 1 else None
