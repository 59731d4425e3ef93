"""Binding the symbolic dimensions of a model to sizes."""

import difflib
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy

from onnx import GraphProto, TensorShapeProto, TypeProto, ValueInfoProto

from campo_onnx.errors import UsageError
from campo_onnx.ir.limits import is_too_large


def check_dims(graph: GraphProto, dims: Mapping[str, int]) -> None:
    """Make sure that `dims` binds every open dimension of the graph inputs, and nothing else.

    A dimension without a name is called ``<input>[<axis>]``. Initializers that are listed as inputs
    have their own sizes and need none. Symbols that occur only inside the graph may be bound.
    """
    wanted, symbols = _names(graph, dims)
    _refuse_strangers(dims, names=[*wanted, *sorted(symbols.difference(wanted))])
    missing = [name for name in wanted if name not in dims]
    if missing:
        raise UsageError(
            "Sizes of graph inputs are unknown",
            why="; ".join(f"{name} (of {', '.join(dict.fromkeys(wanted[name]))})" for name in missing),
            remedy=f"Give each one: {' '.join(f'--dim {name}=SIZE' for name in missing)}.",
        )


def dims_within(graph: GraphProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Leave out the sizes of dimensions that a part of the graph they were given for does not have."""
    wanted, symbols = _names(graph, dims)
    return {name: size for name, size in dims.items() if name in wanted or name in symbols}


def _names(graph: GraphProto, dims: Mapping[str, int]) -> tuple[dict[str, list[str]], set[str]]:
    """Names of the dimensions to bind, with the inputs that have each, and symbols anywhere in the graph."""
    constants = {tensor.name for tensor in graph.initializer}
    wanted: dict[str, list[str]] = {}
    for info in graph.input:
        if info.name not in constants and info.type.HasField("tensor_type"):
            for name in _open_dims(info, dims):
                wanted.setdefault(name, []).append(info.name)
    symbols = {
        dim.dim_param
        for info in (*graph.input, *graph.value_info, *graph.output)
        for dim in info.type.tensor_type.shape.dim
        if dim.dim_param
    }
    return wanted, symbols


def bind_type(declared: TypeProto, dims: Mapping[str, int], name: str = "") -> TypeProto:
    """Copy a type with symbols replaced by their sizes, or dropped where they are unbound.

    `declared`: any type; one that is not a tensor's is copied as it is.
    `name`: the tensor's, when its nameless dimensions may be bound too.
    """
    bound = deepcopy(declared)
    if not bound.HasField("tensor_type"):
        return bound
    tensor = bound.tensor_type
    if not tensor.HasField("shape"):
        for axis in range(_given_rank(name, dims)):
            tensor.shape.dim.add(dim_value=dims[_nameless(name, axis)])
        return bound
    for axis, dim in enumerate(tensor.shape.dim):
        if not _is_fixed(dim):
            size = dims.get(dim.dim_param or _nameless(name, axis))
            dim.Clear()
            if size is not None:
                dim.dim_value = size
    return bound


def static_shape(declared: TypeProto) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor's type, or None unless all of them are fixed."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    dims = declared.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(map(_is_fixed, dims)) else None


def _refuse_strangers(dims: Mapping[str, int], *, names: list[str]) -> None:
    for name, size in dims.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = "All its dimensions are fixed: leave --dim out."
            if names:
                remedy = f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(names)}."
            raise UsageError(f"The model has no dimension {name!r}", remedy=remedy)
        if size <= 0 or is_too_large([size]):
            raise UsageError(
                f"Dimension {name!r} cannot have size {size}",
                why="" if size <= 0 else "no tensor is so large",
                remedy=f"Give a {'positive' if size <= 0 else 'smaller'} one: --dim {name}=SIZE.",
            )


def _open_dims(info: ValueInfoProto, dims: Mapping[str, int]) -> Iterator[str]:
    """Names of the dimensions of a graph input that the model leaves open."""
    tensor = info.type.tensor_type
    if tensor.HasField("shape"):
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.dim_param:
                yield dim.dim_param
            elif not _is_fixed(dim):
                yield _nameless(info.name, axis)
    else:
        # Not even the rank is declared: it is what the given sizes say, and at least one.
        yield from (_nameless(info.name, axis) for axis in range(max(1, _given_rank(info.name, dims))))


def _given_rank(name: str, dims: Mapping[str, int]) -> int:
    axes = (re.fullmatch(re.escape(name) + r"\[(\d{1,2})\]", dim) for dim in dims)
    return max((int(match[1]) + 1 for match in axes if match), default=0)


def _nameless(name: str, axis: int) -> str:
    return f"{name}[{axis}]"


def _is_fixed(dim: TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0  # some exporters write -1 for "any size"
