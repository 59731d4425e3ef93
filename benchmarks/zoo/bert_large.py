"""BERT-large with the head for SQuAD: where in the text the answer starts and ends."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of a BERT; the defaults are BERT-large's."""

    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    inner: int = 4096
    words: int = 30522
    positions: int = 512
    dropout: float = 0.1


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.query, self.key, self.value = (nn.Linear(size.hidden, size.hidden) for _ in range(3))
        self.output = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend where `mask` is 0; it is very negative elsewhere."""
        batch, length, hidden = x.shape
        q, k, v = (
            projection(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        scores = (q / (hidden // self.heads) ** 0.5) @ k.transpose(-1, -2) + mask
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.output((weights @ v).transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):
    """Attention and feed-forward part, each normalized behind its residual sum."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(size), nn.LayerNorm(size.hidden, eps=1e-12)
        self.inner, self.outer = nn.Linear(size.hidden, size.inner), nn.Linear(size.inner, size.hidden)
        self.output_norm, self.dropout = nn.LayerNorm(size.hidden, eps=1e-12), nn.Dropout(size.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Run both parts."""
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.output_norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class Bert(nn.Module):
    """BERT that gives a start and an end logit per token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.hidden, padding_idx=0)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.types = nn.Embedding(2, size.hidden)
        self.norm, self.dropout = nn.LayerNorm(size.hidden, eps=1e-12), nn.Dropout(size.dropout)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.answers = nn.Linear(size.hidden, 2)

    def forward(self, words: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Give logits of shape (2, batch, length); `mask` is 1 for tokens and 0 for padding."""
        position = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.norm(self.words(words) + self.types(types) + self.positions(position)))
        added = (1 - mask[:, None, None, :].float()) * -1e4
        for layer in self.layers:
            x = layer(x, added)
        return self.answers(x).permute(2, 0, 1)


def loss(logits: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Mean of the cross entropies of start and end."""
    return (F.cross_entropy(logits[0], start) + F.cross_entropy(logits[1], end)) / 2


def batch(count: int, length: int, words: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Make a batch of random tokens, the last of them padding."""
    tokens = torch.randint(1, words, (count, length))
    tokens[:, -2:] = 0
    inputs = (tokens, torch.randint(0, 2, (count, length)), (tokens != 0).long())
    return inputs, (torch.randint(0, length - 2, (count,)), torch.randint(0, length - 2, (count,)))


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a variant of two narrow layers and a batch for it."""
    size = Size(layers=2, hidden=32, heads=4, inner=64, words=100, positions=16)
    return Bert(size), *batch(4, 16, 100)
