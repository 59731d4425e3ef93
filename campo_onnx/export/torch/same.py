"""Whether two traced steps compute the same."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def is_same(one: torch.fx.GraphModule, other: torch.fx.GraphModule) -> bool:
    """Compare operation by operation, constants by value."""
    nodes, others = list(one.graph.nodes), list(other.graph.nodes)
    if len(nodes) != len(others):
        return False
    partner: dict[torch.fx.Node, torch.fx.Node] = {}
    for node, match in zip(nodes, others, strict=True):
        if node.op != match.op or (node.op == "call_function" and node.target != match.target):
            return False
        if node.op == "get_attr" and not _equal(getattr(one, node.target), getattr(other, match.target)):
            return False
        wanted = torch.fx.node.map_arg((node.args, node.kwargs), partner.__getitem__)
        if not _agree(wanted, (match.args, match.kwargs)):
            return False
        partner[node] = match
    return True


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if isinstance(one, FakeTensor) or isinstance(other, FakeTensor) or one.shape != other.shape:
        return False
    return one.dtype == other.dtype and bool(torch.equal(one, other))


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_agree(one[key], other[key]) for key in one)
    return one is other or bool(one == other)
