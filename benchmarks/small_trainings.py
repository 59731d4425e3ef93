"""Three small networks, and data that scikit-learn brings along for them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its data and its optimizer."""

    title: str
    data: str
    network: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]


class Transformer(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.zeros(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify images of 8 x 8."""
        return self.head(self.layers(self.embed(x.view(-1, 8, 8)) + self.place).mean(1))


def perceptron(inputs: int = 30, classes: int = 2) -> nn.Module:
    """Two hidden layers with dropout; unless told otherwise for the 30 figures of a cell."""
    return nn.Sequential(
        *(nn.Linear(inputs, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2)),
        *(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, classes)),
    )


def convolutions() -> nn.Module:
    """Two convolutions with batch normalization."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


CASES = (
    Case(
        title="MLP with dropout",
        data="breast cancer",
        network=perceptron,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    ),
    Case(
        title="CNN with BatchNorm",
        data="digits",
        network=convolutions,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    ),
    Case(
        title="Transformer with dropout",
        data="digits",
        network=Transformer,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-3),
    ),
)


def data_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and labels, standardized and in one random order."""
    from sklearn.datasets import load_breast_cancer, load_digits

    samples, labels = {"breast cancer": load_breast_cancer, "digits": load_digits}[name](return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    samples = (samples - samples.mean(0)) / (samples.std(0) + 1e-6)
    return torch.from_numpy(samples[order].astype(np.float32)), torch.from_numpy(
        labels[order].astype(np.int64)
    )


def batches(samples: torch.Tensor, labels: torch.Tensor, steps: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of whole epochs, the last one of an epoch smaller; the last fifth is held out."""
    train = len(labels) * 4 // 5
    generator = torch.Generator().manual_seed(0)
    done = 0
    while done < steps:
        order = torch.randperm(train, generator=generator)
        for rows in order.split(BATCH)[: steps - done]:
            yield samples[rows], labels[rows]
            done += 1
