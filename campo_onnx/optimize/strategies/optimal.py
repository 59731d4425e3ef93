"""The assignment nothing can beat under the same lists, safety rules and costs: a minimum s-t cut.

The source side is low, the sink side FP32. A node that gains ``g`` in low precision hangs on the
source by an arc of capacity ``g`` (cut when it stays FP32), one that loses on the sink. A Cast of a
tensor is one auxiliary vertex, shared by all its readers, so a cut pays it once:

- to low: reader -> vertex (infinite), vertex -> producer (cast time);
- back to FP32: producer -> vertex (cast time), vertex -> reader (infinite).

What stays FP32 for ever (deny, taint, missing kernels, graph inputs and outputs) is the sink.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.problem import Assignment, Edge, Problem, Verdict
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts

_MAY_BE_LOW = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)
_SOURCE, _SINK = 0, 1
_LARGEST_SUM = 1 << 29  # scipy's flows are int32: all finite capacities together stay well below


def optimal(problem: Problem) -> Assignment:
    """Find the assignment of least predicted time, with a certificate that it is the least.

    Returns
    -------
    Assignment
        Of the fewest low nodes among those equally fast after scaling. ``lower_bound_us`` is what
        no assignment can go below: the value of the cut, less what scaling can have hidden.
    """
    verdicts = listed_verdicts(problem)
    tainted = taint(problem.view, problem.classification)
    for name in tainted:
        verdicts[name] = Verdict(decided_by="taint", reason="downstream of a deny node")
    free = [
        node.name
        for node in problem.view.nodes
        if node.name not in tainted and has_class(problem, node.name, *_MAY_BE_LOW)
    ]
    cut = _minimum_cut(problem, free)
    for name in free:
        gain_us = problem.costs.nodes[name].gain_us
        verdicts[name] = Verdict(
            decided_by="minimum-cut",
            reason=f"gains {gain_us:.1f} us; the least step has it low"
            if name in cut.low
            else f"would gain {gain_us:.1f} us, less than the casts it brings into the least step",
        )
    return Assignment(
        low=cut.low,
        verdicts={k: v for k, v in verdicts.items() if problem.is_free(k)},
        lower_bound_us=cut.lower_bound_us,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    low: frozenset[str]
    lower_bound_us: float


@dataclass(slots=True)
class _Network:
    """Arcs with capacities in microseconds; infinite ones hold assignments together."""

    vertex: dict[str, int]
    size: int
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    capacities_us: list[float] = field(default_factory=list)
    constant_us: float = 0.0

    def arc(self, tail: int, head: int, capacity_us: float = float("inf")) -> None:
        self.tails.append(tail)
        self.heads.append(head)
        self.capacities_us.append(capacity_us)

    def auxiliary(self) -> int:
        self.size += 1
        return self.size - 1


def _minimum_cut(problem: Problem, free: list[str]) -> _Cut:
    network = _Network(vertex={name: 2 + i for i, name in enumerate(free)}, size=2 + len(free))
    network.constant_us = problem.costs.fp32_us
    for name, vertex in network.vertex.items():
        gain_us = problem.costs.nodes[name].gain_us
        if gain_us > 0:
            network.constant_us -= gain_us
            network.arc(_SOURCE, vertex, gain_us)
        elif gain_us < 0:
            network.arc(vertex, _SINK, -gain_us)
    for edge in problem.edges.values():
        _add_casts(network, edge)
    for edge in problem.edges.values():
        _add_droppable_cast(network, problem, edge)
    return _solve(network)


def _add_casts(network: _Network, edge: Edge) -> None:
    readers = [network.vertex[r] for r in edge.readers if r in network.vertex]
    fixed_reader = edge.needs_fp32 or len(readers) < len(edge.readers)
    producer = network.vertex.get(edge.producer) if edge.producer is not None else None
    if readers and edge.twin is None:
        down = network.auxiliary()
        for reader in readers:
            network.arc(reader, down)
        network.arc(down, _SINK if producer is None else producer, edge.cast_us)
    if producer is not None:
        if fixed_reader:
            network.arc(producer, _SINK, edge.cast_us)
        elif readers:
            up = network.auxiliary()
            network.arc(producer, up, edge.cast_us)
            for reader in readers:
                network.arc(up, reader)


def _add_droppable_cast(network: _Network, problem: Problem, edge: Edge) -> None:
    """An existing Cast that an assignment makes needless: its time is saved."""
    if edge.twin is None:
        return
    maker = problem.view.producer.get(edge.tensor)
    if edge.producer in network.vertex:
        saved_us = problem.costs.nodes[problem.view.producer[edge.twin].name].fp32_us
        network.constant_us -= saved_us
        network.arc(_SOURCE, network.vertex[edge.producer], saved_us)
    elif maker is not None and edge.twin in maker.inputs and edge.readers and not edge.needs_fp32:
        readers = [network.vertex.get(reader) for reader in edge.readers]
        if None in readers:
            return
        saved_us = problem.costs.nodes[maker.name].fp32_us
        network.constant_us -= saved_us
        dropped = network.auxiliary()
        network.arc(_SOURCE, dropped, saved_us)
        for reader in readers:
            assert reader is not None
            network.arc(dropped, reader)


def _solve(network: _Network) -> _Cut:
    capacities_us = np.array(network.capacities_us)
    finite = np.isfinite(capacities_us)
    total_us = float(capacities_us[finite].sum())
    if total_us == 0.0:
        return _Cut(low=frozenset(), lower_bound_us=network.constant_us)
    # A power of two keeps short binary fractions exact, and with them what is equally fast.
    scale = 2.0 ** math.floor(math.log2(_LARGEST_SUM / total_us))
    infinite = 2 * _LARGEST_SUM
    scaled = np.full(capacities_us.shape, infinite, dtype=np.int64)
    scaled[finite] = np.floor(capacities_us[finite] * scale)
    # Parallel arcs (a node with several fixed readers) add up in the constructor, infinite ones too.
    graph = csr_array(
        (scaled, (np.array(network.tails), np.array(network.heads))), shape=(network.size, network.size)
    )
    graph.data = np.minimum(graph.data, infinite).astype(np.int32)
    result = maximum_flow(graph, _SOURCE, _SINK)
    left = csr_array(graph - result.flow)
    left.eliminate_zeros()  # a saturated arc leads nowhere
    reached = frozenset(breadth_first_order(left, _SOURCE, return_predecessors=False).tolist())
    low = frozenset(name for name, vertex in network.vertex.items() if vertex in reached)
    # Capacities were rounded down, so every cut is at least as dear as its scaled value.
    return _Cut(low=low, lower_bound_us=network.constant_us + float(result.flow_value / scale))
