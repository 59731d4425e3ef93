"""No label or index of a batch points outside of what it looks up in.

A graph would go on: ONNX counts negative indices from the end, so that a label of -1 trains the last class,
and kernels on a GPU read or skip what lies outside. What the graph makes of integers that are fed, up to
where it looks up with them, is computed before each step, on the CPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import IndexOutOfRangeError, UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.size_ranges import ranges_of
from campo_onnx.ir.view import GraphView
from campo_onnx.ir.walk import Walk
from campo_onnx.runtime.api import LoadSettings, Program
from campo_onnx.runtime.feeds import index_bound
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.registry import load, machine

_INTEGERS = frozenset(
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
    """An index, the numbers it may hold, the feeds that it is made of, and the nodes that make it.

    `shapes_of` are feeds of which it takes the shapes only.
    """

    tensor: str
    lowest: int
    size: int
    feeds: tuple[str, ...]
    nodes: frozenset[str]
    reader: str
    shapes_of: tuple[str, ...] = ()

    def check(self, index: NDArray[Any], feeds: Mapping[str, NDArray[Any]]) -> None:
        """Refuse an index with a number outside; the user knows those that it is made of."""
        if not index.size:
            return
        outside = index.argmin() if index.min() < self.lowest else index.argmax()
        if self.lowest <= index.flat[outside] < self.size:
            return
        reason = f"{self.reader!r} takes {self.lowest} to {self.size - 1}"
        source = feeds[self.feeds[0]]
        number = source.flat[outside] if len(self.feeds) == 1 and source.size == index.size else self.lowest
        if self.lowest <= number < self.size:
            raise _outside(self.feeds, feeds, reason)
        raise IndexOutOfRangeError(f"the index {number} of {self.feeds[0]!r} is out of range", why=reason)


@dataclass(frozen=True, kw_only=True)
class IndexGuard:
    """Checks what is fed.

    `depends_on_sizes` says whether the numbers that an index may hold are others at other sizes of the batch.
    """

    uses: tuple[_Use, ...]
    program: Program | None  # computes them; None where all are fed as they are
    depends_on_sizes: bool = False

    @classmethod
    def of(cls, imported: Imported, feeds: Mapping[str, Any]) -> "IndexGuard":
        """Make the guard of a step."""
        uses, program = _uses(imported, frozenset(feeds)), None
        is_open = _depends_on_sizes(imported, uses)
        if computed := [use for use in uses if use.nodes]:
            part, settings = _part(imported, computed), LoadSettings(spins=False)
            try:
                program = load(part, machine(CPU, 1), folder=imported.folder, settings=settings)
            except UnsupportedModelError:  # a type for which only a GPU has a kernel
                uses = tuple(use for use in uses if not use.nodes)
        return cls(uses=uses, program=program, depends_on_sizes=is_open)

    def check(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Check a batch."""
        computed = [use for use in self.uses if use.nodes]
        for use in self.uses:
            if not use.nodes:
                use.check(feeds[use.tensor], feeds)
        if self.program is None:
            return
        read = {name for use in computed for name in (*use.feeds, *use.shapes_of)}
        try:
            indices = self.program.run({name: feeds[name] for name in read})
        except IndexOutOfRangeError as error:  # of a lookup that makes an index
            made_of = tuple(dict.fromkeys(name for use in computed for name in use.feeds))
            raise _outside(made_of, feeds, error.what) from None
        for use in computed:
            use.check(indices[use.tensor], feeds)


def _outside(made_of: Sequence[str], feeds: Mapping[str, NDArray[Any]], reason: str) -> IndexOutOfRangeError:
    """Make the error of an index that is computed."""
    ends = [(name, feeds[name].min(), feeds[name].max()) for name in made_of if feeds[name].size]
    held = [f"{name!r} holds {lowest} to {highest}" for name, lowest, highest in ends]
    return IndexOutOfRangeError(
        f"an index made of {' and '.join(map(repr, made_of))} is out of range", why=", ".join((reason, *held))
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
                lowest = -size if counts_from_the_end else 0
                uses[tensor, size] = _Use(tensor, lowest, size, path[0], path[1], node.name, path[2])
    return tuple(uses.values())


def _depends_on_sizes(imported: Imported, uses: Sequence[_Use]) -> bool:
    """Whether what some index looks up in has an axis without a size in the file."""
    ranges = ranges_of(imported.model)
    readers = {use.reader for use in uses if ranges}
    graph = imported.model.graph
    sized = {v.name: v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info, *graph.output)}
    fixed = {name for name, dims in sized.items() if all(d.HasField("dim_value") for d in dims)}
    fixed |= imported.constants.keys()
    return any(imported.view.node[name].inputs[0] not in fixed for name in readers)


def _path(
    view: GraphView, index: str, feeds: frozenset[str]
) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]] | None:
    """Give the feeds and the nodes that an index is made of, and feeds of which it takes the shape.

    None where it is made of anything else.
    """
    read: dict[str, None] = {}
    shapes_of: dict[str, None] = {}
    nodes: set[str] = set()
    walk = Walk([index])
    for tensor in walk:
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
        if node.op.label == "Shape" and node.inputs[0] in feeds:
            shapes_of[node.inputs[0]] = None
        else:
            walk.add(filter(None, node.inputs))
    return tuple(read), frozenset(nodes), tuple(shapes_of)


def _is_whole(view: GraphView, tensor: str) -> bool:
    info = view.tensors.get(tensor)
    return info is not None and info.dtype in _INTEGERS


def _part(imported: Imported, uses: list[_Use]) -> onnx.ModelProto:
    """Take out the nodes that make some indices."""
    view, model = imported.view, imported.model
    names = {name for use in uses for name in use.nodes}
    graph = onnx.GraphProto(name="indices")
    graph.node.extend(node for node in model.graph.node if node.name in names)
    read = {tensor for node in graph.node for tensor in node.input}
    graph.initializer.extend(i for i in model.graph.initializer if i.name in read)
    fed = dict.fromkeys(feed for use in uses for feed in (*use.feeds, *use.shapes_of))
    graph.input.extend(value for value in model.graph.input if value.name in fed)
    for name in dict.fromkeys(use.tensor for use in uses):
        info = view.tensors[name]
        graph.output.append(helper.make_tensor_value_info(name, info.dtype, [None] * len(info.shape or ())))
    return onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
