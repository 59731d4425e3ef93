"""Sets of sizes that do not come back often enough to be compiled: torch runs the traced graph."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from campo_onnx.integrations.torch_compile.concrete import Uncompiled, listed
from campo_onnx.ir.sizes.formulas import Sizes

_FEWEST_CALLS = 3
_MOST_COUNTED = 4096


class RareSizes:
    """Says which sets of sizes are compiled: the first ones, and those that return."""

    def __init__(self, first: int) -> None:
        self._left = first
        self._calls: Counter[Sizes] = Counter()

    def are_rare(self, sizes: Sizes) -> bool:
        """Count a call at sizes that nothing is compiled for, and say whether nothing should be yet."""
        if self._left > 0:
            self._left -= 1
            return False
        if len(self._calls) > _MOST_COUNTED:
            self._calls.clear()
        self._calls[sizes] += 1
        return self._calls[sizes] < _FEWEST_CALLS


def run_by(gm: torch.fx.GraphModule) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Give what runs a graph of any sizes."""
    interpreter = torch.fx.Interpreter(gm)

    def run(arguments: Sequence[Any]) -> Sequence[Any]:
        results: Sequence[Any] = interpreter.boxed_run(list(arguments))
        return results

    return run


class JointInTorch:
    """A joint graph of any sizes in two halves. `primals` counts the arguments of the forward pass."""

    def __init__(self, gm: torch.fx.GraphModule, *, primals: int, forward_results: int) -> None:
        self._results = forward_results
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        backward = set(placeholders[primals:])
        for node in gm.graph.nodes:
            if node.op != "output" and backward.intersection(node.all_input_nodes):
                backward.add(node)
        results = listed(gm.graph.output_node().args[0])
        gradients = results[forward_results:]
        computed = [node for node in gm.graph.nodes if node.op != "output" and node not in backward]
        handed = {n for node in backward for n in node.all_input_nodes if n not in backward}
        handed |= {n for n in gradients if isinstance(n, torch.fx.Node) and n not in backward}
        saved = [node for node in computed if node in handed]
        self._forward = _part(gm, placeholders[:primals], computed, [*results[:forward_results], *saved])
        self._backward = _part(
            gm, [*saved, *placeholders[primals:]], [n for n in gm.graph.nodes if n in backward], gradients
        )

    def forward(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the forward pass: its results, and what the backward pass reads."""
        results = list(self._forward(arguments))
        return results[: self._results], results[self._results :]

    def backward(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Run the backward pass."""
        return list(self._backward([*saved, *tangents]))


def _part(
    gm: torch.fx.GraphModule,
    inputs: Sequence[torch.fx.Node],
    nodes: Sequence[torch.fx.Node],
    results: Sequence[Any],
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {}  # which would keep the traced graph
    graph.output(torch.fx.node.map_arg(tuple(results), copies.__getitem__))
    return run_by(Uncompiled(gm, graph))
