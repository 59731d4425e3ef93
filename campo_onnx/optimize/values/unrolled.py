"""A graph with the bodies of If, Loop and Scan in the place of these nodes, for what is told of its values.

Bodies compute in FP32. What they make of values, and how exactly they need those they read, is told by
their nodes all the same: so each body is put beside the nodes around it, that of a loop twice, where the
second turn reads what the first one returns. Nothing of it is run or written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from campo_onnx.ir.bodies import Body, read_body
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.fold import fold, is_small, may_fold
from campo_onnx.ops.key import OpKey, op_keys
from campo_onnx.ops.values.need import EXACT, Need, Needs
from campo_onnx.optimize.canonical import with_canonical_ops
from campo_onnx.optimize.values.loops import (
    accumulating_outputs,
    factors_of_states,
    growing_outputs,
    scanned_axes,
)

_FLOAT, _DOUBLE = int(TensorProto.FLOAT), int(TensorProto.DOUBLE)
_FILL = OpKey("", "ConstantOfShape")


def in_normal_form(view: GraphView, protos: Iterable[NodeProto]) -> GraphView:
    """Take numbers in FP64 as numbers, fold constants, and name products and sums by what they are."""
    tensors, values = dict(view.tensors), dict(view.values)
    for name, info in view.tensors.items():
        if info.dtype == _DOUBLE:
            tensors[name] = replace(info, dtype=_FLOAT)
    for proto, node in zip(protos, view.nodes, strict=True):
        output = tensors.get(node.outputs[0]) if len(node.outputs) == 1 else None
        if output is None or output.dtype != _FLOAT or output.shape is None or not is_small(output.shape):
            continue
        if output.name in values or node.op == _FILL or not may_fold(proto):  # a fill has its range anyway
            continue
        if all(t in values for t in node.inputs):
            read = [values[t] for t in node.inputs]
            folded = fold(proto, [value.shape for value in read], read, view.opset.get(node.op.domain, 1))
            values.update((output.name, value) for value in folded if value is not None)
    nodes = with_canonical_ops(view).nodes
    is_normal = tensors == view.tensors and nodes is view.nodes and len(values) == len(view.values)
    return view if is_normal else replace(view, nodes=nodes, tensors=tensors, values=values)


_CONTROL_FLOW = op_keys("If Loop Scan")
_CHOICE, _ROW = OpKey("", "Where"), OpKey("", "Gather")
_BOOL, _INT64 = int(TensorProto.BOOL), int(TensorProto.INT64)
_DECIDES = {0: Need(is_place=True)}
_TURNS = 2
_MOST_NODES = 100_000
"""Nodes that bodies may add; those of further ones count as one node that needs exactly what it reads."""


@dataclass(frozen=True, kw_only=True)
class Unrolled:
    """The graph, and what its loops and branches tell beside it."""

    imported: Imported  # the graph with bodies in place of their nodes; its model is the one before
    # How exactly nodes need their inputs because these decide which way the graph goes, by node name.
    needs: Mapping[str, Needs] = field(default_factory=dict)
    growing: frozenset[str] = frozenset()  # results of loops that multiply a state in every turn
    terms: Mapping[str, float] = field(default_factory=dict)  # by tensor that a loop adds up, how many values


def unrolled(imported: Imported) -> Unrolled:
    """Put the bodies of a graph in the place of their nodes.

    All of it is brought into the normal form.
    """
    return _unrolled(imported) or Unrolled(imported=imported)


@remembered
def _unrolled(imported: Imported) -> Unrolled | None:
    """Give the graph unrolled; None if it is so already."""
    if not any(map(_has_bodies, imported.model.graph.node)):
        view = in_normal_form(imported.view, imported.model.graph.node)
        return None if view is imported.view else Unrolled(imported=replace(imported, view=view))
    copy = _Copy()
    copy.add_graph(imported.model.graph, imported.view, {}, "")
    view = replace(imported.view, nodes=tuple(copy.nodes), tensors=copy.tensors, values=copy.values)
    return Unrolled(
        imported=replace(imported, view=view, constants={**copy.constants, **imported.constants}),
        needs=copy.needs,
        growing=frozenset(copy.growing),
        terms=copy.terms,
    )


class _Copy:
    """The nodes, tensors and constants that are there so far."""

    def __init__(self) -> None:
        self.nodes: list[OpNode] = []
        self.tensors: dict[str, TensorInfo] = {}
        self.values: dict[str, NDArray[Any]] = {}
        self.constants: dict[str, TensorProto] = {}
        self.needs: dict[str, Needs] = {}
        self.growing: set[str] = set()
        self.terms: dict[str, float] = {}

    def add_graph(self, graph: GraphProto, view: GraphView, named: Mapping[str, str], prefix: str) -> None:
        """Add the nodes of a graph, whose tensors are called as `named` says, else with a prefix."""
        view = in_normal_form(view, graph.node)

        def called(tensor: str) -> str:
            return tensor and named.get(tensor, prefix + tensor)

        for name, info in view.tensors.items():
            if name not in named:
                kind = TensorKind.ACTIVATION if prefix and info.kind is TensorKind.INPUT else info.kind
                is_output = info.is_output and not prefix
                self.tensors[called(name)] = replace(info, name=called(name), kind=kind, is_output=is_output)
        self.values.update((called(name), value) for name, value in view.values.items() if name not in named)
        self.growing.update(map(called, growing_outputs(graph)))
        terms = accumulating_outputs(graph, view)
        self.terms.update((called(tensor), count) for tensor, count in terms.items())
        for proto, node in zip(graph.node, view.nodes, strict=True):
            here = replace(
                node,
                name=prefix + node.name,
                inputs=tuple(map(called, node.inputs)),
                outputs=tuple(map(called, node.outputs)),
                captures=tuple(map(called, node.captures)),
            )
            if not _has_bodies(proto):
                self.nodes.append(here)
                continue
            turned = [] if len(self.nodes) > _MOST_NODES else _bodies_of(proto, node, view)
            around = dict(zip(node.captures, here.captures, strict=True))
            if not turned:
                self._add_unseen(here)
            elif proto.op_type == "If":
                self._add_branches(here, turned, around)
            else:
                self._add_turns(here, turned[0], around, scanned_axes(proto))
                self._need_exactly(factors_of_states(proto, view), here.name, turned[0].view)

    def _add_unseen(self, node: OpNode) -> None:
        """Add a node whose bodies nobody can tell the types of."""
        reads = (*node.inputs, *node.captures)
        self.nodes.append(replace(node, inputs=reads, captures=()))
        self.needs[node.name] = dict.fromkeys(range(len(reads)), EXACT)

    def _add_branches(self, node: OpNode, branches: Sequence[Body], around: Mapping[str, str]) -> None:
        results = [
            self._add_body(body, around, f"{node.name}/{place}/") for place, body in enumerate(branches)
        ]
        for output, *either in zip(node.outputs, *results, strict=False):
            self._choose(node.inputs[0], either, output)

    def _add_turns(self, node: OpNode, body: Body, around: Mapping[str, str], axes: Sequence[int]) -> None:
        """Add a Loop, or a Scan along some axes: what is read of a state in the first turn is unknown."""
        is_loop = not axes
        first, last = (2, len(node.inputs)) if is_loop else (0, len(node.inputs) - len(axes))
        initial = node.inputs[first:last]
        goes = (
            node.inputs[1]
            if is_loop and node.inputs[1:2] not in ((), ("",))
            else self._unknown(f"{node.name}/goes", _BOOL)
        )
        turns: list[tuple[str, ...]] = []
        for turn in range(_TURNS):
            prefix = f"{node.name}/{turn}/"
            for state, *either in zip(body.inputs[first:last], initial, *turns[-1:], strict=False):
                if turns:
                    self._choose(goes, either, prefix + state)
            for row, rows, axis in zip(body.inputs[last:], node.inputs[last:], axes, strict=False):
                place = self._unknown(f"{prefix}place of {row}", _INT64)
                self._add(_ROW, (rows, place), prefix + row, axis=axis)
            results = self._add_body(body, around, prefix)
            goes = results[0] if is_loop else goes
            turns.append(results[is_loop:])
        states = len(initial)
        before = (*initial, *turns[0][states:])
        for output, *either in zip(node.outputs, before, turns[-1], strict=False):
            self._choose(goes, either, output)

    def _need_exactly(self, products: Mapping[str, Sequence[int]], loop: str, body: GraphView) -> None:
        for node in body.nodes:
            if positions := products.get(next(iter(node.outputs), "")):
                needs = dict.fromkeys(positions, EXACT)
                self.needs.update((f"{loop}/{turn}/{node.name}", needs) for turn in range(_TURNS))

    def _add_body(self, body: Body, around: Mapping[str, str], prefix: str) -> tuple[str, ...]:
        """Add a body and name its results."""
        self.constants.update((prefix + name, tensor) for name, tensor in body.constants.items())
        self.add_graph(body.graph, body.view, around, prefix)
        return tuple(around.get(t, prefix + t) for t in body.outputs)

    def _choose(self, condition: str, either: Sequence[str], output: str) -> None:
        if output:
            node = self._add(_CHOICE, (condition, *either), output)
            self.needs[node.name] = _DECIDES

    def _add(self, op: OpKey, inputs: tuple[str, ...], output: str, **attributes: int) -> OpNode:
        name = f"{output} by {op.op_type}"
        self.nodes.append(OpNode(name=name, op=op, inputs=inputs, outputs=(output,), attributes=attributes))
        return self.nodes[-1]

    def _unknown(self, name: str, dtype: int) -> str:
        self.tensors[name] = TensorInfo(name=name, dtype=dtype, shape=(), kind=TensorKind.ACTIVATION)
        return name


def _has_bodies(node: NodeProto) -> bool:
    return OpKey.of(node) in _CONTROL_FLOW


def _bodies_of(proto: NodeProto, node: OpNode, view: GraphView) -> list[Body]:
    """Bodies with their types; none where those of one cannot be told."""
    types: list[TensorInfo | None] = [view.tensors.get(t) for t in node.inputs]
    if proto.op_type == "If":
        types = []
    elif proto.op_type == "Loop":
        types[:2] = None, None
    else:
        axes = scanned_axes(proto)
        start = len(types) - len(axes)
        types[start:] = [_row(info, axis) for info, axis in zip(types[start:], axes, strict=True)]
    by_name = {a.name: a.g for a in proto.attribute if a.type == AttributeProto.GRAPH}
    read = [read_body(by_name[name], view, types) for name in sorted(by_name, reverse=True)]
    return [body for body in read if body is not None] if None not in read else []


def _row(info: TensorInfo | None, axis: int) -> TensorInfo | None:
    if info is None or info.shape is None:
        return None
    sizes = list(info.shape)
    del sizes[axis]
    return replace(info, shape=tuple(sizes))
