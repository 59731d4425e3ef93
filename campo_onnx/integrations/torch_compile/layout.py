"""Layout of a tensor in memory, and the part of it that a session reads or writes.

ONNX tensors are contiguous. A transposed or channels-last tensor is contiguous in another order of
its axes, and an expanded one holds each element once: a session can use that memory as it is if the
graph says so with a Transpose and an Expand, which mostly meet others that undo them.
"""

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


def _with_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor whose memory holds its elements: torch only marks conjugates, negatives and zeros."""
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_conj().resolve_neg()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A tensor's place in memory.

    `gaps` are strides where elements of others lie between; None where the tensor is dense. Such memory is
    copied.
    """

    shape: tuple[int, ...]
    repeated: tuple[int, ...]  # axes whose elements are all one element in memory
    order: tuple[int, ...] | None  # axes from the slowest to the fastest; None where they lie in order
    gaps: tuple[int, ...] | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Layout":
        """Look at a tensor, be it fake."""
        sizes, strides = tuple(tensor.shape), tensor.stride()
        repeated = tuple(axis for axis, size in enumerate(sizes) if strides[axis] == 0 and size > 1)
        for axis in repeated:
            tensor = tensor.narrow(axis, 0, 1)
        order = None
        if not tensor.is_contiguous():
            order = tuple(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
            tensor = tensor.permute(order)
        gaps = None if tensor.is_contiguous() else strides
        return cls(shape=sizes, repeated=repeated, order=order, gaps=gaps)

    @property
    def is_plain(self) -> bool:
        """Whether the tensor lies as ONNX has it."""
        return self.order is None and not self.repeated

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of what lies in memory."""
        narrow = [1 if axis in self.repeated else size for axis, size in enumerate(self.shape)]
        return tuple(narrow[axis] for axis in self.order or range(len(narrow)))

    def stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give what lies in memory, contiguous; a copy where the tensor lies otherwise."""
        tensor = _with_elements(tensor)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if self.is_plain:
            return tensor.contiguous()
        for axis in self.repeated:
            tensor = tensor.narrow(axis, 0, 1)
        return (tensor if self.order is None else tensor.permute(self.order)).contiguous()

    def restored(self, stored: torch.Tensor) -> torch.Tensor:
        """Give the tensor to what lies in memory; a copy where elements of others lie between."""
        if self.order is not None:
            stored = stored.permute(_inverse(self.order))
        if self.repeated:
            stored = stored.expand(self.shape)
        if self.gaps is None or self.repeated:
            return stored
        tensor = torch.empty_strided(self.shape, self.gaps, dtype=stored.dtype, device=stored.device)
        return tensor.copy_(stored)

    def add_stored(self, graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
        """Write :meth:`stored` into a traced graph, behind a node."""
        for axis in self.repeated:
            node = _added(graph, aten.slice.Tensor, node, axis, 0, 1)
        return node if self.order is None else _added(graph, aten.permute.default, node, list(self.order))

    def add_restored(self, graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
        """Write :meth:`restored` into a traced graph, behind a node."""
        if self.order is not None:
            node = _added(graph, aten.permute.default, node, list(_inverse(self.order)))
        return _added(graph, aten.expand.default, node, list(self.shape)) if self.repeated else node


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _added(graph: torch.fx.Graph, operation: Any, source: torch.fx.Node, *rest: Any) -> torch.fx.Node:
    node = graph.call_function(operation, (source, *rest))
    node.meta = {key: value for key, value in source.meta.items() if key != "val"}
    with source.meta["val"].fake_mode:
        node.meta["val"] = operation(source.meta["val"], *rest)
    return node
