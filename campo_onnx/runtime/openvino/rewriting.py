"""Nodes of an ``openvino.Model``: written, and put in the place of others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.runtime.openvino.installed import ov


def sizes_of(output: Any) -> list[int | None]:
    """Give the dimensions of a tensor whose rank is known; None for each that is known when a step runs."""
    return [dim.get_length() if dim.is_static else None for dim in output.get_partial_shape()]


def constant(kind: Any, values: NDArray[Any]) -> Any:
    """Make a constant in memory of its own; numpy knows BF16 as two bytes each."""
    tensor = ov.Tensor(kind, ov.Shape(list(values.shape)))
    tensor.data[...] = values
    return ov.opset13.constant(tensor)


def numbers(kind: Any, values: Any) -> Any:
    """Write numbers in a type, which are folded later."""
    return ov.opset13.convert(ov.opset13.constant(np.asarray(values, np.float32)), kind)


def replace(node: Any, by: Any) -> None:
    """Put a node in the place of another, under its names."""
    by.set_friendly_name(node.get_friendly_name())
    for old, new in zip(node.outputs(), by.outputs(), strict=True):
        names = old.get_names()
        old.replace(new)
        new.set_names(names)


def rank_of(output: Any) -> int | None:
    """Give the number of dimensions of a tensor; None if it is not known."""
    rank = output.get_partial_shape().rank
    return rank.get_length() if rank.is_static else None


def bodies_of(node: Any) -> Iterator[Any]:
    """Give the graphs within a node."""
    match node.get_type_name():
        case "If":
            yield from (node.get_function(branch) for branch in range(2))
        case "Loop" | "TensorIterator":
            yield node.get_function()


def with_bodies_of(graph: Any) -> Iterator[Any]:
    """Give a graph and those within its nodes."""
    yield graph
    for node in graph.get_ops():
        for body in bodies_of(node):
            yield from with_bodies_of(body)
