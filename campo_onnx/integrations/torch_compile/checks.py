"""Checks of the data within a graph: a session gives what they look at, and torch raises the error."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten

CHECKS = frozenset({aten._assert_async.default, aten._assert_async.msg})
"""Operations without a result, which raise an error where a truth value is false."""


class Check(NamedTuple):
    """A condition, by its place among a graph's results, and the message or error where it is false."""

    result: Any
    message: str
    error: Exception | None = None


def add_check(graph: torch.fx.Graph, verdict: torch.fx.Node, error: Exception) -> None:
    """Let a graph check a truth value that it computes."""
    with graph.inserting_after(verdict):
        graph.call_function(aten._assert_async.msg, (verdict, str(error))).meta["error"] = error


def lift_checks(graph: torch.fx.Graph) -> list[tuple[str, Exception | None]]:
    """Let a graph give what is checked, behind its results; return what each check says or raises."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target in CHECKS]
    output = graph.output_node()
    results = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    output.args = ((*results, *(node.args[0] for node in nodes)),)
    for node in nodes:
        graph.erase_node(node)
    return [
        (str(node.args[1]) if len(node.args) > 1 else "a check failed", node.meta.get("error"))
        for node in nodes
    ]


def raise_failed(checks: Sequence[Check], value_of: Callable[[Any], torch.Tensor]) -> None:
    """Raise the error of the first check that fails; on CUDA it surfaces as eager's does.

    RuntimeError has the message of the check, unless that says which error to raise.
    """
    for check in checks:
        verdict = value_of(check.result)
        if check.error is not None and not verdict.is_cuda and not verdict:
            raise check.error.with_traceback(None)
        torch._assert_async(verdict, check.message)
