"""Random numbers are drawn by torch, before a session runs: its generator, its order, its seeds.

A graph that drew them itself would ignore ``torch.manual_seed``, and a backward pass could not
draw the same mask again. So each drawing becomes an input.
"""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

Draw = Callable[[torch.Tensor | None], torch.Tensor]
"""Draws one tensor, into a given one that lies alike if there is one."""

_DROPOUT = aten.native_dropout.default
_LIKE = frozenset(  # their first operand says the shape, and nothing else
    {
        *(aten.bernoulli.p, aten.rand_like.default, aten.randn_like.default, aten.uniform.default),
        *(aten.normal_functional.default, aten.exponential.default, aten.randint_like.default),
        *(aten.randint_like.low_dtype, aten.log_normal.default, aten.cauchy.default, aten.geometric.default),
    }
)


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return node.target is not _DROPOUT or len(node.args) < 3 or node.args[2] is not False


def is_lifted(node: torch.fx.Node) -> bool:
    """Whether a node draws in the forward pass, and whatever its operands hold."""
    if not is_random(node) or node.meta.get("partitioner_tag") == "is_backward":
        return False
    if node.target is _DROPOUT:
        return True
    operands = node.all_input_nodes
    return not operands or (node.target in _LIKE and operands == [node.args[0]])


def lift_random(gm: torch.fx.GraphModule) -> list[Draw]:
    """Turn what a graph draws in its forward pass into inputs.

    They come in the order in which the graph would have drawn. ``meta["drawn"]`` of the new placeholders,
    which come last, is the place in this list.
    """
    graph = gm.graph
    drawings = [n for n in graph.nodes if n.op == "call_function" and is_lifted(n)]
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    draws: list[Draw] = []
    for node in drawings:
        meta = _drawn(node)
        with graph.inserting_after(last) if last else graph.inserting_before():
            last = graph.placeholder(f"drawn_{len(draws)}")
        last.meta = {**node.meta, "val": meta, "drawn": len(draws)}
        draws.append(_drawing(node, meta))
        _replace(graph, node, last)
    return draws


def draw_in_order(gm: torch.fx.GraphModule) -> list[str]:
    """Let torch draw where the graph does, if some of what it draws depends on what it computes.

    Numbers would be others if some were drawn earlier. Each drawing becomes a module that takes the one
    before it as well, so that whatever sorts the graph keeps their order. Gives the operations that depend on
    what is computed; where there are none, the graph is as it was.
    """
    graph = gm.graph
    drawings = [n for n in graph.nodes if n.op == "call_function" and is_random(n)]
    dependent = [node for node in drawings if not is_lifted(node)]
    before: tuple[torch.fx.Node, ...] = ()
    for place, node in enumerate(drawings if dependent else ()):
        is_free = is_lifted(node)
        value = _drawn(node) if is_free else node.meta["val"]
        name, args = f"drawing_{place}", () if is_free else node.args
        gm.add_submodule(name, _Drawing(_drawing(node, value) if is_free else node.target, is_free))
        with graph.inserting_before(node):
            drawn = graph.call_module(name, (before, *args), {} if is_free else dict(node.kwargs))
        drawn.meta = {**node.meta, "val": value}
        before = (drawn,)
        if is_free:
            _replace(graph, node, drawn)
        else:
            node.replace_all_uses_with(drawn)
            graph.erase_node(node)
    return [str(node.target) for node in dependent]


class _Drawing(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], is_free: bool) -> None:
        super().__init__()
        self._function, self._is_free = function, is_free

    def forward(self, before: Any, *args: Any, **kwargs: Any) -> Any:
        """Draw, after what was drawn before."""
        return self._function(None) if self._is_free else self._function(*args, **kwargs)


def _drawn(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"][1] if node.target is _DROPOUT else node.meta["val"]
    return value


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, drawn: torch.fx.Node) -> None:
    if node.target is _DROPOUT:
        _replace_dropout(graph, node, drawn)
    else:
        node.replace_all_uses_with(drawn)
        graph.erase_node(node)


def _replace_dropout(graph: torch.fx.Graph, node: torch.fx.Node, mask: torch.fx.Node) -> None:
    x, p = node.args[:2]
    for user in list(node.users):
        if user.args[1] == 1:
            user.replace_all_uses_with(mask)
        else:
            with graph.inserting_before(user):
                scaled = graph.call_function(
                    aten.native_dropout_backward.default, (x, mask, 0.0 if p == 1 else 1 / (1 - p))
                )
            scaled.meta = dict(user.meta)
            user.replace_all_uses_with(scaled)
        graph.erase_node(user)
    graph.erase_node(node)


def _drawing(node: torch.fx.Node, meta: torch.Tensor) -> Draw:
    if node.target is _DROPOUT:
        share = 1 - node.args[1]
        return lambda room: (_empty(meta) if room is None else room).bernoulli_(share)
    operation, args, kwargs = node.target, node.args, dict(node.kwargs)
    if not node.all_input_nodes:
        return lambda room: _into(room, operation(*args, **kwargs))
    like, more = node.args[0].meta["val"], args[1:]
    return lambda room: _into(room, operation(_empty(like), *more, **kwargs))


def _into(room: torch.Tensor | None, drawn: torch.Tensor) -> torch.Tensor:
    return drawn if room is None else room.copy_(drawn)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
