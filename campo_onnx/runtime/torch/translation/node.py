"""A node as the rows of the table see it, and what a row is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import torch
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation.values import array_of_constant

if TYPE_CHECKING:
    from campo_onnx.runtime.torch.translation.graph import Graph

EVERY = frozenset(range(64))  # more inputs than any operator with known ones has


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node without its tensors."""

    op: OpKey
    name: str
    version: int  # opset of its domain
    attributes: Mapping[str, Any]  # texts are ``str``, tensors are arrays
    bodies: Mapping[str, "Graph"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: torch.device

    def get(self, name: str, default: Any = None) -> Any:
        """Read an attribute."""
        return self.attributes.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Read an attribute that is 0 or 1."""
        return bool(self.attributes.get(name, default))

    def has_output(self, position: int) -> bool:
        """Whether some node or the graph may read an output."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def refusal(self, why: str) -> UnsupportedModelError:
        """Make the error for a form of the operator that is not translated."""
        return UnsupportedModelError(
            f"torch does not run the node {self.name!r} ({self.op.label})",
            why=why,
            remedy="Run the graph on ONNX Runtime (--runtime onnxruntime).",
        )


Compute = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """Computation of an operator.

    `compute` takes the node and its inputs, None for those that are left out, and returns its outputs.
    """

    compute: Compute
    static: frozenset[int] = frozenset()  # positions of inputs that it takes as arrays, known while tracing
    either: frozenset[int] = frozenset()  # positions of inputs that it takes as arrays where they are known
    takes_scope: bool = False  # whether it takes the tensors around it as well, as bodies need them


def static(*positions: int) -> Callable[[Compute], Row]:
    """Mark inputs that have to be known while tracing: shapes, axes, pads."""
    return lambda compute: Row(compute, frozenset(positions))


def either(*positions: int) -> Callable[[Compute], Row]:
    """Mark inputs that a row takes as arrays where they are known while tracing, and as tensors elsewhere."""
    return lambda compute: Row(compute, either=frozenset(positions))


def raw(compute: Compute) -> Row:
    """Make the row of an operator that takes arrays and tensors alike."""
    return Row(compute, either=EVERY)


def plain(compute: Compute) -> Row:
    """Make the row of an operator without attributes."""
    return Row(lambda node, *inputs: compute(*inputs))


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Read the attributes of a node, bodies left out."""
    return {
        a.name: _value(a)
        for a in node.attribute
        if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    }


def graphs_in(node: NodeProto) -> dict[str, GraphProto]:
    """List the bodies of a node by the attributes that hold them."""
    return {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}


def _value(attribute: AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return array_of_constant(value, None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode(errors="replace") for text in value]
    return list(value) if isinstance(value, list | tuple) or hasattr(value, "extend") else value
