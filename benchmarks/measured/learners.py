"""Small variants of the paper's six models that learn scikit-learn's digits, on the CPU within seconds.

Images of 8 x 8 are enlarged to what a network needs; BERT reads their 64 intensities as words. DCGAN's
discriminator, with ten outputs, stands for DCGAN: its own training has no accuracy. Dropout is off, but
for that of BERT's attention weights. Needs scikit-learn.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measured.networks import Case, without_dropout
from benchmarks.measured.trained import BATCH
from benchmarks.zoo import alexnet, bert_large, dcgan, inception3, resnet50, vgg16

CLASSES = 10
_SIDE = 8  # pixels
_INTENSITIES = 17


class Learner(NamedTuple):
    """A network, what it makes of an image, and how it is trained.

    Parameters
    ----------
    enlarged
        How many times larger the images are; 0 where it reads intensities as words.
    """

    title: str
    build: Callable[[], nn.Module]
    enlarged: int
    optimizer: str
    rate: float
    epochs: int
    loss: Callable[..., torch.Tensor] = F.cross_entropy


class Reader(nn.Module):
    """BERT with one head for the whole text."""

    def __init__(self, size: bert_large.Size) -> None:
        super().__init__()
        body = bert_large.Bert(size)
        self.words, self.positions, self.norm = body.words, body.positions, body.norm
        self.layers = body.layers
        self.head = nn.Linear(size.hidden, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Give the logits of texts, each as long as there are positions."""
        x = self.norm(self.words(words) + self.positions.weight)
        unmasked = torch.zeros(1, 1, 1, words.shape[1])
        for layer in self.layers:
            x = layer(x, unmasked)
        return self.head(x.mean(1))


def _dcgan() -> nn.Module:
    *body, judge, flatten = dcgan.discriminator(8)
    return nn.Sequential(*body, nn.Conv2d(judge.in_channels, CLASSES, 4, bias=False), type(flatten)(1))


def _resnet() -> nn.Module:
    return resnet50.resnet50(CLASSES, (1, 1, 1), 8)


_STAGES = ((8, 1), (16, 1), (32, 2))
_BERT = bert_large.Size(layers=2, hidden=64, heads=4, inner=128, words=_INTENSITIES, positions=_SIDE * _SIDE)

LEARNERS: Mapping[str, Learner] = MappingProxyType(
    {
        "alexnet": Learner("AlexNet", lambda: alexnet.alexnet(CLASSES, 8, 64), 8, "adamw", 2e-3, 16),
        "resnet50": Learner("ResNet-50", _resnet, 4, "momentum", 0.05, 12),
        "inception3": Learner("Inception v3", inception3.one_of_each, 6, "adamw", 2e-3, 8, inception3.loss),
        "vgg16": Learner("VGG-16", lambda: vgg16.vgg16(CLASSES, _STAGES, 64, 1), 4, "adamw", 3e-3, 24),
        "dcgan": Learner("DCGAN, discriminator", _dcgan, 8, "momentum", 0.05, 8),
        "bert": Learner("BERT", lambda: Reader(_BERT), 0, "adamw", 2e-3, 14),
    }
)
"""Small variants by name, in the order of the paper's Table 3."""


@cache
def digits(enlarged: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and labels in one random order for all runs; the first ``TRAIN`` are to train."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    samples = torch.from_numpy(images[order])
    targets = torch.from_numpy(labels[order].astype(np.int64))
    if not enlarged:
        return samples.long(), targets
    pixels = samples.float().view(-1, 1, _SIDE, _SIDE) / (_INTENSITIES - 1)
    return F.interpolate(pixels, scale_factor=enlarged, mode="bilinear").expand(-1, 3, -1, -1), targets


def built(name: str, seed: int) -> nn.Module:
    """Build a network; the same weights for the same seed."""
    torch.manual_seed(seed)
    return without_dropout(LEARNERS[name].build())


def learner_case(name: str) -> Case:
    """Give a network with the first batch, for its step to be exported and timed."""
    samples, labels = digits(LEARNERS[name].enlarged)
    batch = (samples[:BATCH].contiguous(),), (labels[:BATCH],)
    return Case(built(name, 0), LEARNERS[name].loss, *batch)
