"""Inception v3 of "Rethinking the Inception architecture for computer vision" (2016), with its side head."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Unit(nn.Sequential):
    """Convolution, normalization, rectification."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(
            nn.Conv2d(channels, width, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(width, eps=0.001),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run each branch."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pool() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1)


def _in_35(channels: int, w: int, pooled: int) -> nn.Module:
    return Branches(
        Unit(channels, 4 * w, 1),
        nn.Sequential(Unit(channels, 3 * w, 1), Unit(3 * w, 4 * w, 5, padding=2)),
        nn.Sequential(
            Unit(channels, 4 * w, 1), Unit(4 * w, 6 * w, 3, padding=1), Unit(6 * w, 6 * w, 3, padding=1)
        ),
        nn.Sequential(_pool(), Unit(channels, pooled, 1)),
    )  # fmt: skip


def _to_17(channels: int, w: int) -> nn.Module:
    return Branches(
        Unit(channels, 24 * w, 3, 2),
        nn.Sequential(
            Unit(channels, 4 * w, 1), Unit(4 * w, 6 * w, 3, padding=1), Unit(6 * w, 6 * w, 3, stride=2)
        ),
        nn.MaxPool2d(3, 2),
    )  # fmt: skip


def _in_17(channels: int, w: int, inner: int) -> nn.Module:
    row, column, out = {"padding": (0, 3)}, {"padding": (3, 0)}, 12 * w
    return Branches(
        Unit(channels, out, 1),
        nn.Sequential(
            Unit(channels, inner, 1), Unit(inner, inner, (1, 7), **row), Unit(inner, out, (7, 1), **column)
        ),
        nn.Sequential(
            Unit(channels, inner, 1), Unit(inner, inner, (7, 1), **column), Unit(inner, inner, (1, 7), **row),
            Unit(inner, inner, (7, 1), **column), Unit(inner, out, (1, 7), **row),
        ),
        nn.Sequential(_pool(), Unit(channels, out, 1)),
    )  # fmt: skip


def _to_8(channels: int, w: int) -> nn.Module:
    inner = 12 * w
    return Branches(
        nn.Sequential(Unit(channels, inner, 1), Unit(inner, 20 * w, 3, 2)),
        nn.Sequential(
            Unit(channels, inner, 1), Unit(inner, inner, (1, 7), padding=(0, 3)),
            Unit(inner, inner, (7, 1), padding=(3, 0)), Unit(inner, inner, 3, 2),
        ),
        nn.MaxPool2d(3, 2),
    )  # fmt: skip


def _fork(w: int) -> nn.Module:
    return Branches(
        Unit(24 * w, 24 * w, (1, 3), padding=(0, 1)), Unit(24 * w, 24 * w, (3, 1), padding=(1, 0))
    )


def _in_8(channels: int, w: int) -> nn.Module:
    return Branches(
        Unit(channels, 20 * w, 1),
        nn.Sequential(Unit(channels, 24 * w, 1), _fork(w)),
        nn.Sequential(Unit(channels, 28 * w, 1), Unit(28 * w, 24 * w, 3, padding=1), _fork(w)),
        nn.Sequential(_pool(), Unit(channels, 12 * w, 1)),
    )  # fmt: skip


class Inception3(nn.Module):
    """For images of 3 x 299 x 299; returns the logits of the main and of the side head."""

    def __init__(self, classes: int = 1000, w: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Unit(3, 2 * w, 3, 2), Unit(2 * w, 2 * w, 3), Unit(2 * w, 4 * w, 3, padding=1), nn.MaxPool2d(3, 2),
            Unit(4 * w, 5 * w, 1), Unit(5 * w, 12 * w, 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.grid35 = nn.Sequential(
            _in_35(12 * w, w, 2 * w), _in_35(16 * w, w, 4 * w), _in_35(18 * w, w, 4 * w)
        )
        inner = (8 * w, 10 * w, 10 * w, 12 * w)
        self.grid17 = nn.Sequential(_to_17(18 * w, w), *(_in_17(48 * w, w, i) for i in inner))
        self.grid8 = nn.Sequential(_to_8(48 * w, w), _in_8(80 * w, w), _in_8(128 * w, w))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(128 * w, classes)
        )
        self.side = nn.Sequential(
            nn.AvgPool2d(5, 3), Unit(48 * w, 8 * w, 1), Unit(8 * w, 48 * w, 5), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(48 * w, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the logits of both heads."""
        x = self.grid17(self.grid35(self.stem(x)))
        return self.head(self.grid8(x)), self.side(x)


def loss(logits: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Weigh the side head by 0.4."""
    main, side = logits
    return F.cross_entropy(main, labels) + 0.4 * F.cross_entropy(side, labels)


class Shallow(nn.Module):
    """One block of each kind: deep stacks of normalizations magnify rounding."""

    def __init__(self) -> None:
        super().__init__()
        w = 1
        self.blocks = nn.Sequential(
            Unit(3, 12 * w, 3, 2), _in_35(12 * w, w, 2 * w), _to_17(16 * w, w), _in_17(46 * w, w, 8 * w)
        )
        self.last = nn.Sequential(_to_8(48 * w, w), _in_8(80 * w, w))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128 * w, 10))
        self.side = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48 * w, 10))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the logits of both heads."""
        x = self.blocks(x)
        return self.head(self.last(x)), self.side(x)


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a variant of one block per kind and a batch for it."""
    return Shallow(), (torch.randn(4, 3, 63, 63),), (torch.randint(0, 10, (4,)),)
