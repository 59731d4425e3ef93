"""Zeros that make a matrix product fit tensor cores: geometry only, no costs.

Each axis of a product's tensors plays one part: M, N or K of a matrix product, input or output
channels of a convolution, or none; :func:`campo_onnx.ops.facts.axes_of` says which. Zeros at the
end of every axis of a part change nothing but the size of the result, whose new rows and columns
are cut off again: along K and input channels they add zero times zero to each sum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.facts import axes_of, work_of
from campo_onnx.ops.gemms import UNTOUCHED
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.signature import Shape, Signature

Ends: TypeAlias = tuple[int, ...]
"""Zeros appended at the end of each axis of a tensor."""


class Axis(NamedTuple):
    """One axis of a tensor."""

    tensor: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Zeros to append to the tensors of one node."""

    # Zeros by input position; inputs that stay as they are are absent.
    inputs: Mapping[int, Ends] = field(default_factory=lambda: MappingProxyType({}))
    output: Ends | None = None  # what the result is longer by, or None when its size stays
    # Whether what the result is longer by is zero, so that the next product may read it as it is. A bias that
    # is broadcast along such an axis fills it.
    zero_filled: bool = True

    def applied_to(self, signature: Signature) -> Signature:
        """The node on tensors of the size that it is padded to."""
        inputs = {i: _longer(signature.input(i).shape, ends) for i, ends in self.inputs.items()}
        outputs = {} if self.output is None else {0: _longer(signature.output(0).shape, self.output)}
        return signature.with_shapes(inputs, outputs)


def _longer(shape: Shape | None, ends: Ends) -> Shape:
    return tuple(size + end for size, end in zip(shape or (), ends, strict=True))


def alignment_of(
    node: OpNode, view: GraphView, multiples: Multiples, open_axes: frozenset[Axis] = frozenset()
) -> Alignment | None:
    """Find the least zero padding that makes tensor cores take a product.

    There is none for a node that fits already, or that padding does not help: no product, grouped,
    with vectors or empty tensors, of unknown shape, or open along an axis in question.

    `open_axes`: axes whose size the written file does not fix; what they have to do with stays.
    """
    signature = view.signature(node.name)
    shapes = [() if tensor is None else tensor.shape for tensor in (*signature.inputs, signature.outputs[0])]
    if None in shapes or any(0 in shape for shape in shapes if shape):
        return None
    parts = axes_of(signature)
    if parts is None:
        return None
    (product,) = work_of(signature).gemms
    if product.is_aligned(multiples):
        return None
    tensors = (*node.inputs, node.outputs[0])
    sizes: dict[str, int] = {}
    closed: set[str] = set()
    for tensor, labels in zip(tensors, parts, strict=True):
        for position, (label, size) in enumerate(zip(labels, view.shape(tensor) or (), strict=True)):
            sizes[label] = size
            if Axis(tensor, position) not in open_axes:
                closed.add(label)
    multiple_of = {"m": multiples.m, "n": multiples.n, "k": multiples.k}
    multiple_of |= dict.fromkeys("io", multiples.channels)
    if "m" in sizes:  # rows of all batches together
        multiple_of["m"] //= math.gcd(multiples.m, product.m // sizes["m"])
    missing = {label: -size % multiple_of[label] for label, size in sizes.items() if label != UNTOUCHED}
    if any(zeros and label not in closed for label, zeros in missing.items()):
        return None
    ends = [tuple(missing.get(label, 0) for label in labels) for labels in parts]
    lengthened = {label for label in parts[-1] if missing.get(label)}
    return Alignment(
        inputs=MappingProxyType({i: end for i, end in enumerate(ends[:-1]) if any(end)}),
        output=ends[-1] if lengthened else None,
        zero_filled=not any(node.inputs[2:3]) or lengthened <= set(parts[2]),
    )


def open_axes(imported: Imported, dims: Mapping[str, int]) -> frozenset[Axis]:
    """List the axes that may have another size when the written graph runs.

    Without bound dimensions there are none. With some, an axis is fixed if it belongs to an
    initializer, or if the model declares the very size it was planned with.
    """
    if not dims:
        return frozenset()
    graph = imported.model.graph
    declared = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.input, *graph.output)}
    fixed = {tensor.name for tensor in graph.initializer}
    axes = set()
    for name, info in imported.view.tensors.items():
        dims_declared = declared[name].shape.dim if name in declared else ()
        for position, size in enumerate(info.shape or ()):
            is_declared = position < len(dims_declared) and dims_declared[position].HasField("dim_value")
            if name not in fixed and not (is_declared and dims_declared[position].dim_value == size):
                axes.add(Axis(name, position))
    return frozenset(axes)
