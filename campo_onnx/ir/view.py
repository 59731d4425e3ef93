"""A read-only view of a training graph: what every later stage looks at.

The view owns no protobuf. It is made once by :mod:`campo_onnx.ir.importer`; nothing downstream
reads the file again or infers shapes again. Everything is keyed by name.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ir.origin import UNKNOWN, Origin, modules_around, scope_in
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Signature, decides, itemsize_bytes, operands
from campo_onnx.ops.spec import Family

FLOAT = int(TensorProto.FLOAT)


class TensorKind(Enum):
    """The origin of a tensor."""

    INPUT = "input"
    CONSTANT = "constant"  # an initializer, or the output of a Constant node
    ACTIVATION = "activation"


class Use(NamedTuple):
    """One reading of a tensor: the node's name and the position among its inputs."""

    node: str
    position: int  # CAPTURE when a subgraph of the node reads the tensor from outside


CAPTURE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Type and shape of one tensor."""

    name: str
    dtype: int  # `TensorProto.DataType`; `UNDEFINED` (0) when unknown or not a tensor (a sequence, say)
    shape: tuple[int, ...] | None
    kind: TensorKind
    is_output: bool = False

    @property
    def elements(self) -> int | None:
        """Number of elements, or None when the shape is unknown."""
        return None if self.shape is None else math.prod(self.shape)

    @property
    def itemsize_bytes(self) -> float:
        """Bytes of one element as stored (half a byte for 4-bit types, 0 when unknown)."""
        return itemsize_bytes(self.dtype)

    @property
    def nbytes(self) -> float:
        """Bytes of the whole tensor; 0 when the shape or type is unknown."""
        return (self.elements or 0) * self.itemsize_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNode:
    """One node of the graph."""

    name: str  # unique, never empty
    op: OpKey
    # inputs, outputs: tensor names by position; an omitted optional one is `""`, at any position.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...] = ()  # tensors that bodies of this node (If, Loop, Scan) read from outside
    # Attribute values as Python and NumPy values; graphs are left out.
    attributes: Mapping[str, Any] = field(default_factory=dict)
    # Where in the user's program it comes from; no part of what the node computes, nor of a digest.
    origin: Origin = UNKNOWN

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules it is in, the outermost first: by its metadata, else by its name."""
        return modules_around(scope_in(self.name, self.origin.module))


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """A training graph: nodes in topological order, tensors, and who makes and reads what."""

    nodes: tuple[OpNode, ...]
    tensors: Mapping[str, TensorInfo]
    # inputs, outputs: names of the graph's inputs (without initializers) and outputs, in order.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: Mapping[str, int]  # version by domain; `""` is the standard domain
    # Values of the constants that are small enough to look at (indices, shapes, scalars).
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def node(self) -> Mapping[str, OpNode]:
        """Nodes by name."""
        return MappingProxyType({node.name: node for node in self.nodes})

    @cached_property
    def producer(self) -> Mapping[str, OpNode]:
        """The node that makes a tensor; graph inputs and initializers have none."""
        return MappingProxyType({t: node for node in self.nodes for t in node.outputs if t})

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Use, ...]]:
        """Readings of each tensor, in topological order; a tensor nobody reads is absent."""
        uses: dict[str, list[Use]] = {}
        for node in self.nodes:
            for index, tensor in enumerate(node.inputs):
                if tensor:
                    uses.setdefault(tensor, []).append(Use(node.name, index))
            for tensor in node.captures:
                uses.setdefault(tensor, []).append(Use(node.name, CAPTURE))
        return MappingProxyType({tensor: tuple(readers) for tensor, readers in uses.items()})

    @property
    def is_mixed(self) -> bool:
        """Whether a tensor has a low precision."""
        return any(is_low_dtype(info.dtype) for info in self.tensors.values())

    def downstream(self, tensors: Iterable[str]) -> frozenset[str]:
        """Tensors that any of `tensors` has a part in, themselves included."""
        reached = set(tensors)
        for node in self.nodes:
            if not reached.isdisjoint(node.inputs) or not reached.isdisjoint(node.captures):
                reached.update(t for t in node.outputs if t)
        return frozenset(reached)

    def upstream(self, tensors: Iterable[str]) -> frozenset[str]:
        """Names of the nodes that have a part in any of `tensors`."""
        wanted, names = set(tensors), set()
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs):
                names.add(node.name)
                wanted.update(t for t in (*node.inputs, *node.captures) if t)
        return frozenset(names)

    @cached_property
    def _signatures(self) -> tuple[dict[str, Signature], dict[Signature, Signature]]:
        return {}, {}  # by node, and one object for all nodes that share a signature

    def signature(self, node: str) -> Signature:
        """The part of a node that functions of an operator may look at; one object for all that share it."""
        by_node, distinct = self._signatures
        signature = by_node.get(node)
        if signature is None:
            own = self._signature_of(self.node[node])
            signature = by_node[node] = distinct.setdefault(own, own)
        return signature

    def _signature_of(self, node: OpNode) -> Signature:
        def typed(tensor: str) -> tuple[str, int, tuple[int, ...] | None]:
            info = self.tensors.get(tensor)
            return (tensor, 0, None) if info is None else (tensor, info.dtype, info.shape)

        constants = {i: self.values[tensor] for i, tensor in enumerate(node.inputs) if tensor in self.values}
        return Signature(
            op=node.op,
            opset=self.opset.get(node.op.domain, 1),
            inputs=operands("x", map(typed, node.inputs)),
            outputs=operands("y", map(typed, node.outputs)),
            attributes=node.attributes,
            constants={i: value for i, value in constants.items() if decides(value)},
            has_body=bool(node.captures) or spec(node.op).family is Family.CONTROL_FLOW,
        )

    def is_float32(self, tensor: str) -> bool:
        """Whether the tensor exists and holds FP32."""
        info = self.tensors.get(tensor)
        return info is not None and info.dtype == FLOAT

    def is_constant(self, tensor: str) -> bool:
        """Whether the tensor exists and is a constant."""
        info = self.tensors.get(tensor)
        return info is not None and info.kind is TensorKind.CONSTANT

    def scalar(self, tensor: str) -> float | None:
        """The number that a constant of one element is; None of every other tensor."""
        value = self.values.get(tensor)
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

    def power(self, node: OpNode) -> float | None:
        """The constant power that a node raises its first input to: 2 of a product with itself."""
        if node.op.label == "Pow":
            return self.scalar(node.inputs[1])
        return 2.0 if node.op.label == "Mul" and node.inputs[0] == node.inputs[1] else None

    def origin(self, tensor: str, through: AbstractSet[OpKey]) -> str:
        """The tensor that the first inputs of some operators lead back to."""
        producer = self.producer.get(tensor)
        while producer is not None and producer.op in through:
            tensor = producer.inputs[0]
            producer = self.producer.get(tensor)
        return tensor

    @cached_property
    def data_inputs(self) -> tuple[str, ...]:
        """FP32 inputs that are neither scalars nor trained.

        An output has the shape of what is trained; where its name holds that of an input of this shape, the
        others are data: buffers and batches.
        """
        arrays = [t for t in self.inputs if self.is_float32(t) and self.tensors[t].elements != 1]
        alike: dict[tuple[int, ...] | None, dict[str, list[str]]] = {}  # by shape and name
        for tensor in arrays:
            for name in {tensor, tensor.partition(".")[2]}:
                alike.setdefault(self.shape(tensor), {}).setdefault(name, []).append(tensor)
        trained: set[str] = set()
        unnamed: set[tuple[int, ...] | None] = set()  # shapes of outputs whose names hold that of no input
        for output in filter(self.is_float32, self.outputs):
            named = alike.get(self.shape(output), {})
            inputs = next((named[part] for part in _parts_of_name(output) if part in named), None)
            if inputs is None:
                unnamed.add(self.shape(output))
            else:
                trained.update(inputs)
        trained.update(t for t in arrays if self.shape(t) in unnamed)
        return tuple(t for t in arrays if t not in trained)

    @cached_property
    def trained_inputs(self) -> frozenset[str]:
        """FP32 inputs that are not data: trained ones, and scalars."""
        return frozenset(filter(self.is_float32, self.inputs)).difference(self.data_inputs)

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a tensor, or None when it, or its shape, is unknown."""
        info = self.tensors.get(tensor)
        return None if info is None else info.shape

    @cached_property
    def digest(self) -> str:
        """Fingerprint of nodes, edges, attributes and shapes: tells whether a plan fits a graph."""
        digest = hashlib.sha256()
        for tensor in (*self.inputs, *self.outputs):
            info = self.tensors[tensor]
            digest.update(f"{tensor}:{info.dtype}:{info.shape}\n".encode())
        for node in self.nodes:
            row: list[Any] = [node.name, node.op.label, node.inputs, node.outputs, node.captures]
            row.append(sorted((k, _fingerprint(v)) for k, v in node.attributes.items()))
            digest.update(json.dumps(row).encode())
            digest.update(str([self.shape(t) for t in node.outputs]).encode())
        return digest.hexdigest()


def _parts_of_name(name: str) -> list[str]:
    """Heads and tails of a name, cut between words; the longest first."""
    cuts = [i for i in range(1, len(name)) if not (name[i - 1].isalnum() and name[i].isalnum())]
    return sorted({name, *(name[:i] for i in cuts), *(name[i:] for i in cuts)}, key=len, reverse=True)


def _fingerprint(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)
