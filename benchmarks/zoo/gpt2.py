"""GPT-2: a decoder that predicts the next word at every position."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of a GPT-2; the defaults are those of its smallest, 124 million parameters."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    words: int = 50304  # 50,257, and rows of zeros up to a multiple of 128
    positions: int = 1024


class Block(nn.Module):
    """Causal attention and feed-forward part, each behind a normalization."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm, self.norm = nn.LayerNorm(size.hidden), nn.LayerNorm(size.hidden)
        self.qkv, self.output = nn.Linear(size.hidden, 3 * size.hidden), nn.Linear(size.hidden, size.hidden)
        self.inner, self.outer = (
            nn.Linear(size.hidden, 4 * size.hidden),
            nn.Linear(4 * size.hidden, size.hidden),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both parts."""
        batch, length, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.outer(F.gelu(self.inner(self.norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2, whose last layer shares its weight with the embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.hidden)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Give a row of logits for each word of the batch."""
        position = torch.arange(words.shape[1], device=words.device)
        x = self.blocks(self.words(words) + self.positions(position))
        return F.linear(self.norm(x), self.words.weight).flatten(0, 1)


def batch(count: int, length: int, words: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Make a batch of random words, and the words that follow them."""
    text = torch.randint(0, words, (count, length + 1))
    return (text[:, :-1].contiguous(),), (text[:, 1:].flatten(),)


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a variant of two narrow layers and a batch for it."""
    size = Size(layers=2, hidden=32, heads=4, words=96, positions=16)
    return Gpt2(size), *batch(4, 16, 96)
