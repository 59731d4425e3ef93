"""Library kernels, values and views of a graph of aten operations, as Inductor sees them."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

aten, prims = torch.ops.aten, torch.ops.prims

LIBRARY: Mapping[Any, frozenset[int | str]] = MappingProxyType(
    {
        aten.mm.default: frozenset(),
        aten.addmm.default: frozenset(),
        aten.bmm.default: frozenset(),
        aten.baddbmm.default: frozenset(),
        aten.convolution.default: frozenset(),
        aten.convolution_backward.default: frozenset(),
        aten._scaled_dot_product_flash_attention_for_cpu.default: frozenset({"attn_mask"}),
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: frozenset({5, "attn_mask"}),
        aten._scaled_dot_product_efficient_attention.default: frozenset(),
        aten._scaled_dot_product_efficient_attention_backward.default: frozenset({6, 7, 8}),
    }
)
"""Operations that Inductor hands to a library: the type of their operands decides the arithmetic.

Beside each are the arguments that keep their type, by position or name: statistics, seeds, and masks where
the kernel takes FP32 ones (the lowest FP32 number, which masks are made of, is infinite in BF16).
"""

_LOW_MASK: Mapping[Any, int] = {
    aten._scaled_dot_product_efficient_attention.default: 3,
    aten._scaled_dot_product_efficient_attention_backward.default: 4,
}
"""Place of a mask that would have to become low: with one, these stay FP32."""

ATTENTION = frozenset(target for target in LIBRARY if "attention" in str(target))
"""Fused attention: its softmax is computed in FP32 whatever its operands are."""

CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})

CONVERT = prims.convert_element_type.default

_VIEWS = frozenset({aten._unsafe_view.default})


def tensors_of(node: torch.fx.Node) -> tuple[torch.Tensor, ...]:
    """Give the traced results of a node that are tensors."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(v for v in values if isinstance(v, torch.Tensor))


def dtype_of(node: torch.fx.Node) -> torch.dtype | None:
    """Give the type of a node's one tensor; None of a node with another result."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def is_fp32(node: torch.fx.Node) -> bool:
    """Whether the result of a node is one FP32 tensor."""
    return dtype_of(node) == torch.float32


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node gives its first operand's memory another shape, and keeps its type."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    if node.target not in _VIEWS and not getattr(node.target, "is_view", False):
        return False
    types = {t.dtype for t in (*tensors_of(node), *tensors_of(node.args[0]))}
    return len(types) == 1


def source_of(node: torch.fx.Node) -> torch.fx.Node:
    """Give the node whose memory a node shows."""
    source: Any = node
    while is_view(source):
        source = source.args[0]
    return source


def operands(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, bool]]:
    """Give each tensor that a node reads, and whether it becomes low with it."""
    stays = LIBRARY.get(node.target, frozenset())
    for place, argument in (*enumerate(node.args), *node.kwargs.items()):
        for part in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(part, torch.fx.Node) and tensors_of(part):
                yield part, node.target in LIBRARY and place not in stays


def is_candidate(node: torch.fx.Node) -> bool:
    """Whether a node is a library kernel that computes in FP32."""
    if node.op != "call_function" or node.target not in LIBRARY:
        return False
    mask = _LOW_MASK.get(node.target)
    if mask is not None and node.args[mask] is not None:
        return False
    changes = [dtype_of(part) for part, becomes_low in operands(node) if becomes_low]
    return bool(changes) and set(changes) == {torch.float32}


def results_of(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """Give the nodes that stand for a node's tensors: itself, or the items taken of it."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return (node,)
    return [user for user in node.users if user.target is operator.getitem]
