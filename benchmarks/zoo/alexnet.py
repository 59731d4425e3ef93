"""AlexNet, as in "One weird trick for parallelizing convolutional neural networks" (2014)."""

import torch
from torch import nn


def alexnet(classes: int = 1000, width: int = 64, hidden: int = 4096) -> nn.Module:
    """Build it for images of 3 x 224 x 224; `width` and `hidden` make it narrow."""
    w = width
    return nn.Sequential(
        nn.Conv2d(3, w, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(w, 3 * w, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(3 * w, 6 * w, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(6 * w, 4 * w, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(36 * 4 * w, hidden), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )  # fmt: skip


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a narrow variant and a batch for it."""
    return alexnet(10, 4, 32), (torch.randn(2, 3, 96, 96),), (torch.randint(0, 10, (2,)),)
