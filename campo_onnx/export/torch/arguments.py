"""Arguments of a function: tensors of the batch, and constants."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

from campo_onnx.errors import UsageError
from campo_onnx.export.translation import path_part

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a batch's tensor among the arguments."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of one function.

    They are nested as they were given; in the place of each tensor is its name.
    """

    positional: tuple[Any, ...]
    keyword: Mapping[str, Any]
    tensors: Tensors

    def filled(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments with tensors in their places."""
        both = (self.positional, dict(self.keyword))
        filled: tuple[Any, Any] = tree_map_only(_Place, lambda place: tensors[place.name], both)
        return filled


def arguments(
    examples: Any, function: Callable[..., Any], *, skip: int, kind: str, name_of: Callable[[str], str]
) -> Arguments:
    """Tell what a function gets.

    Examples are a tensor, a sequence of arguments by position, or a mapping of arguments by name. Arguments
    may be nested, and hold anything besides tensors, which is then part of what is exported.
    """
    if isinstance(examples, torch.Tensor):
        examples = (examples,)
    if not isinstance(examples, Mapping | Sequence) or isinstance(examples, str):
        raise UsageError(
            f"the example {kind}s are {type(examples).__name__}",
            remedy="Give a tensor, a sequence of arguments, or a mapping of arguments by name.",
        )
    by_name = isinstance(examples, Mapping)
    positional = () if by_name else tuple(examples)
    keyword = dict(examples) if by_name else {}
    _check_call(function, skip, positional, keyword, kind)
    named = _names(function)[skip:]
    names = [*named, *(f"{kind}{i}" for i in range(len(named), len(positional)))]
    tops = keyword or dict(zip(names, positional, strict=False))
    tensors: Tensors = {}
    places: dict[int, list[_Place]] = {}
    for path, leaf in tree_flatten_with_path(tops)[0]:
        name = ".".join(map(path_part, path))
        if isinstance(leaf, np.ndarray):
            raise UsageError(
                f"the example {kind} {name!r} is a NumPy array", remedy="Give torch.from_numpy(array)."
            )
        if isinstance(leaf, torch.Tensor):
            tensors[name_of(name)] = leaf
            places.setdefault(id(leaf), []).append(_Place(name_of(name)))
        elif (held := _held(leaf)) is not None:
            kind_name = type(leaf).__qualname__
            raise UsageError(
                f"the example {kind} {name!r} is of type {kind_name}, which keeps tensors ({held})",
                why="they would become constants of the graph",
                remedy="Give tensors in lists, tuples and dictionaries, or make the class known, "
                f"with torch.export.register_dataclass({kind_name}) if it is a dataclass.",
            )
    placed = tree_map_only(torch.Tensor, lambda leaf: places[id(leaf)].pop(0), tops)
    return Arguments(
        positional=() if by_name else tuple(placed.values()),
        keyword=placed if by_name else {},
        tensors=tensors,
    )


_SEEN_DEPTH = 4


def _held(value: Any, depth: int = 0) -> str | None:
    """Give the path to a tensor that an object keeps; None if it keeps none."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return ""
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [(f"[{i}]", part) for i, part in enumerate(value)]
    elif isinstance(value, type | torch.nn.Module) or callable(value):
        return None
    else:
        names = [*getattr(value, "__dict__", ()), *_slots(type(value))]
        parts = [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]
    if depth == _SEEN_DEPTH:
        return None
    contents = ((path, _held(part, depth + 1)) for path, part in parts)
    return next((f"{path}{rest}" for path, rest in contents if rest is not None), None)


def _slots(kind: type) -> list[str]:
    declared = (getattr(each, "__slots__", ()) for each in kind.__mro__)
    return [name for names in declared for name in ((names,) if isinstance(names, str) else names)]


def _check_call(
    function: Callable[..., Any], skip: int, positional: Sequence[Any], keyword: Mapping[str, Any], kind: str
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins and callables that hide their signature
        return
    try:
        signature.bind(*[None] * skip, *positional, **keyword)
    except TypeError as error:
        raise UsageError(
            f"the example {kind}s do not fit {getattr(function, '__qualname__', repr(function))}{signature}",
            why=str(error),
        ) from None


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in by_position]
