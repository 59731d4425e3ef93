"""Bounds that a file from outside is held to first: sizes, and forms that no model has.

They are far above every training graph and far below what would fill a machine. A file of a few
kilobytes can claim more: functions that call each other twice, or bodies within bodies.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.sort import bodies, graphs_of, with_bodies
from campo_onnx.ops.key import short_domain

MODEL_LIMIT_BYTES = (1 << 31) - 1
"""The largest .onnx file: protobuf ends there. External data has no bound."""

MAX_NODES = 1_000_000
"""Nodes of a model, those of bodies and of inlined functions included."""

MAX_INLINED_BYTES = 1 << 28
"""Bytes that calls of functions may add to a model: each gets a copy of the body and its constants."""

MAX_RANK = 64
"""Axes of a tensor, where NumPy ends. A shape that is data may ask for millions at each node."""

MAX_ELEMENTS = 1 << 42
"""Elements of a tensor, and the largest size: beyond every memory, and far below where 64 bits overflow."""

MAX_DEPTH = 8
"""Bodies within bodies (If, Loop, Scan)."""

MAX_CALL_DEPTH = 32
"""Functions that call functions."""

_TYPES = frozenset(TensorProto.DataType.values())
_REMEDY = "Export the model again."
_Name = tuple[str, str, str]


def refuse_beyond_limits(model: ModelProto, title: str) -> None:
    """Make sure that a model is not larger than it can sensibly be, once functions are inlined."""
    functions: dict[_Name, FunctionProto] = {}
    for function in model.functions:
        name = (short_domain(function.domain), function.name, function.overload)
        if name in functions:
            raise ModelError(f"{title} defines the function {function.name!r} twice", remedy=_REMEDY)
        functions[name] = function
    extent = _Extents(functions, title)
    called = extent.of(model.graph.node).called_bytes
    if called > MAX_INLINED_BYTES:
        raise UnsupportedModelError(
            f"{title} has {called:,} bytes of functions, one for each call",
            why=f"more than {MAX_INLINED_BYTES:,}",
            remedy="Make constants of functions initializers of the graph.",
        )
    for function in model.functions:
        extent.of(function.node)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Count nodes after inlining and the bytes that it adds, and the depth of nested bodies."""

    nodes: int
    depth: int
    called_bytes: int = 0


class _Extents:
    """Extents of graphs; that of each function is found out once."""

    def __init__(self, functions: Mapping[_Name, FunctionProto], title: str) -> None:
        self._functions = functions
        self._title = title
        self._known: dict[_Name, _Extent] = {}
        self._open: list[_Name] = []

    def of(self, nodes: Iterable[NodeProto]) -> _Extent:
        total = deepest = called_bytes = 0
        for node in nodes:
            inside = [self.of(body.node) for body in bodies(node)]
            called = self._of_call((short_domain(node.domain), node.op_type, node.overload))
            self._refuse_surplus(node)
            called_bytes += called.called_bytes + sum(extent.called_bytes for extent in inside)
            total += 1 + called.nodes + sum(extent.nodes for extent in inside)
            deepest = max(deepest, called.depth, *(extent.depth + 1 for extent in inside))
            if total > MAX_NODES:
                raise UnsupportedModelError(
                    f"{self._title} has more than {MAX_NODES:,} nodes", why="functions inlined"
                )
            if deepest > MAX_DEPTH:
                raise UnsupportedModelError(
                    f"{self._title} has bodies (If, Loop, Scan) within each other",
                    why=f"more than {MAX_DEPTH} deep",
                )
        return _Extent(total, deepest, called_bytes)

    def _refuse_surplus(self, node: NodeProto) -> None:
        """Refuse a call with more inputs or outputs than the function has: it cannot be inlined."""
        called = self._functions.get((short_domain(node.domain), node.op_type, node.overload))
        if called is None:
            return
        for kind, passed, declared in (
            ("inputs", node.input, called.input),
            ("outputs", node.output, called.output),
        ):
            if len(passed) > len(declared):
                raise ModelError(
                    f"the call {node.name!r} of the function {called.name!r} in {self._title} has "
                    f"{len(passed)} {kind}",
                    why=f"the function has {len(declared)}",
                    remedy=_REMEDY,
                )

    def _of_call(self, name: _Name) -> _Extent:
        if name not in self._functions:
            return _Extent(0, 0)
        if name in self._open:
            raise ModelError(f"the function {name[1]!r} of {self._title} calls itself", remedy=_REMEDY)
        if name not in self._known:
            if len(self._open) >= MAX_CALL_DEPTH:
                raise UnsupportedModelError(
                    f"{self._title} has functions that call functions", why=f"more than {MAX_CALL_DEPTH} deep"
                )
            self._open.append(name)
            extent, function_bytes = self.of(self._functions[name].node), self._functions[name].ByteSize()
            self._known[name] = replace(extent, called_bytes=extent.called_bytes + function_bytes)
            self._open.pop()
        return self._known[name]


def is_too_large(shape: Iterable[int]) -> bool:
    """Say whether a tensor of this shape is larger than any can be.

    Sizes count though one of them is zero: programs multiply them one after the other.

    >>> is_too_large([1 << 21, 1 << 21]), is_too_large([1 << 21, 1 << 22]), is_too_large([0, 1 << 43])
    (False, True, True)
    """
    return math.prod(max(1, size) for size in shape) > MAX_ELEMENTS


def refuse_malformed(model: ModelProto, title: str) -> None:
    """Refuse what ONNX's checker lets pass, and what those that come after it trip over.

    Raises ModelError if a domain is imported in two versions, an attribute outside a function refers to one,
    two inputs or initializers have one name, or a tensor is of a type that ONNX does not define.
    """
    owners: list[ModelProto | FunctionProto] = [model, *model.functions]
    for owner in owners:
        imports = {(opset.domain, opset.version) for opset in owner.opset_import}
        domain, times = Counter(domain for domain, _ in imports).most_common(1)[0] if imports else ("", 0)
        if times > 1:
            called = f"the domain {domain!r}" if domain else "the standard domain"
            raise ModelError(f"{title} imports {called} in {times} versions", remedy=_REMEDY)
    for graph in graphs_of(model.graph):
        _refuse_repeated(graph, title)
        _refuse_unknown_types(graph, title)
    for node in with_bodies(model.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(
                    f"attribute {attribute.name!r} of node {node.name!r} ({node.op_type}) in {title} "
                    "refers to an attribute of a caller",
                    why="the node is in no function",
                    remedy=_REMEDY,
                )


def _refuse_repeated(graph: GraphProto, title: str) -> None:
    constants = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
    for kind, names in (("input", [value.name for value in graph.input]), ("initializer", constants)):
        name, times = Counter(names).most_common(1)[0] if names else ("", 0)
        if times > 1:
            raise ModelError(f"{title} has {times} {kind}s named {name!r}", remedy=_REMEDY)


def _refuse_unknown_types(graph: GraphProto, title: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        unknown = _element_types(value.type) - _TYPES
        if unknown:
            raise ModelError(
                f"{value.name!r} in {title} has elements of type {min(unknown)}",
                why="ONNX has no such type",
                remedy=_REMEDY,
            )


def _element_types(kind: TypeProto) -> set[int]:
    match kind.WhichOneof("value"):
        case "tensor_type":
            return {kind.tensor_type.elem_type}
        case "sparse_tensor_type":
            return {kind.sparse_tensor_type.elem_type}
        case "sequence_type":
            return _element_types(kind.sequence_type.elem_type)
        case "optional_type":
            return _element_types(kind.optional_type.elem_type)
        case "map_type":
            return {kind.map_type.key_type} | _element_types(kind.map_type.value_type)
    return set()
