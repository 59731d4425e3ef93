"""The graph that the plugin executes, traced back to the nodes of the ONNX graph.

The plugin splits, fuses and renames nodes. Most of what it executes carries names of the graph; the rest
computes nodes that nothing else claims and that lie between its neighbours. What computes none of them, such
as a copy into another layout, belongs to its consumer.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any

from onnx import GraphProto, NodeProto

from campo_onnx.ir.walk import Walk
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import NodeTime, StepTimes
from campo_onnx.runtime.timing import Step, timing_of

_SPLIT_OFF = "/WithoutBiases"  # Gemm becomes a product of this name and an Add
_SINK = "/sink_port_0"
_INPUT, _OUTPUT = "input ", "output "
_NOT_RUN = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Constant"})
_COPIES = frozenset({"Reorder", "Convert"})
_PRECISIONS = {"f32": Precision.FP32, "bf16": Precision.BF16}

_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Einsum"})
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "ConvTranspose"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_REDUCTIONS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"}
)
_COMPUTED: Mapping[str, frozenset[str]] = {
    "MatMul": _PRODUCTS | _CONVOLUTIONS,
    "FullyConnected": _PRODUCTS,
    "Convolution": _CONVOLUTIONS | _PRODUCTS,
    "Deconvolution": _CONVOLUTIONS,
    "Pooling": _POOLS,
    "Reduce": _REDUCTIONS | {"GlobalAveragePool", "GlobalMaxPool"},
}
"""By the plugin's kind of a node: operators whose arithmetic has the precision that it tells. Of other kinds
it tells the type of the first input."""

PRODUCT_KINDS = frozenset({"MatMul", "FullyConnected", "Convolution", "Deconvolution"})
"""Its kinds of products and convolutions."""


class Names:
    """Names that an ONNX graph has for what its nodes compute."""

    def __init__(self, graph: GraphProto) -> None:
        self.node: Mapping[str, NodeProto] = {_name(node): node for node in graph.node}
        self.producer = {output: _name(node) for node in graph.node for output in node.output if output}
        self.before: dict[str, list[str]] = defaultdict(list)
        self.after: dict[str, list[str]] = defaultdict(list)
        sources = {value.name: _INPUT + value.name for value in graph.input} | self.producer
        edges = [(tensor, _name(node)) for node in graph.node for tensor in node.input]
        edges += [(value.name, _OUTPUT + value.name) for value in graph.output]
        for tensor, reader in edges:
            if tensor in sources:
                self.before[reader].append(sources[tensor])
                self.after[sources[tensor]].append(reader)

    def op_type(self, name: str) -> str:
        """Operator of a node; ``""`` for an input or output of the graph."""
        return self.node[name].op_type if name in self.node else ""

    def of_port(self, kind: str, name: str) -> str:
        """Name among neighbours of what the plugin calls an input or output of the graph."""
        return _INPUT + name if kind == "Input" else _OUTPUT + name.removesuffix(_SINK)

    def of(self, original: str) -> str | None:
        """Node that a name of the plugin speaks of: its own name, or that of its output."""
        plain = original.removesuffix(_SPLIT_OFF)
        return plain if plain in self.node else self.producer.get(plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One node of the executed graph.

    `computes` is the one of them whose arithmetic has `precision`; empty where that cannot be told. The
    precision is None where the plugin tells that of its input alone.
    """

    name: str  # as counters of time call it
    nodes: tuple[str, ...]
    computes: tuple[str, ...]
    kernel: str
    precision: Precision | None


@dataclass(slots=True)
class _Node:
    """One node of the plugin's graph, with its neighbours there."""

    name: str
    kind: str
    kernel: str
    precision: str
    nodes: set[str]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def computed(self, names: Names) -> tuple[str, ...]:
        """Those of its ONNX nodes whose arithmetic has the precision that the plugin tells."""
        kinds = _COMPUTED.get(self.kind, frozenset())
        return tuple(name for name in sorted(self.nodes) if names.op_type(name) in kinds)

    def executed(self, names: Names) -> Executed:
        computed = self.computed(names)
        precision = _PRECISIONS.get(self.precision) if computed else None
        return Executed(
            name=self.name,
            nodes=tuple(sorted(self.nodes & names.node.keys())),
            computes=computed if precision is not None and len(computed) == 1 else (),
            kernel=f"{self.kind} {self.kernel}",
            precision=precision,
        )


def executed_nodes(graph: Any, names: Names) -> tuple[Executed, ...]:
    """Trace every node of the executed graph back to the ONNX graph, in execution order."""
    nodes = _read(graph, names)
    products = [n for n in nodes.values() if n.kind in PRODUCT_KINDS and not n.computed(names)]
    others = [n for n in nodes.values() if n.kind not in PRODUCT_KINDS | _COPIES | _NOT_RUN]
    for unnamed in (products, [node for node in others if not node.nodes]):
        computed = {name for node in nodes.values() for name in node.computed(names)}
        # The bias of a Gemm is added elsewhere, under its name: a product is claimed by who multiplies.
        claimed = {
            name
            for node in nodes.values()
            for name in node.nodes
            if name in computed or names.op_type(name) not in _PRODUCTS
        }
        regions = [_between(node, nodes, names, claimed - node.nodes) for node in unnamed]
        for node, region in zip(unnamed, regions, strict=True):
            node.nodes |= region
    for node in nodes.values():
        if not node.nodes and node.kind not in _NOT_RUN:
            node.nodes = _nearest(node, nodes, lambda n: n.after) or _nearest(node, nodes, lambda n: n.before)
    return tuple(node.executed(names) for node in nodes.values() if node.kind not in _NOT_RUN)


def step_times(
    nodes: Sequence[Executed],
    step: Step,
    counters: Callable[[], Iterable[Any]],
    *,
    repeats: int,
    warmup: int,
    on_step: Callable[[], None] | None,
) -> StepTimes:
    """Time repeated steps by the plugin's counters; of these the faster half is told."""
    totals: list[Mapping[str, float]] = [{}]
    steps_us: list[float] = []
    try:
        for done in range(1, warmup + repeats + 1):
            began = time.perf_counter_ns()
            step()
            steps_us.append((time.perf_counter_ns() - began) / 1000)
            totals.append({c.node_name: _total_us(c, done) for c in counters()})
            if on_step is not None:
                on_step()
    except KeyboardInterrupt:
        if len(steps_us) <= warmup:
            raise
    counted = range(min(warmup, len(steps_us) - 1), min(len(steps_us), len(totals) - 1))
    faster = sorted(counted, key=steps_us.__getitem__)[: (len(counted) + 1) // 2]
    rounds = [{n: us - totals[i].get(n, 0.0) for n, us in totals[i + 1].items()} for i in faster]
    return StepTimes(
        nodes=tuple(_timed(node, rounds) for node in nodes if any(r.get(node.name) for r in rounds)),
        step=timing_of([steps_us[i] for i in faster]),
        accounted=median(sum(r.values()) / steps_us[i] for r, i in zip(rounds, faster, strict=True)),
        interrupted=len(steps_us) < warmup + repeats,
    )


def _total_us(counter: Any, steps: int) -> float:
    """Time of a node in all steps so far: counters tell the mean over them, rounded down to microseconds."""
    mean_us = counter.real_time.total_seconds() * 1e6
    return (mean_us + 0.5) * steps if mean_us else 0.0


def _timed(node: Executed, rounds: Sequence[Mapping[str, float]]) -> NodeTime:
    """Mean over steps: single ones scatter by as many microseconds as there were steps before them."""
    samples = [one.get(node.name, 0.0) for one in rounds]
    return NodeTime(
        nodes=node.nodes,
        kernel=node.kernel,
        precision=node.precision,
        time=replace(timing_of(samples), median_us=max(mean(samples), 0.0)),
    )


def _name(node: NodeProto) -> str:
    return node.name or next((output for output in node.output if output), node.op_type)


def _read(graph: Any, names: Names) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    ordered = sorted(graph.get_ordered_ops(), key=_order)
    for op in ordered:
        facts, name = op.get_rt_info(), op.get_friendly_name()
        kind = _fact(facts, "layerType")
        originals = _fact(facts, "originalLayersNames").split(",")
        onnx_nodes = {node for original in originals if (node := names.of(original)) is not None}
        if kind in ("Input", "Output"):
            onnx_nodes = {names.of_port(kind, name)}
        nodes[name] = _Node(
            name=name,
            kind=kind,
            kernel=_fact(facts, "primitiveType"),
            precision=_fact(facts, "runtimePrecision"),
            nodes=onnx_nodes,
        )
    for op in ordered:
        for place in op.inputs():
            source = place.get_source_output().get_node().get_friendly_name()
            nodes[op.get_friendly_name()].before.append(source)
            nodes[source].after.append(op.get_friendly_name())
    return nodes


def _order(op: Any) -> int:
    order = _fact(op.get_rt_info(), "execOrder")
    return int(order) if order.isdigit() else 0


def _fact(facts: Any, key: str) -> str:
    return str(facts[key].value) if key in facts else ""


def _between(node: _Node, nodes: Mapping[str, _Node], names: Names, claimed: set[str]) -> set[str]:
    """ONNX nodes that nothing claims, after each of a node's inputs and before one of its consumers."""
    downs = [
        _unclaimed(sources, names.after, claimed)
        for before in dict.fromkeys(node.before)
        if (sources := _named(before, nodes, lambda n: n.before))
    ]
    # Nodes that compute the same are executed once, and then not every input leads to the other's reader.
    region = (set[str].intersection(*downs) or set[str].union(*downs)) if downs else set()
    if sinks := _nearest(node, nodes, lambda n: n.after):
        up = _unclaimed(sinks, names.before, claimed) | (sinks - claimed)
        region = region & up if downs else up
    of_kind = {name for name in region if names.op_type(name) in _COMPUTED.get(node.kind, ())}
    return of_kind or region


def _unclaimed(start: Iterable[str], edges: Mapping[str, list[str]], claimed: set[str]) -> set[str]:
    reached: set[str] = set()
    todo = list(start)
    while todo:
        for neighbour in edges.get(todo.pop(), ()):
            if neighbour not in claimed and neighbour not in reached:
                reached.add(neighbour)
                todo.append(neighbour)
    return reached


def _nearest(node: _Node, nodes: Mapping[str, _Node], neighbours: Callable[[_Node], list[str]]) -> set[str]:
    """ONNX nodes of the nearest neighbours that have any."""
    return {name for first in neighbours(node) for name in _named(first, nodes, neighbours)}


def _named(first: str, nodes: Mapping[str, _Node], neighbours: Callable[[_Node], list[str]]) -> set[str]:
    """ONNX nodes of a node, or of the nearest ones beyond it that have any."""
    walk, named = Walk([first]), set[str]()
    for name in walk:
        if nodes[name].nodes:
            named |= nodes[name].nodes
        else:
            walk.add(neighbours(nodes[name]))
    return named
