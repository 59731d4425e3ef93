"""Running a large step once in little memory: piece after piece, what waits long waits on disk.

A training step keeps the activations of its forward pass for its backward pass: 17 GB in BERT-large with
10 sentences. What is not needed soon is written to a temporary folder (``TMPDIR``) and read back.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto
from onnx.helper import make_tensor_value_info as _info

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.files import temporary_folder
from campo_onnx.ir.constants import whole
from campo_onnx.ir.shapes import TensorTypes, infer
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ops.signature import itemsize_bytes
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.held_memory import held_memory
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load

_SMALL = 1 << 16  # not worth a file


class Waiting:
    """Tensors between the pieces of a run."""

    def __init__(self, held_bytes: int, folder: Path) -> None:
        self._held_bytes, self._folder = held_bytes, folder
        self._values: dict[str, NDArray[Any]] = {}
        self._readers: dict[str, Sequence[int]] = {}
        self._files: dict[str, tuple[Path, tuple[int, ...], np.dtype[Any]]] = {}
        self.files_written = 0

    def put(self, name: str, value: NDArray[Any], readers: Sequence[int]) -> None:
        """Keep a tensor; `readers` are the times at which it is read, in order."""
        self._values[name], self._readers[name] = value, readers

    def get(self, name: str) -> NDArray[Any]:
        """Give a tensor that is waiting."""
        if name not in self._values:
            path, shape, dtype = self._files.pop(name)
            value = np.fromfile(path, np.uint8).view(dtype).reshape(shape)
            path.unlink()
            self._values[name] = value
        return self._values[name]

    def drop(self, name: str) -> None:
        """Forget a tensor that nobody reads any more."""
        self._values.pop(name, None)
        self._readers.pop(name, None)

    def make_room(self, now: int) -> None:
        """Write to files, until the rest fits, what is read the latest."""
        sizes = {name: value.nbytes for name, value in self._values.items()}
        excess = sum(sizes.values()) - self._held_bytes
        movable = [name for name, size in sizes.items() if size >= _SMALL]
        movable.sort(key=lambda name: self._next_read(name, now), reverse=True)
        for name in movable:
            if excess <= 0:
                return
            value = self._values.pop(name)
            path = self._folder / f"{self.files_written}.bin"
            self.files_written += 1
            with path.open("wb") as file:
                value.tofile(file)
            self._files[name] = (path, value.shape, value.dtype)
            excess -= sizes[name]

    def _next_read(self, name: str, now: int) -> int:
        readers = self._readers[name]
        return readers[min(bisect_left(readers, now), len(readers) - 1)]


Outputs: TypeAlias = Iterator[tuple[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Memory that a step may take, beside its inputs, its outputs and what a single node needs."""

    piece_bytes: int = 512 << 20  # what the nodes of one piece may make
    held_bytes: int = 2 << 30  # what may wait in memory between pieces


LIMITS = Limits()

_ONCE = LoadSettings(must_stay=False, holds_memory=False)


def run(
    model: ModelProto, feeds: Mapping[str, NDArray[Any]], machine: Machine, *, folder: Path | None = None
) -> dict[str, NDArray[Any]]:
    """Load a graph and run it once."""
    return load(model, machine, folder=folder, settings=_ONCE).run(feeds)


def run_in_pieces(
    model: ModelProto,
    feeds: Mapping[str, NDArray[Any]],
    machine: Machine,
    *,
    folder: Path | None = None,
    limits: Limits = LIMITS,
) -> Outputs:
    """Run a graph once, node by node as it is written, and yield each output as soon as it is there.

    Of a sequence each element is yielded, as ``name[0]`` and so on; of an empty optional value, nothing.
    A graph that fits into one piece, or whose tensors have no known sizes, runs as :func:`run` runs it. On a
    GPU it is one piece. UsageError says that there is no room for it, in memory or on disk.
    """
    pieces = [] if machine.is_gpu else _pieces(model, feeds, limits)
    if len(pieces) < 2:
        for name, value in run(model, feeds, machine, folder=folder).items():
            yield from _arrays(name, value)
        return
    with temporary_folder() as scratch, held_memory():
        yield from _Run(model, feeds, machine, folder, Waiting(limits.held_bytes, scratch)).outputs(pieces)


def _arrays(name: str, value: Any) -> Outputs:
    if isinstance(value, list):
        for position, element in enumerate(value):
            yield from _arrays(f"{name}[{position}]", element)
    elif value is not None:
        yield name, np.asarray(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some nodes, what they read from before, and what is read after."""

    nodes: tuple[NodeProto, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    types: Mapping[str, int]


def _pieces(model: ModelProto, feeds: Mapping[str, NDArray[Any]], limits: Limits) -> list[_Piece]:
    graph = model.graph
    if model.functions or not all(v.type.HasField("tensor_type") for v in graph.output):
        return []
    try:
        types = infer(model, dims_of_feeds(model, feeds))
    except CampoError:
        return []
    sources = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    groups = _groups(list(graph.node), types, limits.piece_bytes)
    return _linked(groups, sources, {v.name for v in graph.output}, types) if len(groups) > 1 else []


def dims_of_feeds(model: ModelProto, feeds: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """Sizes of the dimensions that the graph leaves open, as the feeds have them."""
    sizes: dict[str, int] = {}
    for info in model.graph.input:
        declared = info.type.tensor_type
        if info.name not in feeds or not info.type.HasField("tensor_type"):
            continue
        for axis, size in enumerate(feeds[info.name].shape):
            dim = declared.shape.dim[axis] if axis < len(declared.shape.dim) else None
            if dim is None or not dim.HasField("dim_value") or dim.dim_value < 0:
                name = dim.dim_param if dim is not None else ""
                sizes[name or f"{info.name}[{axis}]"] = size
    return sizes


def _groups(nodes: list[NodeProto], types: TensorTypes, most_bytes: int) -> list[list[NodeProto]]:
    """Cut where a piece has made enough, and nothing but tensors is handed on."""
    last_read = {tensor: i for i, node in enumerate(nodes) for tensor in _reads(node)}
    whole_until = 0  # up to here something that is not a tensor is still to be read
    groups: list[list[NodeProto]] = [[]]
    made_bytes = 0
    for index, node in enumerate(nodes):
        node_bytes = sum(_nbytes(tensor, types) for tensor in node.output)
        if groups[-1] and made_bytes + node_bytes > most_bytes and index > whole_until:
            groups.append([])
            made_bytes = 0
        groups[-1].append(node)
        made_bytes += node_bytes
        for tensor in node.output:
            if tensor and not types.dtypes.get(tensor):
                whole_until = max(whole_until, last_read.get(tensor, 0))
    return groups


def _reads(node: NodeProto) -> Iterable[str]:
    return (tensor for tensor in (*node.input, *outer_reads(node)) if tensor)


def _nbytes(tensor: str, types: TensorTypes) -> int:
    shape = types.shapes.get(tensor)
    if shape is None:
        return 0
    return math.ceil(math.prod(shape) * itemsize_bytes(types.dtypes[tensor]))


def _linked(
    groups: list[list[NodeProto]], inputs: set[str], outputs: set[str], types: TensorTypes
) -> list[_Piece]:
    """Find what each piece hands on. A Cast that widens is made again rather than kept."""
    widening = {node.output[0]: node for group in groups for node in group if _widens(node, types)}
    copies: list[list[NodeProto]] = []
    for group in groups:
        results = {tensor for node in group for tensor in node.output}
        again: dict[str, NodeProto] = {}
        pending = [tensor for node in group for tensor in _reads(node)]
        while pending:
            tensor = pending.pop()
            if tensor in widening and tensor not in results and tensor not in again:
                again[tensor] = widening[tensor]
                pending.append(widening[tensor].input[0])
        copies.append(list(reversed(again.values())))
    linked: list[_Piece] = []
    needed: set[str] = set(outputs)
    for group, before in zip(reversed(groups), reversed(copies), strict=True):
        nodes = (*before, *group)
        results = {tensor for node in nodes for tensor in node.output if tensor}
        own = {tensor for node in group for tensor in node.output if tensor}
        reads = {tensor for node in nodes for tensor in _reads(node)} - results
        linked.append(
            _Piece(
                nodes=nodes,
                reads=tuple(sorted(reads)),
                makes=tuple(sorted(own & needed)),
                types={t: types.dtypes[t] for t in sorted((reads - inputs) | (own & needed))},
            )
        )
        needed |= reads
    return linked[::-1]


def _widens(node: NodeProto, types: TensorTypes) -> bool:
    if node.op_type != "Cast" or node.domain:
        return False
    before, after = types.dtypes.get(node.input[0]), types.dtypes.get(node.output[0])
    return bool(before and after) and itemsize_bytes(before or 0) < itemsize_bytes(after or 0)


class _Run:
    """One run: the pieces one after another, and what waits between them."""

    def __init__(
        self,
        model: ModelProto,
        feeds: Mapping[str, NDArray[Any]],
        machine: Machine,
        folder: Path | None,
        waiting: Waiting,
    ) -> None:
        self._model, self._feeds, self._machine, self._folder = model, feeds, machine, folder
        self._waiting = waiting
        graph = model.graph
        self._stored = {t.name: t for t in graph.initializer}
        self._wanted = [v.name for v in graph.output]

    def outputs(self, pieces: list[_Piece]) -> Outputs:
        """Run every piece; see :func:`run_in_pieces`."""
        last_read = {tensor: i for i, piece in enumerate(pieces) for tensor in piece.reads}
        readers: dict[str, list[int]] = {}
        for index, piece in enumerate(pieces):
            for tensor in piece.reads:
                readers.setdefault(tensor, []).append(index)
        results = {tensor for piece in pieces for tensor in piece.makes}
        if at_once := [name for name in self._wanted if name not in results]:
            yield from self._given(at_once)
        for index, piece in enumerate(pieces):
            try:
                values = self._run(piece)
                for name in piece.reads:
                    if last_read[name] == index:
                        self._waiting.drop(name)
                for name in list(values):
                    value = values.pop(name)
                    if name in readers:
                        self._waiting.put(name, value, readers[name])
                    if name in self._wanted:
                        yield name, value
                    del value
                self._waiting.make_room(index + 1)
            except OSError as error:
                raise UsageError(
                    "a large step is run in pieces, and there is no room on disk for what waits between them",
                    why=str(error),
                    remedy="Let the environment variable TMPDIR name a folder with more room.",
                ) from None

    def _given(self, names: list[str]) -> Outputs:
        """Outputs that no node makes."""
        for name in names:
            is_fed = name in self._feeds
            yield name, self._feeds[name] if is_fed else whole(self._stored[name], self._folder)

    def _run(self, piece: _Piece) -> dict[str, NDArray[Any]]:
        model = ModelProto(ir_version=self._model.ir_version, opset_import=self._model.opset_import)
        graph = model.graph
        graph.name = "piece"
        graph.node.extend(piece.nodes)
        values = {}
        for name in piece.reads:
            if name in self._feeds:
                values[name] = self._feeds[name]
                dtype = onnx.helper.np_dtype_to_tensor_dtype(self._feeds[name].dtype)
                graph.input.append(_info(name, dtype, None))
            elif name in self._stored:
                graph.initializer.append(self._stored[name])
            else:
                values[name] = self._waiting.get(name)
                graph.input.append(_info(name, piece.types[name], None))
        graph.output.extend(_info(name, piece.types[name], None) for name in piece.makes)
        if not piece.makes:
            return {}
        return run(model, values, self._machine, folder=self._folder)
