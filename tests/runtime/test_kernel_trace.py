"""Kernels joined to nodes: made-up events of steps whose answer is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from campo_onnx.runtime.onnxruntime.kernel_trace import (
    Joined,
    Kernel,
    Launch,
    Window,
    align,
    disagreement,
    join,
)

US = 1_000  # nanoseconds
EPOCH = 1_795_000_000_000_000_000


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Some steps of three nodes: a product of two kernels, a Reshape of none, a copy and an Add."""

    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    windows: tuple[Window, ...]

    def join(self, offset_ns: int = 0) -> Joined:
        return join(self.kernels, self.launches, self.windows, offset_ns=offset_ns)


NODES: Sequence[tuple[str, int, Sequence[tuple[str, int]]]] = (
    ("matmul", 30, [("gemm", 100), ("splitK", 20)]),
    ("reshape", 3, []),
    ("add", 10, [("Memcpy HtoD (Pageable -> Device)", 5), ("add_kernel", 40)]),
)


def steps(count: int = 3, *, skew_ns: int = 0, gap_ns: int = 400 * US) -> Steps:
    """Windows by ONNX Runtime's clock, and kernels by another that is `skew_ns` behind."""
    kernels, launches, windows = [], [], []
    host_ns, gpu_ns, correlation = EPOCH, EPOCH, 100
    for step in range(count):
        for node, window_us, work in NODES:
            end_ns = host_ns + window_us * US
            windows.append(Window(node=node, step=step, start_ns=host_ns, end_ns=end_ns))
            for i, (name, us) in enumerate(work):
                at_ns = host_ns + (2 + 4 * i) * US
                gpu_ns = max(gpu_ns, at_ns + 5 * US)
                correlation += 1
                launches.append(Launch(correlation=correlation, at_ns=at_ns - skew_ns))
                start_ns = gpu_ns - skew_ns
                kernels.append(
                    Kernel(name=name, start_ns=start_ns, end_ns=start_ns + us * US, correlation=correlation)
                )
                gpu_ns += us * US
            host_ns = end_ns + US
        host_ns += gap_ns
    return Steps(kernels=tuple(kernels), launches=tuple(launches), windows=tuple(windows))


def test_each_kernel_goes_to_the_node_that_launched_it() -> None:
    joined = steps().join()
    assert joined.nodes_us == {"matmul": (120.0,) * 3, "add": (45.0,) * 3}
    assert joined.kernels["matmul"] == (("gemm", "splitK"),) * 3
    assert joined.busy_us == (165.0,) * 3
    assert joined.accounted == 1.0
    assert (joined.unlaunched, joined.outside) == ((), ())
    assert joined.timings()["matmul"].median_us == 120.0
    assert disagreement(joined, {"matmul": 118.0, "add": 44.0}) == ""


def test_kernels_run_long_after_their_window() -> None:
    trace = steps(1)
    last = max(kernel.start_ns for kernel in trace.kernels)
    assert last > max(window.end_ns for window in trace.windows)
    assert trace.join().outside == ()


def test_a_runtime_call_and_the_driver_call_in_it_are_one_launch() -> None:
    trace = steps(1)
    inner = [replace(launch, at_ns=launch.at_ns + 60 * US) for launch in trace.launches]
    assert replace(trace, launches=(*inner, *trace.launches)).join() == trace.join()


def test_the_innermost_window_wins() -> None:
    inner = Window(node="inner", step=0, start_ns=100, end_ns=200)
    windows = [
        Window(node="outer", step=0, start_ns=0, end_ns=1_000),
        inner,
        replace(inner, node="sibling", start_ns=300, end_ns=400),
    ]

    def at(at_ns: int) -> str:
        kernel = Kernel(name="k", start_ns=2_000, end_ns=3_000, correlation=1)
        (name,) = join([kernel], [Launch(correlation=1, at_ns=at_ns)], windows).nodes_us
        return name

    assert [at(50), at(150), at(250), at(350), at(999)] == ["outer", "inner", "outer", "sibling", "outer"]


def test_windows_are_cut_to_whole_microseconds() -> None:
    window = Window(node="n", step=0, start_ns=0, end_ns=5 * US)
    kernel = Kernel(name="k", start_ns=0, end_ns=US, correlation=1)
    for at_ns, is_inside in ((6 * US, True), (8 * US, False), (-1, False)):
        joined = join([kernel], [Launch(correlation=1, at_ns=at_ns)], [window])
        assert bool(joined.nodes_us) is is_inside, at_ns
        assert bool(joined.outside) is not is_inside


def test_overlapping_kernels_count_once_as_busy() -> None:
    trace = steps(1)
    gemm = trace.kernels[0]
    beside = replace(trace.kernels[1], start_ns=gemm.start_ns, end_ns=gemm.end_ns)
    joined = replace(trace, kernels=(gemm, beside)).join()
    assert joined.busy_us == (100.0,)
    assert joined.accounted == 2.0
    assert "200% of the time" in disagreement(joined, {})


def test_missing_launches_are_told() -> None:
    trace = steps()
    joined = replace(trace, launches=trace.launches[:-1]).join()
    assert joined.unlaunched == ("add_kernel",)
    assert "the launch of a kernel (add_kernel) was not recorded" in disagreement(joined, {})


def test_kernels_of_nobody_are_told() -> None:
    trace = steps()
    strange = Kernel(name="other", start_ns=EPOCH, end_ns=EPOCH + US, correlation=7)
    launch = Launch(correlation=7, at_ns=trace.windows[-1].end_ns + 100 * US)
    joined = replace(trace, kernels=(*trace.kernels, strange), launches=(*trace.launches, launch)).join()
    assert joined.outside == ("other",)
    assert "outside every node" in disagreement(joined, {})


def test_copies_of_the_steps_inputs_and_outputs_belong_to_no_node() -> None:
    trace = steps()
    copy = Kernel(name="Memcpy DtoH", start_ns=EPOCH, end_ns=EPOCH + US, correlation=7, is_copy=True)
    launch = Launch(correlation=7, at_ns=trace.windows[-1].end_ns + 100 * US)
    with_copy = replace(trace, kernels=(*trace.kernels, copy), launches=(*trace.launches, launch))
    assert with_copy.join() == trace.join()
    assert align(with_copy.kernels, with_copy.launches, trace.windows) == 0


def test_another_time_alone_is_told() -> None:
    joined = steps().join()
    assert disagreement(joined, {"matmul": 101.0}) == ""
    assert "'matmul' takes 120.0 us in the trace and 95.0 us alone" in disagreement(joined, {"matmul": 95.0})
    assert "'gone' takes 0.0 us" in disagreement(joined, {"gone": 95.0})


def test_other_kernels_from_step_to_step_are_told() -> None:
    trace = steps()
    renamed = replace(trace.kernels[-1], name="another")
    joined = replace(trace, kernels=(*trace.kernels[:-1], renamed)).join()
    assert "1 nodes launched other kernels" in disagreement(joined, {})


def test_nothing_recorded_is_told() -> None:
    trace = steps()
    assert disagreement(join((), trace.launches, trace.windows), {}) == "no kernel was recorded"
    with pytest.raises(ValueError, match="no window"):
        join(trace.kernels, trace.launches, ())


@pytest.mark.parametrize("skew_ns", [-700 * US, 3 * US, 40_000 * US])
def test_clocks_are_aligned_by_the_order_of_launches(skew_ns: int) -> None:
    trace = steps(4, skew_ns=skew_ns)
    assert trace.join().outside != ()
    offset_ns = align(trace.kernels, trace.launches, trace.windows)
    aligned = trace.join(offset_ns)
    assert aligned.outside == ()
    assert aligned.nodes_us == steps(4).join().nodes_us


def test_a_measured_offset_is_kept_when_it_fits() -> None:
    trace = steps(skew_ns=500 * US)
    guess_ns = 500 * US + 300
    assert align(trace.kernels, trace.launches, trace.windows, guess_ns=guess_ns) == guess_ns
    assert align((), (), trace.windows, guess_ns=9) == 9
