"""Hold a mixed graph against the FP32 graph it claims to come from.

A mixed graph is the FP32 graph plus Casts, and Pads and Slices around products: the same nodes with
the same attributes read the same values, up to precision. Anything else is another model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from campo_onnx.checking.weights import is_rounded
from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import FLOAT, GraphView, OpNode
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision

_CAST, _CONSTANT = OpKey("", "Cast"), OpKey("", "Constant")
_PADDING = frozenset({OpKey("", "Pad"), OpKey("", "Slice")})
_LOW = frozenset({Precision.FP16.onnx_dtype, Precision.BF16.onnx_dtype})
_FLOATS = _LOW | {FLOAT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """What was done to an FP32 graph to make a mixed one.

    Parameters
    ----------
    low
        The low precision; FP16 where nothing was lowered.
    low_nodes
        Nodes that read or make a low tensor where the FP32 graph has an FP32 one.
    gone
        Casts and constants of the FP32 graph that nobody needs any more.
    casts, paddings
        Inserted Casts, and inserted Pads and Slices.
    """

    low: Precision
    low_nodes: frozenset[str]
    gone: frozenset[str]
    casts: tuple[OpNode, ...]
    paddings: tuple[OpNode, ...]


def pair(given: Imported, mixed: Imported, *, title: str, with_weights: bool = True) -> Pairing:
    """Tell what was done to `given` to make `mixed`.

    Parameters
    ----------
    given, mixed
        The FP32 graph and the one made from it.
    title
        What to call the mixed graph in an error.
    with_weights
        Whether to compare the values of constants as well.

    Raises
    ------
    PlanMismatchError
        If it was made from another model: nodes, attributes, connections or weights differ.
    """
    before, after = given.view, mixed.view
    inserted = tuple(node for node in after.nodes if node.name not in before.node)
    precision = _low_precision(after, before)
    ports = {node.name: ports_of(before.signature(node.name), precision) for node in before.nodes}
    problem = next(_differences(given, mixed, inserted, ports, with_weights), None)
    if problem is not None:
        raise PlanMismatchError(
            f"{title} belongs to another model",
            why=problem,
            remedy="Optimize the FP32 model anew, or name the one that it was made from.",
        )
    return Pairing(
        low=precision,
        low_nodes=frozenset(
            node.name
            for node in before.nodes
            if node.name in after.node and _is_lowered(node, after.node[node.name], before, after, ports)
        ),
        gone=frozenset(before.node) - frozenset(after.node),
        casts=tuple(node for node in inserted if node.op == _CAST),
        paddings=tuple(node for node in inserted if node.op in _PADDING),
    )


def _low_precision(after: GraphView, before: GraphView) -> Precision:
    """The low precision that the mixed graph has and the FP32 graph has not."""
    new = {
        after.tensors[tensor].dtype
        for node in after.nodes
        for tensor in (*node.inputs, *node.outputs)
        if tensor and (tensor not in before.tensors or before.tensors[tensor].dtype == FLOAT)
    }
    return Precision.BF16 if new & _LOW == {Precision.BF16.onnx_dtype} else Precision.FP16


def _is_lowered(
    node: OpNode, now: OpNode, before: GraphView, after: GraphView, ports: dict[str, Ports]
) -> bool:
    ignored = ports[node.name].any_inputs  # reads shapes, in whatever precision is there
    reads = [(t, now.inputs[i]) for i, t in enumerate(node.inputs) if i not in ignored]
    tensors = (*reads, *zip(node.outputs, now.outputs, strict=True))
    return any(t and before.is_float32(t) and after.tensors[new].dtype in _LOW for t, new in tensors)


def _differences(
    given: Imported,
    mixed: Imported,
    inserted: tuple[OpNode, ...],
    ports: dict[str, Ports],
    with_weights: bool,
) -> Iterator[str]:
    before, after = given.view, mixed.view
    missing = [n for n in before.nodes if n.name not in after.node and n.op not in (_CAST, _CONSTANT)]
    if missing:
        yield f"{len(missing)} of {len(before.nodes)} nodes are missing in it, {missing[0].name!r} for one"
    for node in inserted:
        if not (_is_float_cast(node, after) or node.op in _PADDING or node.op == _CONSTANT):
            yield f"it has a node {node.name!r} ({node.op.label}) that the FP32 model has not"
    protos = {node.name: node for node in given.model.graph.node}
    for proto in mixed.model.graph.node:
        if proto.name in protos:
            yield from _changed_node(proto, protos[proto.name], ports[proto.name].attribute)
    yield from _Wiring(given, mixed, inserted, with_weights).differences()


def _changed_node(now: onnx.NodeProto, then: onnx.NodeProto, type_attribute: str | None) -> Iterator[str]:
    if (now.op_type, now.domain) != (then.op_type, then.domain):
        yield f"{now.name!r} is {now.op_type} in it, and {then.op_type} in the FP32 model"
    if (len(now.input), len(now.output)) != (len(then.input), len(then.output)):
        yield f"{now.name!r} has other inputs or outputs"
    attributes = [
        {
            attribute.name: attribute.SerializeToString(deterministic=True)
            for attribute in node.attribute
            if attribute.name != type_attribute
        }
        for node in (now, then)
    ]
    if attributes[0] != attributes[1]:
        yield f"{now.name!r} ({now.op_type}) has other attributes"


def _is_float_cast(node: OpNode, view: GraphView) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return node.op == _CAST and all(view.tensors[tensor].dtype in _FLOATS for tensor in tensors)


class _Wiring:
    """Compares what nodes read, looking through Casts and padding."""

    def __init__(
        self, given: Imported, mixed: Imported, inserted: tuple[OpNode, ...], with_weights: bool
    ) -> None:
        self._given, self._mixed = given, mixed
        self._padding = frozenset(node.name for node in inserted if node.op in _PADDING)
        self._with_weights = with_weights
        self._same_weights: dict[tuple[str, str], bool] = {}

    def differences(self) -> Iterator[str]:
        """Yield every reading that comes from elsewhere."""
        before, after = self._given.view, self._mixed.view
        for node in before.nodes:
            if node.name not in after.node:
                continue
            now = after.node[node.name]
            for position, (old, new) in enumerate(zip(node.inputs, now.inputs, strict=True)):
                yield from self._reading(f"input {position} of {node.name!r}", old, new)
        for name in before.outputs:
            if name in after.outputs:
                yield from self._reading(f"the output {name!r}", name, name)

    def _reading(self, what: str, old: str, new: str) -> Iterator[str]:
        was, now = self._origin(self._given, old), self._origin(self._mixed, new)
        if was in self._given.constants and now in self._mixed.constants:
            if self._with_weights and not self._is_same_weight(was, now):
                yield f"the weights differ: {was!r} has other values in it"
        elif was != now:
            yield f"{what} comes from another place in it"

    def _origin(self, imported: Imported, tensor: str) -> str:
        """Where a value comes from: ``node[output]``, or the name of an input or constant."""
        view = imported.view
        while tensor not in imported.constants and (maker := view.producer.get(tensor)) is not None:
            if not (_is_float_cast(maker, view) or maker.name in self._padding):
                return f"{maker.name}[{maker.outputs.index(tensor)}]"
            tensor = maker.inputs[0]
        return tensor

    def _is_same_weight(self, was: str, now: str) -> bool:
        if (was, now) not in self._same_weights:
            old, new = self._given.constants[was], self._mixed.constants[now]
            with np.errstate(over="ignore"):
                self._same_weights[was, now] = is_rounded(new, self._mixed.folder, old, self._given.folder)
        return self._same_weights[was, now]
