"""Models of no library here, at the sizes of their papers."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.case import Case


def _layers(*widths: int) -> nn.Sequential:
    """Give a perceptron; ReLU follows every layer but the last."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class _UNet(nn.Module):
    """Ronneberger et al. 2015: four levels, 64 to 1024 channels, padded, two classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(self._pair(a, b) for a, b in pairwise((3, *widths)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(self._pair(b, a) for a, b in pairwise(widths))
        self.classes = nn.Conv2d(64, 2, 1)

    @staticmethod
    def _pair(a: int, b: int) -> nn.Sequential:
        both = (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        return nn.Sequential(*both, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        skips = [self.down[0](images)]
        for block in self.down[1:]:
            skips.append(block(functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for grow, block in zip(reversed(self.grow), reversed(self.up), strict=True):
            x = block(torch.cat([skips.pop(), grow(x)], 1))
        return self.classes(x)


class _Dlrm(nn.Module):
    """Naumov et al. 2019 on Criteo: 13 numbers, 26 categories, products of all pairs; 10,000 rows a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10_000, 64, mode="sum") for _ in range(26))
        self.bottom, self.top = _layers(13, 512, 256, 64), _layers(64 + 27 * 26 // 2, 512, 256, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(t(categories[:, n, None]) for n, t in enumerate(self.tables))], 1)
        first, second = torch.tril_indices(27, 27, -1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, first, second]
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


class _NBeats(nn.Module):
    """Oreshkin et al. 2020, generic: 30 blocks of four layers, 512 wide; 60 values back, 12 ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_layers(60, 512, 512, 512, 512, 72) for _ in range(30))

    def forward(self, past: Tensor) -> Tensor:
        ahead = past.new_zeros(len(past), 12)
        for block in self.blocks:
            back, part = block(past).split([60, 12], 1)
            past, ahead = past - back, ahead + part
        return ahead


class _GraphSage(nn.Module):
    """Hamilton et al. 2017 on Reddit: means of 25 and 10 neighbours, 602 features, 128 wide, 41 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * 602, 128), nn.Linear(2 * 128, 128)
        self.out = nn.Linear(128, 41)

    def forward(self, features: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Take features of all nodes, the neighbours of each of the batch, and the neighbours of these."""

        def joined(layer: nn.Linear, own: Tensor, others: Tensor) -> Tensor:
            return functional.relu(layer(torch.cat([own, others.mean(-2)], -1)))

        batch = len(near)
        hidden = joined(self.first, features[near], features[far])
        own = joined(self.first, features[:batch], features[near])
        return self.out(joined(self.second, own, hidden))


class _PointNet(nn.Module):
    """Qi et al. 2017, classification: shared perceptrons up to 1024, the two transforms, 40 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = nn.ModuleList(
            nn.ModuleList([self._shared(n, 64, 128, 1024), self._head(n * n)]) for n in (3, 64)
        )
        self.low, self.high = self._shared(3, 64, 64), self._shared(64, 64, 128, 1024)
        self.head = self._head(40)

    @staticmethod
    def _shared(*widths: int) -> nn.Sequential:
        blocks = ((nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(widths))
        return nn.Sequential(*(layer for block in blocks for layer in block))

    @staticmethod
    def _head(classes: int) -> nn.Sequential:
        blocks = ((nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in ((1024, 512), (512, 256)))
        return nn.Sequential(*(layer for block in blocks for layer in block), nn.Linear(256, classes))

    @staticmethod
    def _turned(points: Tensor, turn: Any) -> Tensor:
        shared, head = turn
        width = points.shape[1]
        by = head(shared(points).amax(-1)).unflatten(1, (width, width)) + torch.eye(width)
        return torch.bmm(by, points)

    def forward(self, points: Tensor) -> Tensor:
        x = self._turned(self.low(self._turned(points, self.turns[0])), self.turns[1])
        return self.head(self.high(x).amax(-1))


def _classified(module: nn.Module, classes: int, targets: tuple[int, ...], **inputs: Tensor) -> Case:
    labels = {"target": torch.randint(classes, targets)}
    return Case(module=module.train(), inputs=inputs, targets=labels, loss=functional.cross_entropy)


def _dlrm() -> Case:
    inputs = {"numbers": torch.rand(128, 13), "categories": torch.randint(10_000, (128, 26))}
    clicked = {"target": torch.randint(2, (128,)).float()}
    return Case(
        module=_Dlrm(), inputs=inputs, targets=clicked, loss=functional.binary_cross_entropy_with_logits
    )


def _nbeats() -> Case:
    ahead = {"target": torch.rand(1024, 12)}
    return Case(
        module=_NBeats(), inputs={"past": torch.rand(1024, 60)}, targets=ahead, loss=functional.l1_loss
    )


def _graph_sage() -> Case:
    near, far = torch.randint(10_000, (64, 25)), torch.randint(10_000, (64, 25, 10))
    return _classified(_GraphSage(), 41, (64,), features=torch.randn(10_000, 602), near=near, far=far)


CASES: Mapping[str, Callable[[], Case]] = {
    "dlrm": _dlrm,
    "graph_sage": _graph_sage,
    "n_beats": _nbeats,
    "point_net": lambda: _classified(_PointNet(), 40, (16,), points=torch.randn(16, 3, 1024)),
    "u_net": lambda: _classified(_UNet(), 2, (1, 256, 256), images=torch.randn(1, 3, 256, 256)),
}
