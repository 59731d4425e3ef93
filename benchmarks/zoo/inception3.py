"""Inception v3 of "Rethinking the Inception architecture for computer vision" (2016), with its side head."""

import torch
import torch.nn.functional as F
from torch import nn

Kernel = int | tuple[int, int]


def unit(channels: int, width: int, kernel: Kernel, stride: int = 0) -> nn.Sequential:
    """Convolution, normalization, rectification; padded to keep the size unless a stride is given."""
    padding = 0 if stride else tuple(k // 2 for k in kernel) if isinstance(kernel, tuple) else kernel // 2
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride or 1, padding, bias=False),
        nn.BatchNorm2d(width, eps=0.001),
        nn.ReLU(inplace=True),
    )


def chain(channels: int, *units: tuple[int, Kernel] | tuple[int, Kernel, int]) -> nn.Sequential:
    """Units one after the other: width and kernel of each, and its stride."""
    widths = [channels, *(width for width, *_ in units)]
    return nn.Sequential(*(unit(before, *rest) for before, rest in zip(widths, units, strict=False)))


class Branches(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run each branch."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(channels, width, 1))


def _in_35(channels: int, w: int, pooled: int) -> nn.Module:
    return Branches(
        unit(channels, 4 * w, 1),
        chain(channels, (3 * w, 1), (4 * w, 5)),
        chain(channels, (4 * w, 1), (6 * w, 3), (6 * w, 3)),
        _pooled(channels, pooled),
    )


def _to_17(channels: int, w: int) -> nn.Module:
    reduced = chain(channels, (4 * w, 1), (6 * w, 3), (6 * w, 3, 2))
    return Branches(unit(channels, 24 * w, 3, 2), reduced, nn.MaxPool2d(3, 2))


def _in_17(channels: int, w: int, inner: int) -> nn.Module:
    row, column, out = (1, 7), (7, 1), 12 * w
    return Branches(
        unit(channels, out, 1),
        chain(channels, (inner, 1), (inner, row), (out, column)),
        chain(channels, (inner, 1), (inner, column), (inner, row), (inner, column), (out, row)),
        _pooled(channels, out),
    )


def _to_8(channels: int, w: int) -> nn.Module:
    inner = 12 * w
    return Branches(
        chain(channels, (inner, 1), (20 * w, 3, 2)),
        chain(channels, (inner, 1), (inner, (1, 7)), (inner, (7, 1)), (inner, 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def _fork(w: int) -> nn.Module:
    return Branches(unit(24 * w, 24 * w, (1, 3)), unit(24 * w, 24 * w, (3, 1)))


def _in_8(channels: int, w: int) -> nn.Module:
    return Branches(
        unit(channels, 20 * w, 1),
        nn.Sequential(unit(channels, 24 * w, 1), _fork(w)),
        nn.Sequential(chain(channels, (28 * w, 1), (24 * w, 3)), _fork(w)),
        _pooled(channels, 12 * w),
    )


class Inception3(nn.Module):
    """A body, a main head behind its last part, and a side head before; returns the logits of both."""

    def __init__(self, body: nn.Module, last: nn.Module, head: nn.Module, side: nn.Module) -> None:
        super().__init__()
        self.body, self.last, self.head, self.side = body, last, head, side

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the logits of both heads."""
        x = self.body(x)
        return self.head(self.last(x)), self.side(x)


def _head(width: int, classes: int, *before: nn.Module) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *before, nn.Linear(width, classes))


def inception3(classes: int = 1000, w: int = 16) -> nn.Module:
    """Build it for images of 3 x 299 x 299."""
    return Inception3(
        nn.Sequential(
            chain(3, (2 * w, 3, 2), (2 * w, 3, 1), (4 * w, 3)), nn.MaxPool2d(3, 2),
            chain(4 * w, (5 * w, 1), (12 * w, 3, 1)), nn.MaxPool2d(3, 2),
            _in_35(12 * w, w, 2 * w), _in_35(16 * w, w, 4 * w), _in_35(18 * w, w, 4 * w),
            _to_17(18 * w, w), *(_in_17(48 * w, w, inner) for inner in (8 * w, 10 * w, 10 * w, 12 * w)),
        ),
        nn.Sequential(_to_8(48 * w, w), _in_8(80 * w, w), _in_8(128 * w, w)),
        _head(128 * w, classes, nn.Dropout()),
        nn.Sequential(
            nn.AvgPool2d(5, 3), chain(48 * w, (8 * w, 1), (48 * w, 5, 1)), _head(48 * w, classes)
        ),
    )  # fmt: skip


def loss(logits: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Weigh the side head by 0.4."""
    main, side = logits
    return F.cross_entropy(main, labels) + 0.4 * F.cross_entropy(side, labels)


def one_of_each(w: int = 1) -> nn.Module:
    """Build one block of each kind: deep stacks of normalizations magnify rounding."""
    first = unit(3, 12 * w, 3, 2)
    body = nn.Sequential(first, _in_35(12 * w, w, 2 * w), _to_17(16 * w, w), _in_17(46 * w, w, 8 * w))
    last = nn.Sequential(_to_8(48 * w, w), _in_8(80 * w, w))
    return Inception3(body, last, _head(128 * w, 10), _head(48 * w, 10))


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a variant of one block per kind and a batch for it."""
    return one_of_each(), (torch.randn(4, 3, 63, 63),), (torch.randint(0, 10, (4,)),)
