"""Time single nodes: models of one op, kept in the store as they are measured."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.measure.one_node import chain_model, one_node_model, one_node_view
from campo_onnx.measure.store import Execution, Store, TimingKey
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import FLOAT, Signature, make_signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load
from campo_onnx.runtime.timing import (
    GPU_SPIN_S,
    SHORTEST_US,
    Effort,
    Step,
    Timing,
    copies_for,
    measure,
    slope,
)

GIB = 2**30

NODE_EFFORT = Effort(warmup=1, repeats=25, least=5, budget_s=0.2)
"""A few tenths of a second for a node: graphs have hundreds of distinct ones."""

VIEW_NODE = make_signature(
    OpKey("", "Reshape"),
    inputs=[(FLOAT, (8,)), (int(TensorProto.INT64), (2,))],
    outputs=[(FLOAT, (2, 4))],
    constants={1: np.asarray([2, 4])},
)
"""Stands for every node that only renames bytes. At the edge of a graph such a node copies its input, which
on a GPU is a launch; inside it costs the host alone. So it is timed as a chain inside one graph."""

LAUNCH_NODE = make_signature(OpKey("", "Relu"), inputs=[(FLOAT, (4,))], outputs=[(FLOAT, (4,))])
"""A node that does next to nothing: it costs what a node costs that launches a kernel."""

_CHAIN = 256  # views that one chain has more than the other: each takes less than a microsecond
_LONG_US = 50_000.0
_RETRIES = 2
_FAR = 0.5  # of another timing of the same node
_STEADY = 0.2  # a spread up to this share of the time is as good as it gets on a shared machine


class NotStoredError(UnsupportedModelError):
    """A node has no stored time, and none may be measured."""


@dataclass(frozen=True, kw_only=True)
class NodeTimer:
    """Machine and settings for timing nodes."""

    machine: Machine
    store: Store
    execution: Execution = Execution.STREAM
    effort: Effort = NODE_EFFORT
    memory_bytes: float = 1.0 * GIB
    only_stored: bool = False  # whether nothing is measured: for timings of a machine that is not here
    # Timings from before this moment (ISO 8601, UTC) are taken once more, and the better one is kept: other
    # programs, and other guests of the same host, only ever make a node slower, for seconds on end. `""`
    # takes no timing again.
    again_before: str = ""

    def key(self, signature: Signature) -> TimingKey:
        """Key of a timing of `signature`."""
        return TimingKey(machine=self.machine, signature=timed_as(signature).key, execution=self.execution)

    def find(self, signature: Signature) -> Timing | None:
        """Look up a timing taken earlier."""
        return self.store.find(self.key(signature))

    def time(self, signature: Signature) -> Timing:
        """Look a node's time up, or measure and keep it."""
        key = self.key(signature)
        earlier = self.store.find(key)
        if earlier is not None and self.store.measured_at(key) >= self.again_before:
            return earlier
        if self.only_stored:
            raise NotStoredError(
                f"no time of {signature.op.label} in these shapes", why=f"it is not in {self.store.path}"
            )
        timing = time_node(timed_as(signature), self)
        if earlier is not None:
            timing = self._better(signature, earlier, timing)
        self.store.add(key, timing)
        return timing

    def _better(self, signature: Signature, earlier: Timing, timing: Timing) -> Timing:
        """Choose among two timings; where one is less than half the other, a third one says which is off.

        A time is a difference of two, and too short where the smaller one was disturbed.
        """
        short, long = sorted((earlier, timing), key=lambda one: one.median_us)
        if short.median_us < _FAR * long.median_us:
            third = time_node(timed_as(signature), self)
            return sorted((short, third, long), key=lambda one: one.median_us)[1]
        return min(earlier, timing, key=_doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One signature after :func:`time_all` came to it."""

    signature: Signature
    timing: Timing | None
    failure: str = ""


def timed_as(signature: Signature) -> Signature:
    """The signature to time in place of another: mostly itself."""
    return VIEW_NODE if work_of(signature).kind in HOST_ONLY else signature


def time_all(
    signatures: Iterable[Signature], timer: NodeTimer, on_done: Callable[[Measured], None] | None = None
) -> Iterator[Measured]:
    """Time signatures one after another; one that fails does not stop the rest."""
    for signature in signatures:
        try:
            measured = Measured(signature=signature, timing=timer.time(signature))
        except UnsupportedModelError as error:
            measured = Measured(signature=signature, timing=None, failure=str(error))
        if on_done is not None:
            on_done(measured)
        yield measured


def time_node(signature: Signature, timer: NodeTimer) -> Timing:
    """Time one node by the slope between two models with few and many copies of it."""
    try:
        return _slope_of(signature, timer)
    except ModelError as error:
        raise UnsupportedModelError(f"{signature.op.label} fails in these shapes", why=error.why) from None


def _slope_of(signature: Signature, timer: NodeTimer) -> Timing:
    feeds = synthesize(one_node_view(signature))
    few = _step(signature, feeds, 1, timer)
    few()
    once_us = measure(few, replace(timer.effort, warmup=0, repeats=2, least=1)).median_us
    if signature is VIEW_NODE:
        extra = _CHAIN
    else:
        extra = copies_for(once_us, node_bytes=signature.nbytes, limit_bytes=timer.memory_bytes)
    many = _step(signature, feeds, 1 + extra, timer)
    effort = replace(timer.effort, least=3) if once_us > _LONG_US else timer.effort
    if timer.machine.is_gpu:  # it was idle while the models were loaded
        effort = replace(effort, spin_s=GPU_SPIN_S)
    timing = slope(few, many, extra, effort)
    for _ in range(_RETRIES):
        if timing.spread_us <= _STEADY * timing.median_us:
            break
        timing = min(timing, slope(few, many, extra, effort), key=_scatter)
    # Noise may outweigh a node that takes next to nothing; no node takes less than nothing.
    return replace(timing, median_us=max(timing.median_us, 0.0))


def _scatter(timing: Timing) -> float:
    """Spread as a share of the time; nothing scatters more than a time of zero or less."""
    return timing.spread_us / timing.median_us if timing.median_us > 0 else float("inf")


def _doubt(timing: Timing) -> tuple[bool, bool, float]:
    """Order two timings of one node, the better one first: a time, a steady one, the shorter one."""
    is_none = timing.median_us <= SHORTEST_US
    return is_none, timing.spread_us > _STEADY * timing.median_us, timing.median_us


def _step(signature: Signature, feeds: Mapping[str, NDArray[Any]], copies: int, timer: NodeTimer) -> Step:
    settings = LoadSettings(captures=timer.execution is Execution.GRAPH)
    if signature is VIEW_NODE:
        return load(chain_model(signature, copies), timer.machine, settings=settings).placed(feeds)
    program = load(one_node_model(signature, copies), timer.machine, settings=settings)
    own = {f"{name}_{copy}": array.copy() for copy in range(copies) for name, array in feeds.items()}
    return program.placed(own)
