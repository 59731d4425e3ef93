"""Small networks, each with a batch."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    """Three layers; the loss is computed outside."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Cnn(nn.Module):
    """Two convolutions with batch normalization; the loss is computed inside.

    ReLU and max-pooling have kinks: a value that rounds to the other side of one changes gradients by
    their whole size, in any kind of mixed precision. The smooth network has none.
    """

    def __init__(self, width: int = 16, *, smooth: bool = False) -> None:
        super().__init__()
        self.smooth = smooth
        activation, pool = (nn.GELU, nn.AvgPool2d) if smooth else (nn.ReLU, nn.MaxPool2d)
        self.body = nn.Sequential(
            nn.Conv2d(8, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            pool(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            activation(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 16),
        )

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(self.body(x), label)


class _EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, dim=-1)
        mixed = (scores @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.narrow(functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """Embedding, two encoder layers and a head over the vocabulary; the loss is computed inside."""

    def __init__(self, words: int = 96, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(_EncoderLayer(width, heads=4) for _ in range(2)))
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor, label: Tensor) -> Tensor:
        scores = self.head(self.layers(self.embedding(words)))
        return functional.cross_entropy(scores.flatten(0, 1), label.flatten())


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Mlp(), (torch.randn(16, 64),)


def cnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Cnn(), (torch.randn(8, 8, 8, 8), torch.randint(16, (8,)))


def smooth_cnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    _, batch = cnn()
    return Cnn(smooth=True), batch


def bert() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Bert(), (torch.randint(96, (4, 16)), torch.randint(96, (4, 16)))


NETWORKS = {"mlp": mlp, "cnn": cnn, "smooth_cnn": smooth_cnn, "bert": bert}
NEEDS_ATEN = frozenset({"cnn", "smooth_cnn", "bert"})
"""Networks with pooling or an embedding, which ORTModule leaves to PyTorch's operators."""
