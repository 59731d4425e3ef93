"""The question a strategy answers: which of the free nodes become low.

Everything a strategy needs is here as values; it neither reads the model nor knows the device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from campo_onnx.costs.table import CostTable
from campo_onnx.ir.view import FLOAT, GraphView, TensorKind
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.classify import Classification
from campo_onnx.optimize.oplists import OpClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who decided a node's precision, and why."""

    decided_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One FP32 tensor that may need a Cast: who makes it and who reads it.

    Parameters
    ----------
    tensor
        Its name.
    producer
        The node that makes it low when it is low itself; None for graph inputs and for tensors
        that are FP32 whatever their node's precision.
    readers
        Nodes that read it low when they are low themselves, each once.
    needs_fp32
        Whether somebody wants it in FP32 for ever: the graph's caller, or a port of fixed type.
    twin
        Name of a low version that exists in the given graph, or None.
    cast_us
        Time of one Cast of it, in either direction.
    """

    tensor: str
    producer: str | None
    readers: tuple[str, ...]
    needs_fp32: bool
    twin: str | None
    cast_us: float

    def is_cast_down(self, low: frozenset[str] | set[str]) -> bool:
        """Whether low readers need a Cast of an FP32 tensor."""
        return self.producer not in low and self.twin is None and any(r in low for r in self.readers)

    def is_cast_up(self, low: frozenset[str] | set[str]) -> bool:
        """Whether FP32 readers need a Cast of a low tensor."""
        return self.producer in low and (self.needs_fp32 or any(r not in low for r in self.readers))

    def boundary_us(self, low: frozenset[str] | set[str]) -> float:
        """Time of the Cast that `low` makes necessary here, or 0."""
        return self.cast_us if self.is_cast_down(low) or self.is_cast_up(low) else 0.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A graph with its classes, costs and the nodes that are not up for decision.

    Parameters
    ----------
    view
        The graph.
    low
        The low precision.
    classification
        Class of every node.
    ports
        Ports of every node.
    fixed
        Nodes that stay as they are, with who says so.
    costs
        Times of nodes and casts.
    edges
        Every tensor that may need a Cast, by name.
    """

    view: GraphView
    low: Precision
    classification: Classification
    ports: Mapping[str, Ports]
    fixed: Mapping[str, Verdict]
    costs: CostTable
    edges: Mapping[str, Edge] = field(default_factory=dict)

    def op_class(self, node: str) -> OpClass:
        """Class of a node."""
        return self.classification.classes[node].op_class

    def is_free(self, node: str) -> bool:
        """Whether a strategy may decide about the node (its class permitting)."""
        return node not in self.fixed

    def edges_of(self, node: str) -> tuple[Edge, ...]:
        """Edges whose casts depend on the node's precision, each once."""
        op_node, ports = self.view.node[node], self.ports[node]
        tensors = dict.fromkeys(op_node.inputs[i] for i in sorted(ports.low_inputs))
        tensors |= dict.fromkeys(op_node.outputs[i] for i in sorted(ports.low_outputs))
        return tuple(self.edges[t] for t in tensors if t in self.edges)

    def predicted_us(self, low: frozenset[str]) -> float:
        """Predicted step when exactly the nodes in `low` are low: nodes plus casts."""
        saved_us = sum(self.costs.nodes[name].gain_us for name in low)
        saved_us += sum(self.costs.nodes[name].fp32_us for name in self.dropped_casts(low))
        return self.costs.fp32_us - saved_us + sum(edge.boundary_us(low) for edge in self.edges.values())

    def dropped_casts(self, low: frozenset[str]) -> frozenset[str]:
        """Existing Casts between FP32 and the low precision that nobody needs any more."""
        dropped = set()
        for edge in self.edges.values():
            if edge.twin is None:
                continue
            maker = self.view.producer.get(edge.tensor)
            if edge.producer in low:  # the Cast to the twin: its input is low already
                dropped.add(self.view.producer[edge.twin].name)
            elif (
                maker is not None
                and edge.twin in maker.inputs  # the Cast from the twin
                and edge.readers
                and not edge.needs_fp32
                and all(reader in low for reader in edge.readers)
            ):
                dropped.add(maker.name)
        return frozenset(dropped)


Strategy = Callable[[Problem], "Assignment"]
"""A way to answer: a plain function of the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An answer: the nodes that become low, and a verdict for every free node.

    Parameters
    ----------
    low
        Names of nodes.
    verdicts
        By node name; nodes fixed beforehand keep the problem's verdict.
    lower_bound_us
        What no assignment can go below, where the strategy proves one.
    """

    low: frozenset[str]
    verdicts: Mapping[str, Verdict]
    lower_bound_us: float | None = None


def edges_of_graph(
    view: GraphView, ports: Mapping[str, Ports], costs: CostTable, low: Precision
) -> Mapping[str, Edge]:
    """List the tensors that may need a Cast.

    Constants need none: a low version of theirs is written into the file.
    """
    makes_low = {node.outputs[i]: node.name for node in view.nodes for i in ports[node.name].low_outputs}
    twins = low_twins(view, low)
    edges: dict[str, Edge] = {}
    for tensor, info in view.tensors.items():
        if info.dtype != FLOAT or info.kind is TensorKind.CONSTANT:
            continue
        readers: dict[str, None] = {}
        needs_fp32 = info.is_output
        for use in view.consumers.get(tensor, ()):
            reader_ports = ports[use.node]
            if use.position in reader_ports.low_inputs:
                readers[use.node] = None
            elif (
                use.position not in reader_ports.any_inputs
                and twins.get(tensor) not in view.node[use.node].outputs
            ):
                needs_fp32 = True
        if readers or tensor in makes_low:
            edges[tensor] = Edge(
                tensor=tensor,
                producer=makes_low.get(tensor),
                readers=tuple(readers),
                needs_fp32=needs_fp32,
                twin=twins.get(tensor),
                cast_us=costs.cast.cast_us(info.elements or 0),
            )
    return edges


def low_twins(view: GraphView, low: Precision) -> Mapping[str, str]:
    """Find low versions of FP32 tensors that existing Casts of the graph relate to them."""
    twins: dict[str, str] = {}
    for node in view.nodes:
        if node.op.op_type != "Cast" or node.op.domain:
            continue
        source, target = node.inputs[0], node.outputs[0]
        if view.is_float32(source) and view.tensors[target].dtype == low.onnx_dtype:
            twins.setdefault(source, target)
        elif view.is_float32(target) and view.tensors[source].dtype == low.onnx_dtype:
            twins.setdefault(target, source)
    return twins
