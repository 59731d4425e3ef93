"""Layers of sequences (batch, positions, width), and what turns tokens into them."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.random_networks.drawing import Apply, Dice, Draw, one_of
from tests.random_networks.images import activation

Shape = tuple[int, ...]


def embedding(dice: Dice, words: int, width: int) -> nn.Module:
    """Draw a table of words."""
    return nn.Embedding(
        words, width,
        padding_idx=dice.choice([None, None, 0, words - 1]),
        max_norm=1.0 if dice.chance(0.05) else None,
        norm_type=dice.choice([2.0, 2.0, 1.0]),
        scale_grad_by_freq=dice.chance(0.05),
        sparse=dice.chance(0.1),
    )  # fmt: skip


class Attention(nn.Module):
    """Attention by hand or by torch's function, with a mask of one of several kinds."""

    def __init__(self, dice: Dice, length: int, width: int) -> None:
        super().__init__()
        self.heads = dice.divisor(width)
        self.out = nn.Linear(width, width)
        self.query, self.both = nn.Linear(width, width, dice.chance(0.5)), nn.Linear(width, 2 * width)
        self.kind = dice.choice(
            ["none", "causal", "bool", "float", "-inf", "dead row", "is_causal", "filled"]
        )
        self.by_hand, self.p = dice.chance(0.6), dice.choice([0.0, 0.0, 0.2])
        self.scale = dice.choice([None, 0.3])
        keep = torch.rand(length, length) > 0.4
        keep[torch.arange(length), torch.arange(length)] = True
        if self.kind == "causal":
            keep = torch.ones(length, length).tril().bool()
        if self.kind == "dead row":
            keep[0] = False
        self.register_buffer("keep", keep)
        mask = torch.randn(length, length) if self.kind == "float" else torch.zeros(length, length)
        self.register_buffer("mask", mask.masked_fill(~keep, -1e9 if self.kind == "filled" else -math.inf)
                             if self.kind != "float" else mask)  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Attend."""
        batch, length, width = x.shape

        def split(y: Any) -> Any:
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        q, (k, v) = split(self.query(x)), map(split, self.both(x).chunk(2, -1))
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        if self.by_hand or self.p:
            scores = q @ k.transpose(-1, -2) * scale
            if self.kind in ("causal", "bool"):
                scores = scores.masked_fill(~self.keep, float("-inf"))
            elif self.kind not in ("none", "is_causal", "dead row"):
                scores = scores + self.mask
            y = F.dropout(scores.softmax(-1), self.p, self.training) @ v
        else:
            mask = {"none": None, "is_causal": None, "causal": self.keep, "bool": self.keep,
                    "dead row": self.keep}.get(self.kind, self.mask)  # fmt: skip
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=self.kind == "is_causal", scale=self.scale
            )
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def extra_repr(self) -> str:
        """Say what was drawn."""
        return f"{self.kind}, by_hand={self.by_hand}, p={self.p}, heads={self.heads}"


class MultiHead(nn.Module):
    """Torch's layer, with masks."""

    def __init__(self, dice: Dice, shape: Shape) -> None:
        super().__init__()
        batch, length, width = shape
        self.layer = nn.MultiheadAttention(
            width, dice.divisor(width), bias=dice.chance(0.7), add_bias_kv=dice.chance(0.2),
            add_zero_attn=dice.chance(0.2), batch_first=True,
        )  # fmt: skip
        self.needs, self.average = dice.chance(0.4), dice.chance(0.5)
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[:, length - length // 3 :] = True
        self.register_buffer("padding", padding if dice.chance(0.4) else None)
        mask = torch.ones(length, length).triu(1).bool()
        self.register_buffer("mask", mask if dice.chance(0.4) else None)

    def forward(self, x: Any) -> Any:
        """Attend, and use the weights if they are given."""
        y, weights = self.layer(
            x, x, x, key_padding_mask=self.padding, attn_mask=self.mask, need_weights=self.needs,
            average_attn_weights=self.average,
        )  # fmt: skip
        return y if weights is None else y + weights.square().mean()


def _encoder_layer(dice: Dice, shape: Shape) -> nn.Module:
    return nn.TransformerEncoderLayer(
        shape[2], dice.divisor(shape[2]), dice.randint(1, 9), dropout=0.0,
        activation=dice.choice(["relu", "gelu"]), batch_first=True, norm_first=dice.chance(0.5),
        bias=dice.chance(0.7),
    )  # fmt: skip


class Recurrent(nn.Module):
    """A recurrent layer, whose last state may be added to its output."""

    def __init__(self, dice: Dice, shape: Shape) -> None:
        super().__init__()
        kind = dice.choice([nn.LSTM, nn.GRU, nn.RNN])
        options: dict[str, Any] = {"nonlinearity": "relu"} if kind is nn.RNN and dice.chance(0.5) else {}
        hidden = dice.randint(2, 5)
        if kind is nn.LSTM and dice.chance(0.3):
            options["proj_size"] = hidden - 1
        self.layer = kind(
            shape[2], hidden, dice.randint(1, 2), dice.chance(0.7), True, bidirectional=dice.chance(0.4),
            **options,
        )  # fmt: skip
        self.adds = dice.chance(0.5)

    def forward(self, x: Any) -> Any:
        """Run it."""
        y, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return y + last.sum() if self.adds else y


class Cells(nn.Module):
    """A cell, called position by position."""

    def __init__(self, dice: Dice, shape: Shape) -> None:
        super().__init__()
        self.cell = dice.choice([nn.GRUCell, nn.RNNCell])(shape[2], dice.randint(1, 4))

    def forward(self, x: Any) -> Any:
        """Run it over the positions."""
        state, outputs = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outputs.append(state)
        return torch.stack(outputs, 1)


def _linear(dice: Dice, shape: Shape) -> nn.Module:
    layer = nn.Linear(shape[-1], dice.randint(1, 8) if dice.chance(0.8) else 33, dice.chance(0.7))
    if dice.chance(0.15):
        return nn.utils.parametrizations.weight_norm(layer)
    return layer


def _norm(dice: Dice, shape: Shape) -> nn.Module:
    if dice.chance(0.3):
        return nn.RMSNorm(shape[-1], eps=1e-3, elementwise_affine=dice.chance(0.5))
    return nn.LayerNorm(shape[-1], eps=dice.choice([1e-5, 1e-2]), elementwise_affine=dice.chance(0.6))


def _moved(dice: Dice, shape: Shape) -> nn.Module:
    width, length = shape[2], shape[1]
    index = torch.tensor([dice.randrange(length) for _ in range(dice.randint(1, 5))])
    last = torch.tensor([length - 1])

    def places(x: Any) -> Any:
        return index.view(1, -1, 1).expand(x.shape[0], -1, 1)

    table: list[Any] = [
        ("transposed", lambda x: x.transpose(1, 2)),
        ("shifted", lambda x: F.pad(x[:, :-1], (0, 0, 1, 0))),
        ("picked", lambda x: x[:, index]),
        ("selected", lambda x: x.index_select(1, index)),
        ("gathered", lambda x: x.gather(1, places(x).expand(-1, -1, x.shape[2]))),
        ("first", lambda x: x[:, :1].expand(-1, length, -1) + x),
        ("masked", lambda x: x * (torch.arange(length) % 2)[:, None]),
        ("einsum", lambda x: torch.einsum("btd,bsd->bts", x, x) / (1 + width)),
        ("bmm", lambda x: torch.baddbmm(x, x @ x.transpose(1, 2) / (1 + width), x, beta=0.5, alpha=0.7)),
        ("outer", lambda x: (x[..., None] * x[:, :, None]).flatten(2)),
        ("mean", lambda x: x - x.mean(1, keepdim=True)),
        ("distances", lambda x: torch.cdist(x, x.flip(1) + 3)),
        ("similar", lambda x: F.cosine_similarity(x[:, :, None], x[:, None] + 2, dim=-1)),
        ("viewed", lambda x: x.reshape(x.shape[0], -1, 1)),
        ("scattered", lambda x: torch.zeros_like(x).index_add(1, torch.arange(length) // 2, x)),
        ("put", lambda x: x.index_put((last * 0, last), x[0, 0], accumulate=True)),
        ("triangle", lambda x: x.tril() + 0.5 * x.triu(1)),
        ("some", lambda x: x.scatter(1, places(x)[:, :1], x.detach() * 2)),
        ("added", lambda x: x.scatter_add(1, places(x), x.detach().repeat(1, 5, 1))),
        ("reduced", lambda x: x.scatter_reduce(1, places(x), x[:, :1].expand(-1, 5, -1), "sum")),
        ("taken", lambda x: x[:, index.flip(0) - length]),
        ("movedim", lambda x: x.movedim(1, 0).contiguous().movedim(0, 1)),
        ("amax", lambda x: x - x.amax(-1, keepdim=True)),
        ("argmax", lambda x: x + F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)),
        ("cumprod", lambda x: x.tanh().cumsum(1).flip(1)),
    ]  # fmt: skip
    return Apply(*dice.choice(table))


def _attention(dice: Dice, shape: Shape) -> nn.Module:
    return Attention(dice, shape[1], shape[2])


LAYERS: Draw = one_of(
    *[_linear] * 6, *[_norm] * 2, *[_attention] * 4, *[MultiHead] * 2, _encoder_layer, *[Recurrent] * 2,
    Cells, *[_moved] * 5, *[activation] * 4,
)  # fmt: skip
