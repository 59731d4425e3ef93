"""What a node's time depends on, as a graph of one node: nodes that share it are timed once."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.ir.view import FLOAT, GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports, low_attribute, ports_of
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.work import Work, moved_bytes, work_of

NODE = "node"
"""Name of the one node."""

_IR_VERSION = 10
_VALUES_KEPT = 64  # shapes, axes, pads and exponents change what a node does; data does not
_WITH_BODIES = frozenset({OpKey("", "If"), OpKey("", "Loop"), OpKey("", "Scan"), OpKey("", "SequenceMap")})
_NO_PORTS = Ports(refusal="not asked for")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """An op with its attributes, and shapes, types and small values of its tensors.

    Parameters
    ----------
    view
        A graph of one node, named :data:`NODE`. Inputs with a value in ``view.values`` are
        constants; all others are inputs of the graph.
    """

    view: GraphView

    @property
    def node(self) -> OpNode:
        """The node."""
        return self.view.nodes[0]

    @cached_property
    def key(self) -> str:
        """The signature as one line of JSON: equal exactly for equal signatures."""
        node = self.node
        row = {
            "op": node.op.label,
            "opset": self.view.opset.get(node.op.domain, 1),
            "attributes": {name: _text(value) for name, value in sorted(node.attributes.items())},
            "inputs": self.input_types,
            "outputs": self.output_types,
        }
        return json.dumps(row)

    @property
    def input_types(self) -> str:
        """Types of the inputs, as ``float32[4,8] int64[2]=[8,4] -``; ``-`` is one left out."""
        return self._types(self.node.inputs)

    @property
    def output_types(self) -> str:
        """Types of the outputs."""
        return self._types(self.node.outputs)

    def _types(self, tensors: Iterable[str]) -> str:
        return " ".join(_type_text(self.view, tensor) for tensor in tensors)

    @cached_property
    def work(self) -> Work:
        """What the node computes."""
        return work_of(self.node, self.view)

    @cached_property
    def moved_bytes(self) -> float:
        """What the node reads and writes."""
        return moved_bytes(self.node, self.view, _NO_PORTS, None)

    @property
    def nbytes(self) -> float:
        """Memory of all its tensors."""
        return sum(info.nbytes for info in self.view.tensors.values())

    def ports(self, precision: Precision) -> Ports:
        """Which tensors change precision with the node."""
        return ports_of(self.node, self.view, precision)

    def lowered(self, precision: Precision) -> "Signature | None":
        """The same node in a low precision; None where it has none."""
        ports = self.ports(precision)
        if ports.refusal:
            return None
        node = self.node
        low = {node.inputs[i] for i in ports.low_inputs} | {node.outputs[i] for i in ports.low_outputs}
        tensors = {
            name: replace(info, dtype=precision.onnx_dtype) if name in low else info
            for name, info in self.view.tensors.items()
        }
        attributes = dict(node.attributes)
        if ports.attribute is not None:
            value = low_attribute(node, ports, precision)
            attributes[ports.attribute] = (
                onnx.numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
            )
        dtype = helper.tensor_dtype_to_np_dtype(precision.onnx_dtype)
        values = {
            name: value.astype(dtype) if name in low else value for name, value in self.view.values.items()
        }
        view = replace(
            self.view, nodes=(replace(node, attributes=attributes),), tensors=tensors, values=values
        )
        return Signature(view=view)


def signature_of(node: OpNode, view: GraphView) -> Signature | None:
    """Cut one node out of a graph.

    Returns
    -------
    Signature or None
        None for a node that cannot stand alone: control flow, unknown shapes or types, and
        tensors without elements.
    """
    if node.op in _WITH_BODIES or node.captures:
        return None
    known = [view.tensors.get(t) for t in (*node.inputs, *node.outputs) if t]
    if any(info is None or not info.dtype or info.shape is None or 0 in info.shape for info in known):
        return None
    names: dict[str, str] = {}
    for prefix, group in (("x", node.inputs), ("y", node.outputs)):
        for index, tensor in enumerate(group):
            if tensor:
                names.setdefault(tensor, f"{prefix}{index}")
    values = {
        names[t]: view.values[t]
        for t in dict.fromkeys(node.inputs)
        if t in view.values and view.values[t].size <= _VALUES_KEPT and _shapes_work(view.values[t])
    }
    types = {names[t]: (view.tensors[t].dtype, view.tensors[t].shape or ()) for t in names}
    return make_signature(
        node.op,
        inputs=[names.get(t, "") for t in node.inputs],
        outputs=[names.get(t, "") for t in node.outputs],
        types=types,
        attributes=node.attributes,
        values=values,
        opset=view.opset.get(node.op.domain, 1),
    )


def make_signature(
    op: OpKey,
    *,
    inputs: Iterable[str],
    outputs: Iterable[str],
    types: Mapping[str, tuple[int, tuple[int, ...]]],
    attributes: Mapping[str, Any] | None = None,
    values: Mapping[str, NDArray[Any]] | None = None,
    opset: int = 20,
) -> Signature:
    """Put a signature together from types and values by tensor name."""
    inputs, outputs, values = tuple(inputs), tuple(outputs), values or {}
    node = OpNode(name=NODE, op=op, inputs=inputs, outputs=outputs, attributes=dict(attributes or {}))
    read = [t for t in dict.fromkeys(inputs) if t]

    def kind(name: str) -> TensorKind:
        if name in values:
            return TensorKind.CONSTANT
        return TensorKind.INPUT if name in read else TensorKind.ACTIVATION

    tensors = {
        name: TensorInfo(name=name, dtype=dtype, shape=shape, kind=kind(name), is_output=name in outputs)
        for name, (dtype, shape) in types.items()
    }
    view = GraphView(
        nodes=(node,),
        tensors=tensors,
        inputs=tuple(t for t in read if t not in values),
        outputs=tuple(t for t in outputs if t),
        opset={op.domain: opset},
        values=values,
    )
    return Signature(view=view)


def one_node_model(signature: Signature, copies: int) -> onnx.ModelProto:
    """Build a model of independent copies of the node.

    Each copy reads inputs of its own, ``<name>_<copy>``: were they shared, ONNX Runtime would
    convert them once for all copies, and caches would flatter all copies but the first.
    """
    view, node = signature.view, signature.node
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in view.values.items()]
    attributes = {name: value for name, value in node.attributes.items() if not _is_empty(value)}
    nodes, inputs, outputs = [], [], []
    for copy in range(copies):
        own = {t: f"{t}_{copy}" for t in (*view.inputs, *view.outputs)}
        made = helper.make_node(
            node.op.op_type,
            [own.get(t, t) for t in node.inputs],
            [own.get(t, t) for t in node.outputs],
            name=f"{NODE}_{copy}",
            domain=node.op.domain,
        )
        made.attribute.extend(_attribute(name, value) for name, value in attributes.items())
        nodes.append(made)
        inputs += [_value_info(own[t], view.tensors[t]) for t in view.inputs]
        outputs += [_value_info(own[t], view.tensors[t]) for t in view.outputs]
    graph = helper.make_graph(nodes, "node", inputs, outputs, constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in view.opset.items()]
    if node.op.domain:
        opsets.append(helper.make_opsetid("", 20))
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _shapes_work(value: NDArray[Any]) -> bool:
    """Whether a constant decides what the node does, rather than being its data."""
    return value.size == 1 or not np.issubdtype(value.dtype, np.floating)


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    return helper.make_attribute(
        name, onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
    )


def _is_empty(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


def _value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, info.dtype, info.shape)


def _type_text(view: GraphView, tensor: str) -> str:
    if not tensor:
        return "-"
    info = view.tensors[tensor]
    name = "float32" if info.dtype == FLOAT else str(helper.tensor_dtype_to_np_dtype(info.dtype))
    text = f"{name}[{','.join(map(str, info.shape or ()))}]"
    if tensor in view.values:
        text += "=" + json.dumps(view.values[tensor].astype(object).ravel().tolist(), default=float).replace(
            " ", ""
        )
    return text


def _text(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}={value.ravel()[:4].tolist()}"
    if isinstance(value, (list, tuple)):
        return [_text(v) for v in value]
    return value if isinstance(value, (int, float, str)) else repr(value)
