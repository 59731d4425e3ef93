"""Two functions that are traced in a form of their own, since theirs comes apart badly.

Dropout becomes one operation with a mask instead of five on random numbers, and attention one
softmax between two products instead of a fused kernel whose gradient has no parts. Where torch calls
them out of sight (in ``nn.MultiheadAttention``), they come apart after all, correct but less compact.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows)
from torch.overrides import TorchFunctionMode

_DROPOUTS = (F.dropout, torch.dropout, torch._VF.dropout)


class RewrittenFunctions(TorchFunctionMode):
    """While active, dropout and scaled dot-product attention are traced in exportable form."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> torch.Tensor:
    if not (training if train is None else train) or p == 0:
        return input
    if p == 1:
        return input * 0
    dropped = torch.native_dropout(input, p, train=True)[0]
    return input.copy_(dropped) if inplace else dropped


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query * scale, key.transpose(-2, -1))
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1)
    elif attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        hides = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hides else scores + attn_mask
        # A row that sees nothing attends to nothing, where a plain softmax would give NaN.
        weights = torch.ops.aten._safe_softmax(scores, -1)
    return torch.matmul(_dropout(weights, dropout_p), value)
