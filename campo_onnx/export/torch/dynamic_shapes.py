"""Steps whose batch changes its size: dimensions as ``torch.export`` declares them."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import onnx
import torch
from torch.utils._pytree import tree_leaves

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.torch.arguments import Arguments, Tensors
from campo_onnx.export.torch.step import Step
from campo_onnx.ir.size_ranges import SizeRange
from campo_onnx.ir.sizes.in_file import with_names
from campo_onnx.ir.sizes.learned import Structure, learned
from campo_onnx.step import naming as step_naming

_FURTHER = 4
"""Times the example: the largest size of a dimension that declares none."""

Axes = Mapping[str, Mapping[int, str]]
"""Name of each dimension that changes, by input and axis."""


class _Declared(NamedTuple):
    """A dimension: the example's size, and the ends of its range as far as they are declared."""

    example: int
    least: int | None
    most: int | None


def exported_at_any_size(
    step: Step,
    dynamic_shapes: Mapping[str, Any],
    write: Callable[[Step, bool], tuple[onnx.ModelProto, torch.fx.GraphModule]],
) -> onnx.ModelProto:
    """Write a step whose sizes change.

    `write` writes a step at the sizes of its tensors and gives what was traced; it is told whether that is
    the first.
    """
    tensors = step.inputs.tensors | step.targets.tensors
    axes, dims = _read(dynamic_shapes, tensors)
    names = list(dims)

    example = tuple(dim.example for dim in dims.values())

    @cache
    def at(sizes: tuple[int, ...]) -> tuple[onnx.ModelProto, Structure]:
        resized = _resized(step, axes, dict(zip(names, sizes, strict=True)))
        model, traced = write(resized, sizes == example)
        return model, tuple(_parts(traced))

    at(example)  # what is wrong with the step itself is said as it is
    last: UnsupportedModelError | None = None
    for ranges in _candidates(dims):
        try:
            return with_names(learned(lambda s: at(s)[0], ranges, lambda s: at(s)[1]), ranges)
        except UnsupportedModelError as error:
            last = error
    assert last is not None
    raise last


def _parts(traced: torch.fx.GraphModule) -> Iterator[Hashable]:
    """Take a traced step apart: operations, what they read, and their parameters."""
    for node in traced.graph.nodes:
        yield node.name
        yield str(node.target)
        for value in tree_leaves((node.args, node.kwargs)):
            yield str(value)


def _candidates(dims: Mapping[str, _Declared]) -> list[dict[str, SizeRange]]:
    """Give ranges to try, the widest first: where an end is not declared there are two choices for it."""
    return [
        {
            name: SizeRange(
                dim.example,
                min(least, dim.example) if dim.least is None else dim.least,
                dim.example * further if dim.most is None else dim.most,
            )
            for name, dim in dims.items()
        }
        for further, least in ((_FURTHER, 1), (_FURTHER, 2), (1, 1), (1, 2))
    ]


def _resized(step: Step, axes: Axes, sizes: Mapping[str, int]) -> Step:
    def resized(old: Arguments) -> Arguments:
        return replace(old, tensors={n: _at(t, axes.get(n, {}), sizes) for n, t in old.tensors.items()})

    return replace(step, inputs=resized(step.inputs), targets=resized(step.targets))


def _at(tensor: torch.Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor:
    shape = [sizes[axes[i]] if i in axes else n for i, n in enumerate(tensor.shape)]
    return torch.empty(shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


def _read(axes_by_name: Mapping[str, Any], tensors: Tensors) -> tuple[Axes, dict[str, _Declared]]:
    if not isinstance(axes_by_name, Mapping):
        raise UsageError(
            f"dynamic_shapes is {type(axes_by_name).__name__}",
            remedy='Give dimensions by argument: {"x": {0: "batch"}, "target": {0: "batch"}}.',
        )
    axes: dict[str, dict[int, str]] = {}
    dims: dict[str, _Declared] = {}
    for argument, declared in axes_by_name.items():
        name = _input_called(argument, tensors)
        for axis, dim in _by_axis(declared):
            if dim is None:
                continue
            tensor, (called, least, most) = tensors[name], _named(dim, argument)
            if not -tensor.dim() <= axis < tensor.dim():
                raise UsageError(
                    f"{argument!r} has {tensor.dim()} axes", why=f"dynamic_shapes names axis {axis}"
                )
            size = tensor.shape[axis]
            axes.setdefault(name, {})[axis % tensor.dim()] = called
            one = dims.setdefault(called, _Declared(size, least, most))
            if one != (size, least, most):
                raise UsageError(
                    f"the dimension {called!r} has several sizes or ranges",
                    why=f"{size} in {argument!r}, {one.example} before",
                    remedy="Give each dimension a name of its own.",
                )
            if not (least or 1) <= size <= (most or size):
                raise UsageError(
                    f"{argument!r} has size {size} in dimension {called!r}",
                    why=f"its range is {least or 1} to {most or 'any size'}",
                )
    if not dims:
        raise UsageError("dynamic_shapes names no dimension", remedy="Leave it out.")
    return axes, dims


def _input_called(argument: str, tensors: Tensors) -> str:
    for name in (argument, step_naming.batch_input(argument), step_naming.target(argument)):
        if name in tensors:
            return name
    raise UsageError(
        f"dynamic_shapes names {argument!r}, which is no tensor of the batch",
        remedy=f"It has {', '.join(tensors)}.",
    )


def _by_axis(declared: Any) -> list[tuple[int, Any]]:
    if declared is None:
        return []
    return list(declared.items()) if isinstance(declared, Mapping) else list(enumerate(declared))


def _named(dim: Any, argument: str) -> tuple[str, int | None, int | None]:
    if isinstance(dim, str):
        return dim, None, None
    least, most = getattr(dim, "min", None), getattr(dim, "max", None)
    name = getattr(dim, "__name__", None)
    if not isinstance(name, str) or not isinstance(least, int) or most is None:
        raise UsageError(
            f"dynamic_shapes declares {dim!r} for {argument!r}",
            remedy='Give each dimension a name, "batch", or torch.export.Dim("batch", min=1, max=64).',
        )
    is_open = not isinstance(most, int) or most >= torch.iinfo(torch.int32).max or most == math.inf
    return name, (least or None), (None if is_open else int(most))
