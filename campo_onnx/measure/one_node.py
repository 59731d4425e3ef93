"""A graph of one node, to time it by itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import helper

from campo_onnx.ir.bodies import value_info
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.facts import ports_of, work_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Operand, Signature
from campo_onnx.ops.work import HOST_ONLY

NODE = "node"
"""Name of the one node."""

_IR_VERSION = 10


def standalone(view: GraphView, node: str) -> Signature | None:
    """Cut one node out of a graph.

    There is none of a node that cannot stand alone: control flow, unknown shapes or types, and
    tensors without elements.
    """
    signature = view.signature(node)
    return signature if signature.stands_alone else None


def step_samples(view: GraphView, low: Precision) -> Iterator[Signature]:
    """Find the nodes of a step that are to be timed in both precisions, each once.

    Shapes that are drawn lie around those of public layers; the largest nodes of a step decide its time.
    """
    seen: set[str] = set()
    for node in view.nodes:
        signature = standalone(view, node.name)
        if signature is None or signature.key in seen or work_of(signature).kind in HOST_ONLY:
            continue
        seen.add(signature.key)
        if lowered(signature, ports_of(signature, low), low) is not None:
            yield signature


def one_node_view(signature: Signature) -> GraphView:
    """View a node by itself: constants are constants, all its other inputs are inputs of the graph."""
    constants = {
        operand.name: value
        for i, value in signature.constants.items()
        if (operand := signature.inputs[i]) is not None
    }
    inputs, outputs = _distinct(signature.inputs), _distinct(signature.outputs)
    kinds = {operand.name: TensorKind.INPUT for operand in inputs}
    kinds |= dict.fromkeys(constants, TensorKind.CONSTANT)
    node = OpNode(
        name=NODE,
        op=signature.op,
        inputs=tuple(_name(operand) for operand in signature.inputs),
        outputs=tuple(_name(operand) for operand in signature.outputs),
        attributes=signature.attributes,
    )
    return GraphView(
        nodes=(node,),
        tensors={
            operand.name: TensorInfo(
                name=operand.name,
                dtype=operand.dtype,
                shape=operand.shape,
                kind=kinds.get(operand.name, TensorKind.ACTIVATION),
                is_output=operand in outputs,
            )
            for operand in (*inputs, *outputs)
        },
        inputs=tuple(operand.name for operand in inputs if operand.name not in constants),
        outputs=tuple(operand.name for operand in outputs),
        opset={signature.op.domain: signature.opset},
        values=constants,
    )


def one_node_model(signature: Signature, copies: int) -> onnx.ModelProto:
    """Build a model of independent copies of a node.

    Each copy reads inputs of its own, ``<name>_<copy>``: were they shared, ONNX Runtime would
    convert them once for all copies, and caches would flatter all copies but the first.
    """
    view = one_node_view(signature)
    nodes, inputs, outputs = [], [], []
    for copy in range(copies):
        own = {t: f"{t}_{copy}" for t in (*view.inputs, *view.outputs)}
        nodes.append(_node_proto(view, copy, own))
        inputs += [value_info(own[t], view.tensors[t]) for t in view.inputs]
        outputs += [value_info(own[t], view.tensors[t]) for t in view.outputs]
    return _model(view, nodes, inputs, outputs)


def chain_model(signature: Signature, copies: int) -> onnx.ModelProto:
    """Build a model in which copies of a node follow each other, each on the first output of the last.

    A node that renames bytes shows its cost only so: at the edge of a graph it has to copy them.

    `signature`: a node whose output it also takes as its first input; its other inputs are constants.
    """
    view = one_node_view(signature)
    (source,), (result,) = view.inputs, view.outputs
    names = [source, *(f"{result}_{copy}" for copy in range(copies - 1)), result]
    nodes = [_node_proto(view, i, {source: a, result: b}) for i, (a, b) in enumerate(pairwise(names))]
    ends = ([value_info(name, view.tensors[name])] for name in (source, result))
    return _model(view, nodes, *ends)


def _node_proto(view: GraphView, copy: int, named: Mapping[str, str]) -> onnx.NodeProto:
    """Write the node of a view once more, on tensors of other names."""
    node = view.nodes[0]
    inputs, outputs = ([named.get(t, t) for t in tensors] for tensors in (node.inputs, node.outputs))
    proto = helper.make_node(node.op.op_type, inputs, outputs, name=f"{NODE}_{copy}", domain=node.op.domain)
    proto.attribute.extend(_attribute(n, v) for n, v in node.attributes.items() if not _is_empty(v))
    return proto


def _model(
    view: GraphView,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in view.values.items()]
    graph = helper.make_graph(nodes, NODE, inputs, outputs, constants)
    opsets = [helper.make_opsetid(*entry) for entry in {"": 20, **view.opset}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _distinct(operands: Iterable[Operand | None]) -> tuple[Operand, ...]:
    return tuple(dict.fromkeys(operand for operand in operands if operand is not None))


def _name(operand: Operand | None) -> str:
    return "" if operand is None else operand.name


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    return helper.make_attribute(
        name, onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
    )


def _is_empty(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value
