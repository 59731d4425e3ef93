"""VGG-16, configuration D of "Very deep convolutional networks for large-scale image recognition" (2015)."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage."""


def vgg16(
    classes: int = 1000, stages: Sequence[tuple[int, int]] = STAGES, hidden: int = 4096, size: int = 7
) -> nn.Module:
    """Build it for images of 3 x 224 x 224; `size` is that of the last stage's result."""
    return nn.Sequential(
        *_features(stages), nn.AdaptiveAvgPool2d(size), nn.Flatten(),
        nn.Linear(size * size * stages[-1][0], hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, classes),
    )  # fmt: skip


def _features(stages: Sequence[tuple[int, int]]) -> Iterator[nn.Module]:
    channels = 3
    for width, convolutions in stages:
        for _ in range(convolutions):
            yield nn.Conv2d(channels, width, 3, padding=1)
            yield nn.ReLU(inplace=True)
            channels = width
        yield nn.MaxPool2d(2, 2)


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a narrow variant and a batch for it."""
    module = vgg16(10, ((4, 1), (8, 2)), 32, 7)
    return module, (torch.randn(2, 3, 32, 32),), (torch.randint(0, 10, (2,)),)
