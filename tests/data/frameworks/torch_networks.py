"""An MLP, a CNN and an attention block in PyTorch, each with its loss inside and a batch.

The same networks as in :mod:`jax_networks`. Sizes are such that FP16 pays on a large GPU; they cost
nothing, since tensors live on the ``meta`` device or are never computed with.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


class Mlp(nn.Module):
    """Three layers with GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(256, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 128)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        """Return the loss."""
        hidden = functional.gelu(self.second(functional.gelu(self.first(x))))
        return functional.cross_entropy(self.head(hidden), label)


class Cnn(nn.Module):
    """Two convolutions with batch normalization, a max pooling between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        self.second = nn.Conv2d(128, 256, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(128), nn.BatchNorm2d(256)
        self.head = nn.Linear(256, 128)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.max_pool2d(torch.relu(self.norm1(self.first(x))), 2)
        x = torch.relu(self.norm2(self.second(x)))
        return functional.cross_entropy(self.head(x.mean((2, 3))), label)


class Attention(nn.Module):
    """One pre-norm transformer block, and the mean squared error against a target."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        h = self.norm1(x)
        batch, length, width = x.shape
        q, k, v = (
            layer(h).reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + self.narrow(functional.gelu(self.wide(self.norm2(x))))
        return functional.mse_loss(x, target)


def mlp() -> tuple[nn.Module, Batch]:
    return Mlp(), (torch.randn(4096, 256), torch.randint(128, (4096,)))


def cnn() -> tuple[nn.Module, Batch]:
    return Cnn(), (torch.randn(64, 64, 28, 28), torch.randint(128, (64,)))


def attention() -> tuple[nn.Module, Batch]:
    return Attention(), (torch.randn(32, 128, 512), torch.randn(32, 128, 512))


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, Batch]]] = MappingProxyType(
    {"mlp": mlp, "cnn": cnn, "attention": attention}
)
