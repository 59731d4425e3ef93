"""GPU time of every node of a step: kernels joined to nodes by the moment they were launched.

ONNX Runtime's profile tells when the host worked on a node (its window), not how long the GPU did. A
profiler of CUDA tells for every kernel how long it ran, and when the host launched it. The executor
works on one node after another, so a kernel belongs to the node in whose window its launch lies.
Nothing here needs a GPU; :mod:`campo_onnx.runtime.onnxruntime.kineto` records on one.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from campo_onnx.runtime.timing import Timing, timing_of

ACCOUNTED = 0.05
"""Kernels may add up to so much less or more than the time in which the GPU was busy."""

SPOT_TOLERANCE = 0.2
"""Largest relative difference of a node's time in the trace from its time alone."""

_SLACK_NS = 2_000  # a window is given in whole microseconds: begin and length are both cut off
_CANDIDATES = 64  # windows that the first launch is tried in when clocks have to be aligned
_PROBES = 500  # launches that tell whether they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Something the GPU did: a kernel, a copy, or a fill.

    Times go by the profiler's clock.
    """

    name: str
    start_ns: int
    end_ns: int
    correlation: int  # number that it shares with its launch
    is_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A call of the CUDA runtime or driver that made the GPU do something."""

    correlation: int  # number that it shares with what the GPU did
    at_ns: int  # when it began, by the profiler's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When the host worked on a node.

    Times go by ONNX Runtime's clock. A node with a body (If, Loop) encloses the windows of its body.
    """

    node: str
    step: int  # the step, counted from 0
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Kernels by node."""

    # for each node that launched anything, GPU time in every step; 0 in a step without a kernel
    nodes_us: Mapping[str, tuple[float, ...]]
    kernels: Mapping[str, tuple[tuple[str, ...], ...]]  # for each of them, the kernels' names in every step
    # time in which the GPU did anything, in every step: overlapping kernels count once
    busy_us: tuple[float, ...]
    unlaunched: tuple[str, ...]  # names of kernels whose launch was not recorded
    # names of kernels that were launched outside every window. Copies there belong to no node: they bring the
    # step's inputs and outputs to where they are wanted.
    outside: tuple[str, ...]

    @property
    def accounted(self) -> float:
        """Sum of all kernels as a share of the GPU's busy time, median over the steps."""
        sums = [sum(times[step] for times in self.nodes_us.values()) for step in range(len(self.busy_us))]
        shares = [us / busy for us, busy in zip(sums, self.busy_us, strict=True) if busy]
        return median(shares) if shares else 0.0

    def timings(self) -> Mapping[str, Timing]:
        """GPU time per node over all steps."""
        return {name: timing_of(times) for name, times in self.nodes_us.items()}


def join(
    kernels: Iterable[Kernel], launches: Iterable[Launch], windows: Sequence[Window], *, offset_ns: int = 0
) -> Joined:
    """Give every kernel to the node that launched it.

    Windows are of all steps, and of none before the recording. `offset_ns` is added to the profiler's clock
    to get ONNX Runtime's.
    """
    if not windows:
        raise ValueError("no window to join kernels to")
    steps = max(window.step for window in windows) + 1
    launched_ns = _launched_ns(launches)
    index = _Index(windows)
    ran: dict[tuple[str, int], list[Kernel]] = defaultdict(list)
    unlaunched, outside = [], []
    for kernel in sorted(kernels, key=lambda k: k.start_ns):
        at_ns = launched_ns.get(kernel.correlation)
        if at_ns is None:
            unlaunched.append(kernel.name)
            continue
        window = index.at(at_ns + offset_ns)
        if window is not None:
            ran[window.node, window.step].append(kernel)
        elif not kernel.is_copy:
            outside.append(kernel.name)
    names = dict.fromkeys(node for node, _ in ran)
    by_step: dict[int, list[Kernel]] = defaultdict(list)
    for (_, step), group in ran.items():
        by_step[step] += group
    return Joined(
        nodes_us={n: tuple(_sum_us(ran.get((n, step), ())) for step in range(steps)) for n in names},
        kernels={n: tuple(tuple(k.name for k in ran.get((n, s), ())) for s in range(steps)) for n in names},
        busy_us=tuple(_busy_us(by_step[step]) for step in range(steps)),
        unlaunched=tuple(unlaunched),
        outside=tuple(outside),
    )


def align(
    kernels: Sequence[Kernel], launches: Sequence[Launch], windows: Sequence[Window], *, guess_ns: int = 0
) -> int:
    """Find the offset between the two clocks from the order of events.

    The guess is kept when it puts every launch into a window. Else the first launch is tried at several
    moments of one window after another; the offset wins that leaves the fewest launches outside, and of equal
    ones that closest to the guess. `guess_ns` is an offset that was measured, or 0 for clocks that count from
    the same moment.
    """
    launched_ns = _launched_ns(launches)
    launched = [kernel for kernel in kernels if kernel.correlation in launched_ns and not kernel.is_copy]
    if not launched or not windows or not join(launched, launches, windows, offset_ns=guess_ns).outside:
        return guess_ns
    index = _Index(windows)
    times_ns = sorted(launched_ns[kernel.correlation] for kernel in launched)
    probed_ns = times_ns[:: max(1, len(times_ns) // _PROBES)]

    def cost(offset_ns: int) -> tuple[int, int]:
        outside = sum(index.at(time_ns + offset_ns) is None for time_ns in probed_ns)
        return outside, abs(offset_ns - guess_ns)

    moments = (at_ns for window in index.windows[:_CANDIDATES] for at_ns in _moments_ns(window))
    return min([guess_ns, *(at_ns - times_ns[0] for at_ns in moments)], key=cost)


def disagreement(joined: Joined, alone_us: Mapping[str, float]) -> str:
    """Say why a trace is not to be trusted; ``""`` when it is.

    `alone_us` has some nodes that take long, timed alone.
    """
    if not joined.nodes_us:
        return "no kernel was recorded"
    if joined.unlaunched:
        return f"the launch of {_counted(joined.unlaunched)} was not recorded"
    if joined.outside:
        return f"{_counted(joined.outside)} was launched outside every node"
    if abs(joined.accounted - 1) > ACCOUNTED:
        return (
            f"kernels add up to {joined.accounted:.0%} of the time in which the GPU was busy, "
            f"and {ACCOUNTED:.0%} is the most they may differ"
        )
    if restless := sum(len(set(steps)) > 1 for steps in joined.kernels.values()):
        return f"{restless} nodes launched other kernels from step to step"
    traced_us = {name: median(times) for name, times in joined.nodes_us.items()}
    for name, alone in alone_us.items():
        if abs(traced_us.get(name, 0.0) - alone) > SPOT_TOLERANCE * alone:
            return (
                f"{name!r} takes {traced_us.get(name, 0.0):.1f} us in the trace and {alone:.1f} us alone, "
                f"and {SPOT_TOLERANCE:.0%} is the most they may differ"
            )
    return ""


class _Index:
    """Finds the window at a time: of nested ones, the innermost."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = sorted(windows, key=lambda w: (w.start_ns, -w.end_ns))
        self.starts = [window.start_ns for window in self.windows]
        self.parents: list[int | None] = []
        open_windows: list[int] = []
        for i, window in enumerate(self.windows):
            while open_windows and self.windows[open_windows[-1]].end_ns < window.end_ns:
                open_windows.pop()
            self.parents.append(open_windows[-1] if open_windows else None)
            open_windows.append(i)

    def at(self, time_ns: int) -> Window | None:
        """The window at a time, or None."""
        latest = bisect_right(self.starts, time_ns) - 1
        if latest < 0:
            return None
        i: int | None = latest
        while i is not None:
            if time_ns <= self.windows[i].end_ns:
                return self.windows[i]
            i = self.parents[i]
        return self.windows[latest] if time_ns <= self.windows[latest].end_ns + _SLACK_NS else None


def _moments_ns(window: Window) -> Iterator[int]:
    """Moments of a window, closer together at its begin, where launches are."""
    after_ns = 1_000
    while window.start_ns + after_ns <= window.end_ns:
        yield window.start_ns + after_ns
        after_ns = after_ns * 5 // 4


def _launched_ns(launches: Iterable[Launch]) -> Mapping[int, int]:
    """When each correlation was launched: a runtime call may contain a driver call of the same number."""
    times_ns: dict[int, int] = {}
    for launch in launches:
        times_ns[launch.correlation] = min(launch.at_ns, times_ns.get(launch.correlation, launch.at_ns))
    return times_ns


def _sum_us(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.end_ns - kernel.start_ns for kernel in kernels) / 1000


def _busy_us(kernels: Iterable[Kernel]) -> float:
    """Length of the union of all kernels."""
    busy_ns, until_ns = 0, 0
    for kernel in sorted(kernels, key=lambda k: k.start_ns):
        busy_ns += max(0, kernel.end_ns - max(kernel.start_ns, until_ns))
        until_ns = max(until_ns, kernel.end_ns)
    return busy_ns / 1000


def _counted(names: Sequence[str]) -> str:
    (name, _), *_ = Counter(names).most_common(1)
    return f"{len(names)} kernels ({name}, ...)" if len(names) > 1 else f"a kernel ({name})"
