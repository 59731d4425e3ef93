"""No label or index of a batch points outside of what it looks up in.

A graph would go on: ONNX counts negative indices from the end, so that a label of -1 trains the last class,
and kernels on a GPU read or skip what lies outside. What the graph makes of integers that are fed, up to
where it looks up with them, is computed before each step, on the CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import IndexOutOfRangeError, UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView
from campo_onnx.runtime.api import LoadSettings, Program
from campo_onnx.runtime.feeds import index_bound
from campo_onnx.runtime.registry import load, machine

_WHOLE = frozenset(
    {
        *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    }
)
_MOST_NODES = 64
"""Of one index: what is made in more steps is computed by the model, and not fed."""

_OURS = "campo-onnx"
"""Who writes graphs in which no index is negative, as :mod:`campo_onnx.export` does."""


class _Use(NamedTuple):
    """An index, the numbers it may hold, the feeds that it is made of, and the nodes that make it."""

    tensor: str
    lowest: int
    size: int
    feeds: tuple[str, ...]
    nodes: frozenset[str]
    reader: str


@dataclass(frozen=True, kw_only=True)
class IndexGuard:
    """Checks what is fed.

    Parameters
    ----------
    uses
        Indices that are made of what is fed.
    program
        Computes them; None where all are fed as they are.
    """

    uses: tuple[_Use, ...]
    program: Program | None

    @classmethod
    def of(cls, imported: Imported, feeds: Mapping[str, Any]) -> "IndexGuard":
        """Make the guard of a step.

        Parameters
        ----------
        imported
            The step.
        feeds
            Names of what is fed.
        """
        uses = _uses(imported, frozenset(feeds))
        computed = [use for use in uses if use.nodes]
        if not computed:
            return cls(uses=uses, program=None)
        try:
            settings = LoadSettings(spins=False)
            part = _part(imported, computed)
            program = load(part, machine("cpu", 1), folder=imported.folder, settings=settings)
        except UnsupportedModelError:  # a type for which only a GPU has a kernel
            return cls(uses=tuple(use for use in uses if not use.nodes), program=None)
        return cls(uses=uses, program=program)

    def check(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Check a batch.

        Raises
        ------
        IndexOutOfRangeError
            If an index lies outside.
        """
        if not self.uses:
            return
        made: Mapping[str, NDArray[Any]] = feeds
        if self.program is not None:
            read = {name for use in self.uses if use.nodes for name in use.feeds}
            made = {**feeds, **self.program.run({name: feeds[name] for name in read})}
        for use in self.uses:
            index = made[use.tensor]
            if not index.size:
                continue
            lowest, highest = int(index.min()), int(index.max())
            if lowest < use.lowest or highest >= use.size:
                raise IndexOutOfRangeError(
                    f"the index {lowest if lowest < use.lowest else highest} of "
                    f"{' and '.join(map(repr, use.feeds))} is out of range",
                    why=f"{use.reader!r} takes {use.lowest} to {use.size - 1}",
                )


def _uses(imported: Imported, feeds: frozenset[str]) -> tuple[_Use, ...]:
    view = imported.view
    counts_from_the_end = imported.model.producer_name != _OURS
    uses: dict[tuple[str, int], _Use] = {}
    for node in view.nodes:
        for position, tensor in enumerate(node.inputs):
            size = index_bound(node, position, view) if tensor else None
            if size is None or (tensor, size) in uses or not _is_whole(view, tensor):
                continue
            path = _path(view, tensor, feeds)
            if path is not None and path[0]:
                uses[tensor, size] = _Use(
                    tensor, -size if counts_from_the_end else 0, size, path[0], path[1], node.name
                )
    return tuple(uses.values())


def _path(
    view: GraphView, index: str, feeds: frozenset[str]
) -> tuple[tuple[str, ...], frozenset[str]] | None:
    """Give the feeds and the nodes that an index is made of; None where it is made of anything else."""
    read: dict[str, None] = {}
    nodes: set[str] = set()
    todo = [index]
    while todo:
        tensor = todo.pop()
        if not _is_whole(view, tensor):
            return None
        node = view.producer.get(tensor)
        if node is None:
            if tensor in view.inputs:
                if tensor not in feeds:
                    return None
                read[tensor] = None
            continue
        if node.name in nodes:
            continue
        if len(nodes) == _MOST_NODES or node.captures or node.op.domain:
            return None
        nodes.add(node.name)
        todo += [t for t in node.inputs if t]
    return tuple(read), frozenset(nodes)


def _is_whole(view: GraphView, tensor: str) -> bool:
    info = view.tensors.get(tensor)
    return info is not None and info.dtype in _WHOLE


def _part(imported: Imported, uses: list[_Use]) -> onnx.ModelProto:
    """Take out the nodes that make some indices."""
    view, given = imported.view, imported.model
    names = {name for use in uses for name in use.nodes}
    graph = onnx.GraphProto(name="indices")
    graph.node.extend(node for node in given.graph.node if node.name in names)
    read = {tensor for node in graph.node for tensor in node.input}
    graph.initializer.extend(i for i in given.graph.initializer if i.name in read)
    fed = dict.fromkeys(feed for use in uses for feed in use.feeds)
    for field, tensors in ((graph.input, fed), (graph.output, dict.fromkeys(use.tensor for use in uses))):
        for name in tensors:
            info = view.tensors[name]
            field.append(helper.make_tensor_value_info(name, info.dtype, info.shape))
    return onnx.ModelProto(ir_version=given.ir_version, opset_import=given.opset_import, graph=graph)
