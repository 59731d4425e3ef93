"""If, Loop and Scan: bodies that are computed where they stand, as often as it is known beforehand."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from campo_onnx.runtime.torch.translation.axes import shifted
from campo_onnx.runtime.torch.translation.node import EVERY, Node, Row
from campo_onnx.runtime.torch.translation.values import is_traced, to_tensor

Scope = Mapping[str, Any]


def decided(node: Node, value: Any, what: str) -> bool:
    """Look a condition up; refuse one that is not known while a graph is traced."""
    if isinstance(value, Tensor) and is_traced(value):
        raise node.refusal(f"{what} has to be known when the graph is compiled, and is computed from data")
    return bool(value.item())


def if_(node: Node, scope: Scope, condition: Any) -> tuple[Any, ...]:
    """Compute one of two bodies; where data decide while tracing, compute both and choose."""
    if not (isinstance(condition, Tensor) and is_traced(condition)):
        branch = "then_branch" if decided(node, condition, "its condition") else "else_branch"
        return tuple(node.bodies[branch].run((), scope))
    both = [_tensors(node, node.bodies[b].run((), scope)) for b in ("then_branch", "else_branch")]
    if any(t.shape != e.shape or t.dtype != e.dtype for t, e in zip(*both, strict=True)):
        raise node.refusal(
            "its condition is computed from data, and its branches give tensors of different shapes"
        )
    return tuple(torch.where(condition.reshape(()), t, e) for t, e in zip(*both, strict=True))


def _tensors(node: Node, values: Sequence[Any]) -> list[Tensor]:
    tensors = [to_tensor(v, node.device) if isinstance(v, np.ndarray) else v for v in values]
    if not all(isinstance(t, Tensor) for t in tensors):
        raise node.refusal("its condition is computed from data, and its branches give sequences")
    return tensors


def loop(node: Node, scope: Scope, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    """Compute a body again and again, as often as is said or until a condition no longer holds."""
    body, states = node.bodies["body"], list(carried)
    limit = None if trips is None else int(_known(node, trips, "its trip count").item())
    rows: list[list[Any]] = []
    goes_on = condition is None or decided(node, condition, "its condition")
    for trip in count():
        if not goes_on or (limit is not None and trip >= limit):
            break
        again: Any = np.array(True) if condition is None else condition
        again, *results = body.run((np.array(trip, np.int64), again, *states), scope)
        states, scanned = results[: len(states)], results[len(states) :]
        rows.append(_tensors(node, scanned))
        # Without a condition at the beginning, that of the body still counts.
        goes_on = decided(node, again, "the condition that its body computes")
        condition = again
    if not rows and node.outputs[len(states) :]:
        raise node.refusal("its body is never computed, so that the shapes of its outputs are unknown")
    return (*states, *(torch.stack(column) for column in zip(*rows, strict=True)))


def _known(node: Node, value: Any, what: str) -> Any:
    if isinstance(value, Tensor) and is_traced(value):
        raise node.refusal(f"{what} has to be known when the graph is compiled, and is computed from data")
    return value


def scan(node: Node, scope: Scope, *inputs: Any) -> tuple[Any, ...]:
    """Compute a body for every slice of tensors, in order."""
    if node.version < 9:
        raise node.refusal("Scan of opset 8 is not translated")
    count_scanned = node.get("num_scan_inputs")
    states = list(inputs[: len(inputs) - count_scanned])
    scanned = _tensors(node, inputs[len(inputs) - count_scanned :])
    axes = node.get("scan_input_axes", [0] * count_scanned)
    backward = node.get("scan_input_directions", [0] * count_scanned)
    places = [shifted(axis, x.dim()) for axis, x in zip(axes, scanned, strict=True)]
    length = scanned[0].shape[places[0]]
    if not isinstance(length, int):
        raise node.refusal("the length of its sequences has to be known when the graph is compiled")
    rows: list[list[Tensor]] = []
    for trip in range(length):
        turns = [length - 1 - trip if b else trip for b in backward]
        parts = [x.select(a, t) for x, a, t in zip(scanned, places, turns, strict=True)]
        results = node.bodies["body"].run((*states, *parts), scope)
        states = results[: len(states)]
        rows.append(_tensors(node, results[len(states) :]))
    if not rows and node.outputs[len(states) :]:
        raise node.refusal("its sequences are empty, so that the shapes of its outputs are unknown")
    columns = list(zip(*rows, strict=True))
    out_axes = node.get("scan_output_axes", [0] * len(columns))
    out_backward = node.get("scan_output_directions", [0] * len(columns))
    stacked = [
        torch.stack(column[::-1] if b else column, shifted(a, column[0].dim() + 1))
        for column, a, b in zip(columns, out_axes, out_backward, strict=True)
    ]
    return (*states, *stacked)


ROWS = {
    "If": Row(if_, either=EVERY, takes_scope=True),
    "Loop": Row(loop, either=EVERY, takes_scope=True),
    "Scan": Row(scan, either=EVERY, takes_scope=True),
}
