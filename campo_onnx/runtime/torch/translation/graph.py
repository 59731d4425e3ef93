"""A graph as a list of rows that are computed one after the other on torch tensors."""

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import GraphProto, NodeProto
from torch.fx.traceback import annotate, has_preserved_node_meta

from campo_onnx.ir.constants import constants_of
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ops.key import CONSTANT, OpKey
from campo_onnx.runtime.torch.translation.host import HOST
from campo_onnx.runtime.torch.translation.node import Node, Row, attributes_of, graphs_in
from campo_onnx.runtime.torch.translation.table import TABLE
from campo_onnx.runtime.torch.translation.values import (
    KNOWN_ELEMENTS,
    array_of_constant,
    is_traced,
    to_tensor,
)

# Tensors, arrays that are known while tracing, sequences of tensors, None for an optional without a value.
Scope = MutableMapping[str, Any]

ORIGIN = "onnx"
"""Under this name a traced operation says of which node of the model it is, where torch keeps such notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The model that a graph is part of."""

    opsets: Mapping[str, int]
    folder: Path | None
    device: torch.device


class Graph:
    """A graph, or a body of a node, ready to be computed."""

    def __init__(self, proto: GraphProto, origin: Origin) -> None:
        self._device = origin.device
        arrays = {
            name: array_of_constant(tensor, origin.folder) for name, tensor in constants_of(proto).items()
        }
        self.constants = {name: to_tensor(array, origin.device) for name, array in arrays.items()}
        self._first: Mapping[str, Any] = self.constants | {
            name: array for name, array in arrays.items() if array.size <= KNOWN_ELEMENTS
        }
        self.inputs = tuple(v.name for v in proto.input if v.name not in arrays)
        self.outputs = tuple(v.name for v in proto.output)
        nodes = [node for node in proto.node if OpKey.of(node) != CONSTANT]
        self._steps = [(_node_of(node, origin), TABLE[OpKey.of(node)]) for node in nodes]
        self._released = _last_reads(nodes, frozenset(self.outputs))

    def run(self, arguments: Iterable[Any], around: Mapping[str, Any] | None = None) -> list[Any]:
        """Compute the outputs; `around` has the tensors that a body reads from outside."""
        values: Scope = dict(self._first)
        values.update(zip(self.inputs, arguments, strict=True))
        scope: Scope = ChainMap(values, dict(around)) if around is not None else values
        names_nodes = around is None and has_preserved_node_meta()
        for (node, row), released in zip(self._steps, self._released, strict=True):
            with annotate({ORIGIN: node.name}) if names_nodes else nullcontext():
                results = self._computed(node, row, scope)
            values.update(zip(node.outputs, results, strict=False))
            for name in released:
                values.pop(name, None)
        return [scope[name] for name in self.outputs]

    def operand(self, name: str, value: Any) -> Any:
        """Make the tensor of a value that is an array; constants have theirs already."""
        if not isinstance(value, np.ndarray):
            return value
        constant = self.constants.get(name)
        return to_tensor(value, self._device) if constant is None else constant

    def _computed(self, node: Node, row: Row, scope: Scope) -> Sequence[Any]:
        inputs = [scope[name] if name else None for name in node.inputs]
        host = HOST.get(node.op)
        if (
            host is not None
            and inputs
            and all(value is None or isinstance(value, np.ndarray) for value in inputs)
        ):
            result = host(node, *inputs)
            if result is not None:
                return (result,)
        operands = [self._operand(node, row, position, value) for position, value in enumerate(inputs)]
        around = (scope,) if row.takes_scope else ()
        try:
            result = row.compute(node, *around, *operands)
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented" not in str(error):
                raise
            raise node.refusal(str(error).partition("\n")[0]) from error
        return result if isinstance(result, tuple) else (result,)

    def _operand(self, node: Node, row: Row, position: int, value: Any) -> Any:
        if position in row.static:
            return self._array(node, position, value)
        return value if position in row.either else self.operand(node.inputs[position], value)

    def _array(self, node: Node, position: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if is_traced(value):
            raise node.refusal(
                f"its input {node.inputs[position]!r} has to be known when the graph is compiled, "
                "and is computed from data"
            )
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _node_of(node: NodeProto, origin: Origin) -> Node:
    op = OpKey.of(node)
    return Node(
        op=op,
        name=node.name,
        version=origin.opsets.get(op.domain, 1),
        attributes=attributes_of(node),
        bodies={name: Graph(body, origin) for name, body in graphs_in(node).items()},
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        device=origin.device,
    )


def _last_reads(nodes: Sequence[NodeProto], outputs: frozenset[str]) -> list[list[str]]:
    """List the tensors that no node reads after each one, so that their memory is free again."""
    seen = set(outputs)
    released: list[list[str]] = []
    for node in reversed(nodes):
        last = dict.fromkeys(
            name for name in (*node.input, *node.output, *outer_reads(node)) if name not in seen
        )
        released.append([name for name in last if name])
        seen.update(last)
    return released[::-1]
