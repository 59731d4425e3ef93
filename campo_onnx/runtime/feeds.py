"""Inputs for a graph: made up so that it runs as it would on data, or read from a file.

An index beyond its table, a negative variance or a mask that is not one would stop a step or make
it take another path. So what each input is read for is traced through the graph.
"""

import math
import struct
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.files import refuse_special
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Ask, Family, Movement

Feeds = dict[str, NDArray[Any]]

ARRAY_LIMIT_BYTES = 16 << 30
"""Largest array of a batch."""

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What zipfile and numpy raise on files that are damaged, encrypted, compressed in another way or hostile.
_UNREADABLE = (
    OSError, ValueError, BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, MemoryError,
    LookupError, SyntaxError, TypeError, struct.error, TokenError,
)  # fmt: skip

# Arithmetic that keeps a positive value positive, as in sqrt(variance + epsilon).
_KEEPS_SIGN = frozenset(["Add", "Mul"])
_SCALING = frozenset(["Mul", "Div", "Cast", "Reshape"])
_SCALAR = 0.01  # a learning rate, a temperature, a loss weight
_RATIO = 0.1
_TEXT = "0"  # a Cast makes a number of it
_MASKED = 0.25
_FEW = 2  # integers nobody indexes with are masks, segments and counters


class _Bounds(NamedTuple):
    """Bounds on a tensor's values that its consumers need."""

    below: int | None = None  # integers stay below this
    positive: bool = False
    ratio: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Scale of made-up floating-point values.

    `positive` is the range of values that must be positive; within (0, 1) they pass for probabilities, too.
    """

    weights: float = 0.05  # standard deviation of values nobody asks anything of
    positive: tuple[float, float] = (0.05, 0.95)


def synthesize(
    view: GraphView,
    *,
    seed: int = 0,
    spread: Spread | None = None,
    within: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Feeds:
    """Make up a value for every input of a graph.

    `within` has the lowest and highest value of some inputs. A range on one side of zero is taken for that of
    a mask: most values lie at the end next to zero, and in every row one does. UnsupportedModelError says
    that an input has no static shape, has a type without made-up values, or does not fit into memory.
    """
    generator = np.random.default_rng(seed)
    scale = spread or Spread()
    values: Feeds = {}
    for name in view.inputs:
        with _in_memory(view.tensors[name]):
            values[name] = _value(view.tensors[name], view, generator, scale)
    for name, (lowest, highest) in within.items():
        if name in values:
            with _in_memory(view.tensors[name]):
                values[name] = _between(lowest, highest, values[name], generator)
    return values


def _between(
    lowest: float, highest: float, like: NDArray[Any], generator: np.random.Generator
) -> NDArray[Any]:
    is_float = np.issubdtype(like.dtype, np.floating)
    if like.dtype != bool:
        least, most = _held(like.dtype)
        lowest, highest = min(max(lowest, least), most), max(min(highest, most), least)
    if lowest < 0.0 < highest or not like.ndim:
        shares = generator.random(like.shape)
        drawn = (1.0 - shares) * lowest + shares * highest
    else:
        near, far = sorted((lowest, highest), key=abs)
        drawn = np.where(generator.random(like.shape) < _MASKED, far, near)
        drawn[..., :1] = near
    return np.asarray(drawn if is_float else np.rint(drawn)).astype(like.dtype)


def _held(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Least and largest number that a type holds and that is an FP64 number as well."""
    if np.issubdtype(dtype, np.floating):
        floats = np.finfo(dtype)
        return float(floats.min), float(floats.max)
    integers = np.iinfo(dtype)
    most = float(integers.max)
    return float(integers.min), most if int(most) <= integers.max else float(np.nextafter(most, 0.0))


def read_feeds(path: Path, view: GraphView, defaults: Mapping[str, NDArray[Any]] | None = None) -> Feeds:
    """Read inputs from an .npz file, one array per input.

    Inputs that neither the file names nor `defaults` are an error, and so are arrays no input is called
    after. UsageError says that the file cannot be read, or lists names, shapes and types that do not fit.
    """
    refuse_special(path)
    try:
        # numpy.load would take a lone array and a pickle as well.
        with path.open("rb") as file, ZipFile(file) as archive:
            members = _members(archive)
            # What an array claims to be is held against the graph before any memory is taken for it.
            headers = {name: _header(archive, members[name]) for name in members}
            arrays = dict(defaults or {})
            problems = _problems(headers, view, optional=arrays)
            arrays |= {} if problems else {name: _array(archive, members[name]) for name in members}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", remedy="Check the path of --inputs.") from None
    except _UNREADABLE as error:
        raise UsageError(
            f"{path} is not an .npz file", why=str(error), remedy="Write it with numpy.savez."
        ) from None
    if problems:
        raise UsageError(
            f"{path} does not fit the graph",
            why="; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else ""),
            remedy="Give one array per input, named after it.",
        )
    return {name: np.ascontiguousarray(arrays[name]) for name in view.inputs}


class _Header(NamedTuple):
    """Type and shape of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _members(archive: ZipFile) -> Mapping[str, str]:
    """Members of the archive with the arrays, by name; numpy adds ``.npy`` to each."""
    names = archive.namelist()
    members = {stored.removesuffix(".npy"): stored for stored in names}
    if len(members) < len(names):
        raise ValueError("two arrays have one name")
    return members


def _header(archive: ZipFile, stored: str) -> _Header:
    with archive.open(stored) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"{stored!r} has the format version {version}")
        shape, _, dtype = _HEADERS[version](member)
    header = _Header(dtype, shape)
    if math.prod(shape) * dtype.itemsize > ARRAY_LIMIT_BYTES:
        raise ValueError(f"{stored!r} claims the shape {shape}, more than {ARRAY_LIMIT_BYTES:,} bytes")
    return header


def _array(archive: ZipFile, stored: str) -> NDArray[Any]:
    with archive.open(stored) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _problems(headers: Mapping[str, _Header], view: GraphView, *, optional: Container[str]) -> list[str]:
    missing = [name for name in view.inputs if name not in headers and name not in optional]
    problems = [f"input {name!r} is missing" for name in missing]
    problems += [f"the graph has no input {name!r}" for name in headers if name not in view.inputs]
    for name in view.inputs:
        if name in headers:
            problems += _misfit(headers[name], view.tensors[name])
    return problems


def _misfit(array: _Header, info: TensorInfo) -> Iterator[str]:
    dtype = helper.tensor_dtype_to_np_dtype(info.dtype)
    if array.dtype != dtype:
        yield f"{info.name!r} is {array.dtype}, and the graph wants {dtype}"
    if info.shape is not None and array.shape != info.shape:
        yield f"{info.name!r} has shape {array.shape}, and the graph wants {info.shape}"


def _value(info: TensorInfo, view: GraphView, generator: np.random.Generator, spread: Spread) -> NDArray[Any]:
    if info.shape is None or info.dtype == TensorProto.UNDEFINED:
        raise UnsupportedModelError(
            f"no value can be made up for the input {info.name!r}",
            why="its shape is unknown" if info.dtype else "its type is unknown",
            remedy="Give real inputs with --inputs data.npz.",
        )
    wanted = _wanted(view, info.name)
    dtype = helper.tensor_dtype_to_np_dtype(info.dtype)
    if math.prod(info.shape) * dtype.itemsize > ARRAY_LIMIT_BYTES:
        raise _too_large(info, f"more than {ARRAY_LIMIT_BYTES:,} bytes")
    if info.dtype == TensorProto.STRING:
        return np.full(info.shape, _TEXT, dtype)
    if info.dtype == TensorProto.BOOL:
        return generator.integers(0, 2, info.shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(0, max(1, wanted.below or _FEW), info.shape).astype(dtype)
    if wanted.ratio:
        return np.full(info.shape, _RATIO, dtype)
    if not info.shape:
        return np.asarray(_SCALAR, dtype)
    if wanted.positive:
        return generator.uniform(*spread.positive, info.shape).astype(dtype)
    # A float32 draw needs half the memory of the default, which matters for an embedding table.
    drawn = generator.standard_normal(info.shape, dtype=np.float32)
    drawn *= spread.weights
    return drawn.astype(dtype, copy=False)


@contextmanager
def _in_memory(info: TensorInfo) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise _too_large(info, "more memory than there is") from None


def _too_large(info: TensorInfo, than: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"no value can be made up for the input {info.name!r}",
        why=f"its shape {info.shape} takes {than}",
        remedy="Set smaller dimensions: --dim NAME=SIZE, or export the model with a smaller batch.",
    )


def _wanted(view: GraphView, tensor: str) -> _Bounds:
    """Follow a tensor to everything that asks something of its values."""
    bounds: list[int] = []
    positive = ratio = False
    walk = Walk([tensor])
    for current in walk:
        for use in view.consumers.get(current, ()):
            node = view.node[use.node]
            bound = index_bound(node, use.position, view)
            if bound is not None:
                bounds.append(bound)
            ask = _asked(node, use.position)
            positive |= ask is Ask.POSITIVE
            # A sum whose root is taken is a running second moment, as Adam keeps it.
            positive |= node.op.op_type == "Add" and _has_root(node, view)
            positive |= _is_decayed(node, view)
            ratio |= ask is Ask.SHARE
            if _passes(node, use.position, bound, view):
                walk.add(filter(None, node.outputs))
    return _Bounds(min(bounds, default=None), positive, ratio)


def _passes(node: OpNode, position: int, bound: int | None, view: GraphView) -> bool:
    """Whether the consumers of a node's output read the value at `position` of its inputs."""
    op_type = node.op.op_type
    if op_type in _KEEPS_SIGN:
        # Only towards something tiny, an epsilon: elsewhere the other operand decides.
        return any(t in view.values and view.values[t].size == 1 for t in node.inputs)
    if spec(node.op).family is not Family.MOVEMENT or bound is not None:
        return False
    if op_type == "Where":
        return position in (1, 2)
    return position == 0 or spec(node.op).movement is Movement.JOIN


def _is_decayed(node: OpNode, view: GraphView) -> bool:
    """Whether a node scales a second moment; by 1, chosen in the step, where the step is skipped."""
    is_scaled = node.op.op_type == "Mul" and any(view.tensors[t].elements == 1 for t in node.inputs)
    readers = (view.node[use.node] for use in view.consumers.get(node.outputs[0], ()))
    return is_scaled and any(r.op.op_type == "Add" and _has_root(r, view) for r in readers)


def _has_root(node: OpNode, view: GraphView, reach: int = 3) -> bool:
    """Whether a root is taken of a node's result, at most scaled and moved on the way."""
    consumers = [view.node[use.node] for use in view.consumers.get(node.outputs[0], ())]
    if any(consumer.op.op_type == "Sqrt" for consumer in consumers):
        return True
    scaled = [r for r in consumers if r.op.op_type in _SCALING]
    return reach > 1 and any(_has_root(consumer, view, reach - 1) for consumer in scaled)


def index_bound(node: OpNode, position: int, view: GraphView) -> int | None:
    """Size of what an input of a node is an index into; None when it is not an index.

    The second input of ``Gather(table[1000, 64], indices)`` along axis 0 stays below 1000.
    """
    ask = _asked(node, position)
    shape = view.shape(node.inputs[0]) if node.inputs else None
    if ask is None or shape is None:
        return None
    axis = node.attributes.get("axis", 0)
    if ask is Ask.INDEX_ALONG_AXIS:
        return _size(shape, axis)
    if ask is Ask.INDEX_OF_ANY_AXIS:
        return min(shape, default=None)
    if ask is Ask.INDEX_BELOW_DEPTH:
        depth = view.values.get(node.inputs[1]) if len(node.inputs) > 1 else None
        return int(depth.reshape(-1)[0]) if depth is not None and depth.size else None
    if ask is Ask.CLASS:
        return shape[1] if len(shape) > 1 else None
    if ask is Ask.CLASS_OF_LAST_AXIS:
        return _size(shape, -1)
    if ask is Ask.INDEX_OF_SHAPE:
        table = view.values.get(node.inputs[0])
        return None if table is None else _size(table.reshape(-1).tolist(), axis)
    return None


def _asked(node: OpNode, position: int) -> Ask | None:
    return next((ask for at, ask in spec(node.op).asks if at == position), None)


def _size(shape: Sequence[int], axis: int) -> int | None:
    """Size along an axis; None if there is no such axis, as operators that ONNX does not check may say."""
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else None
