"""Changes that make a mixed graph of an FP32 graph.

A mixed graph is the FP32 graph plus Casts, and Pads and Slices around products: the same nodes with
the same attributes read the same values, up to precision. Anything else is another model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.constants import chunks
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import FLOAT, GraphView, OpNode
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import CAST, CONSTANT, op_keys
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision, is_low_dtype, low_precisions, precisions

_PADDING = op_keys("Pad Slice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Differences between an FP32 graph and the mixed graph made from it."""

    low: Precision  # the low precision, be it one in which nothing was lowered
    low_nodes: frozenset[str]  # nodes that read or write a low tensor where the FP32 graph has an FP32 one
    removed: frozenset[str]  # casts and constants of the FP32 graph that are no longer used
    casts: tuple[OpNode, ...]
    paddings: tuple[OpNode, ...]


def changes_between(
    fp32: Imported, mixed: Imported, *, title: str, default: Precision, with_weights: bool = True
) -> Changes:
    """Find what was changed in an FP32 graph to make a mixed one, in the `default` precision if nothing was.

    PlanMismatchError says that it was made from another model: nodes, attributes, connections or weights
    differ.
    """
    before, after = fp32.view, mixed.view
    inserted = tuple(node for node in after.nodes if node.name not in before.node)
    precision = _low_precision(after, before) or default
    ports = {node.name: ports_of(before.signature(node.name), precision) for node in before.nodes}
    problem = next(_differences(fp32, mixed, inserted, ports, with_weights), None)
    if problem is not None:
        raise PlanMismatchError(
            f"{title} belongs to another model",
            why=problem,
            remedy="Optimize the FP32 model again, or name the model that it was made from.",
        )
    return Changes(
        low=precision,
        low_nodes=frozenset(
            node.name
            for node in before.nodes
            if node.name in after.node and _is_lowered(node, after.node[node.name], before, after, ports)
        ),
        removed=frozenset(before.node) - frozenset(after.node),
        casts=tuple(node for node in inserted if node.op == CAST),
        paddings=tuple(node for node in inserted if node.op in _PADDING),
    )


def _low_precision(after: GraphView, before: GraphView) -> Precision | None:
    """The low precision that is in the mixed graph and not in the FP32 graph."""
    new = {
        after.tensors[tensor].dtype
        for node in after.nodes
        for tensor in (*node.inputs, *node.outputs)
        if tensor and (tensor not in before.tensors or before.tensors[tensor].dtype == FLOAT)
    }
    return next((low for low in low_precisions() if low.onnx_dtype in new), None)


def _is_lowered(
    node: OpNode, now: OpNode, before: GraphView, after: GraphView, ports: dict[str, Ports]
) -> bool:
    ignored = ports[node.name].any_inputs  # only shapes are read there, in either precision
    reads = [(t, now.inputs[i]) for i, t in enumerate(node.inputs) if i not in ignored]
    tensors = (*reads, *zip(node.outputs, now.outputs, strict=True))
    return any(t and before.is_float32(t) and is_low_dtype(after.tensors[new].dtype) for t, new in tensors)


def _differences(
    fp32: Imported, mixed: Imported, inserted: tuple[OpNode, ...], ports: dict[str, Ports], with_weights: bool
) -> Iterator[str]:
    before, after = fp32.view, mixed.view
    missing = [n for n in before.nodes if n.name not in after.node and n.op not in (CAST, CONSTANT)]
    if missing:
        yield f"{len(missing)} of {len(before.nodes)} nodes are missing, for example {missing[0].name!r}"
    for node in inserted:
        if not (_is_float_cast(node, after) or node.op in _PADDING or node.op == CONSTANT):
            yield f"it has a node {node.name!r} ({node.op.label}) that is not in the FP32 model"
    protos = {node.name: node for node in fp32.model.graph.node}
    for proto in mixed.model.graph.node:
        if proto.name in protos:
            yield from _changed_node(proto, protos[proto.name], ports[proto.name].attribute)
    yield from _Wiring(fp32, mixed, inserted, with_weights).differences()


def _changed_node(now: onnx.NodeProto, then: onnx.NodeProto, type_attribute: str | None) -> Iterator[str]:
    if (now.op_type, now.domain) != (then.op_type, then.domain):
        yield f"{now.name!r} is {now.op_type}, and {then.op_type} in the FP32 model"
    if (len(now.input), len(now.output)) != (len(then.input), len(then.output)):
        yield f"{now.name!r} has different inputs or outputs"
    attributes = [
        {
            attribute.name: attribute.SerializeToString(deterministic=True)
            for attribute in node.attribute
            if attribute.name != type_attribute
        }
        for node in (now, then)
    ]
    if attributes[0] != attributes[1]:
        yield f"{now.name!r} ({now.op_type}) has different attributes"


def _is_float_cast(node: OpNode, view: GraphView) -> bool:
    tensors = (*node.inputs, *node.outputs)
    formats = {precision.onnx_dtype for precision in precisions()}
    return node.op == CAST and all(view.tensors[tensor].dtype in formats for tensor in tensors)


class _Wiring:
    """Compares what nodes read, looking through Casts and padding."""

    def __init__(
        self, fp32: Imported, mixed: Imported, inserted: tuple[OpNode, ...], with_weights: bool
    ) -> None:
        self._fp32, self._mixed = fp32, mixed
        self._padding = frozenset(node.name for node in inserted if node.op in _PADDING)
        self._with_weights = with_weights
        self._same_weights: dict[tuple[str, str], bool] = {}

    def differences(self) -> Iterator[str]:
        """Yield every input that comes from somewhere else than in the FP32 graph."""
        before, after = self._fp32.view, self._mixed.view
        for node in before.nodes:
            if node.name not in after.node:
                continue
            now = after.node[node.name]
            for position, (old, new) in enumerate(zip(node.inputs, now.inputs, strict=True)):
                yield from self._input(f"input {position} of {node.name!r}", old, new)
        for name in before.outputs:
            if name in after.outputs:
                yield from self._input(f"the output {name!r}", name, name)

    def _input(self, what: str, old: str, new: str) -> Iterator[str]:
        was, now = self._origin(self._fp32, old), self._origin(self._mixed, new)
        if was in self._fp32.constants and now in self._mixed.constants:
            if self._with_weights and not self._is_same_weight(was, now):
                yield f"the weights differ: {was!r} has different values"
        elif was != now:
            yield f"{what} is connected to a different tensor"

    def _origin(self, imported: Imported, tensor: str) -> str:
        """Trace a value to ``node[output]``, or to the name of an input or constant."""
        view = imported.view
        while tensor not in imported.constants and (producer := view.producer.get(tensor)) is not None:
            if not (_is_float_cast(producer, view) or producer.name in self._padding):
                return f"{producer.name}[{producer.outputs.index(tensor)}]"
            tensor = producer.inputs[0]
        return tensor

    def _is_same_weight(self, was: str, now: str) -> bool:
        if (was, now) not in self._same_weights:
            old, new = self._fp32.constants[was], self._mixed.constants[now]
            with np.errstate(over="ignore"):
                self._same_weights[was, now] = is_rounded(new, self._mixed.folder, old, self._fp32.folder)
        return self._same_weights[was, now]


def is_rounded(low: TensorProto, low_folder: Path | None, full: TensorProto, folder: Path | None) -> bool:
    """Whether a constant holds the values of another one, rounded and perhaps padded with zeros.

    External data is read piece by piece. Also true where `low` is longer than `full` along some axes and zero
    there.
    """
    if list(low.dims) == list(full.dims):
        pieces = zip(chunks(low, low_folder), chunks(full, folder), strict=True)
        return all(_same(a, b) for a, b in pieces)
    shape = tuple(full.dims)
    if len(shape) != len(low.dims) or any(a < b for a, b in zip(low.dims, shape, strict=True)):
        return False
    padded, values = _whole(low, low_folder), _whole(full, folder)
    corner = tuple(slice(size) for size in shape)
    rest = padded.copy()
    rest[corner] = 0
    return _same(padded[corner], values) and not rest.any()


def _same(low: NDArray[Any], full: NDArray[Any]) -> bool:
    rounded = full.astype(low.dtype, copy=False)
    return bool(np.all((rounded == low) | ((rounded != rounded) & (low != low))))


def _whole(tensor: TensorProto, folder: Path | None) -> NDArray[Any]:
    pieces = list(chunks(tensor, folder))
    return np.concatenate(pieces).reshape(tuple(tensor.dims)) if pieces else np.empty(tuple(tensor.dims))
