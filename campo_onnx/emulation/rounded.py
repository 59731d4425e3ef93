"""The FP32 step with the rounding of chosen nodes: one graph for any set of low nodes, without a plan.

Every tensor keeps its FP32 name, so that two such graphs are compared tensor by tensor.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from onnx import ModelProto, NodeProto, TensorProto

from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, tensor_names
from campo_onnx.lowering.edit import Edit
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding


def rounded(
    model: ModelProto, low_nodes: Collection[str], ports: Mapping[str, Ports], low: Precision
) -> ModelProto:
    """Let some nodes of an FP32 graph round what they read and compute as low nodes do.

    The result computes what a plan with these low nodes does, emulated
    (:func:`campo_onnx.emulation.numerics.emulate`): FP32 accumulation and low storage. A low node reads
    rounded values, and everybody reads what it rounds.

    The result is to be run with graph optimizations off.
    """
    copy = deepcopy(model)
    writer = _Writer(copy, low)
    for node in model.graph.node:
        writer.add(node, ports[node.name] if node.name in low_nodes else None)
    replace_items(copy.graph.node, writer.nodes)
    return copy


def with_roundings(model: ModelProto, group: Sequence[Rounding], problem: Problem) -> ModelProto:
    """Let some roundings happen in an FP32 graph, and no others."""
    reads = {(one.reader, one.tensor) for one in group if one.producer is None}
    writes = {(one.producer, one.tensor) for one in group}
    ports: dict[str, Ports] = {}
    for name in dict.fromkeys(name for one in group for name in one.nodes):
        node, every = problem.view.node[name], problem.ports[name]
        ports[name] = replace(
            every,
            low_inputs=frozenset(i for i in every.low_inputs if (name, node.inputs[i]) in reads),
            low_outputs=frozenset(i for i in every.low_outputs if (name, node.outputs[i]) in writes),
        )
    return rounded(model, ports.keys(), ports, problem.low)


class _Writer:
    """The nodes written so far, and the rounded version of each tensor."""

    def __init__(self, model: ModelProto, low: Precision) -> None:
        self.nodes: list[NodeProto] = []
        self._low = low
        self._rounded: dict[str, str] = {}
        self._taken = tensor_names(model.graph) | {node.name for node in model.graph.node}

    def add(self, source: NodeProto, ports: Ports | None) -> None:
        node = deepcopy(source)
        edit = Edit(source.name, self._taken, (), {})
        if ports is not None:
            for position in sorted(ports.low_inputs):
                node.input[position] = self._version(edit, source.input[position])
            for position in sorted(ports.low_outputs):
                node.output[position] = fresh(f"{source.output[position]}_exact", self._taken)
        edit.nodes.append(node)
        for exact, tensor in zip(node.output, source.output, strict=True):
            if exact != tensor:
                self._rounded[tensor] = self._round(edit, exact, tensor)
        self.nodes += edit.nodes

    def _version(self, edit: Edit, tensor: str) -> str:
        if tensor not in self._rounded:
            self._rounded[tensor] = self._round(edit, tensor)
        return self._rounded[tensor]

    def _round(self, edit: Edit, source: str, target: str = "") -> str:
        stored = edit.op("Cast", source, to=self._low.onnx_dtype)
        return edit.op("Cast", stored, to=TensorProto.FLOAT, output=target)
