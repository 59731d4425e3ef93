"""Sequences of tensors, as lists, and optional values, which are the value or None."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import EVERY, Node, Row, raw, static
from campo_onnx.runtime.torch.translation.values import Array, ints, to_tensor


def concat(node: Node, sequence: list[Tensor]) -> Tensor:
    """Join the tensors of a sequence, or stack them."""
    axis = node.get("axis")
    return torch.stack(sequence, axis) if node.flag("new_axis") else torch.cat(sequence, axis)


def split(node: Node, x: Tensor, sizes: Array | None = None) -> tuple[list[Tensor]]:
    """Cut a tensor into a sequence."""
    axis = shifted(node.get("axis", 0), x.dim())
    if sizes is None:
        parts = list(torch.split(x, 1, axis))
        return ([p if node.flag("keepdims", True) else p.squeeze(axis) for p in parts],)
    return (list(torch.split(x, ints(sizes)[0] if sizes.ndim == 0 else ints(sizes), axis)),)


def insert(node: Node, sequence: list[Tensor], x: Tensor, place: Array | None = None) -> tuple[list[Tensor]]:
    """Put a tensor in before another one, or at the end."""
    at = len(sequence) if place is None else shifted(ints(place)[0], len(sequence))
    return ([*sequence[:at], x, *sequence[at:]],)


def erase(node: Node, sequence: list[Tensor], place: Array | None = None) -> tuple[list[Tensor]]:
    """Leave a tensor out, or the last one."""
    at = len(sequence) - 1 if place is None else shifted(ints(place)[0], len(sequence))
    return ([*sequence[:at], *sequence[at + 1 :]],)


def mapped(node: Node, scope: Any, first: list[Any], *others: Any) -> tuple[list[Any], ...]:
    """Compute a body for every tensor of sequences."""
    results = []
    for position, x in enumerate(first):
        more = [other[position] if isinstance(other, list) else other for other in others]
        values = node.bodies["body"].run((x, *more), scope)
        results.append([to_tensor(v, node.device) if isinstance(v, np.ndarray) else v for v in values])
    return tuple(list(column) for column in zip(*results, strict=True)) or tuple([] for _ in node.outputs)


def element(node: Node, value: Any) -> Any:
    """Return the value of an optional."""
    return (value,)


ROWS = {
    "ConcatFromSequence": Row(concat),
    "Optional": raw(lambda node, value=None: (value,)),
    "OptionalGetElement": raw(element),
    "OptionalHasElement": raw(lambda node, value=None: np.array(value is not None)),
    "SequenceAt": static(1)(lambda node, sequence, place: sequence[ints(place)[0]]),
    "SequenceConstruct": Row(lambda node, *tensors: (list(tensors),)),
    "SequenceEmpty": Row(lambda node: ([],)),
    "SequenceErase": static(1)(erase),
    "SequenceInsert": static(2)(insert),
    "SequenceLength": Row(lambda node, sequence: np.array(len(sequence), np.int64)),
    "SequenceMap": Row(mapped, either=EVERY, takes_scope=True),
    "SplitToSequence": static(1)(split),
}
