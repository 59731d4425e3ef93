"""DCGAN of "Unsupervised representation learning with deep convolutional GANs" (2016), 64 x 64 images.

Its training alternates two steps, each a graph of its own: the discriminator's, on real and on
generated images, and the generator's, through a discriminator that stays as it is.
"""

import torch
import torch.nn.functional as F
from torch import nn


def generator(latent: int = 100, width: int = 64) -> nn.Module:
    """Turn (batch, latent, 1, 1) into images of 3 x 64 x 64."""
    w = width
    return nn.Sequential(
        nn.ConvTranspose2d(latent, 8 * w, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * w), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8 * w, 4 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(2 * w, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(w, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def discriminator(width: int = 64) -> nn.Module:
    """Turn images into one logit each."""
    w, slope = width, 0.2
    return nn.Sequential(
        nn.Conv2d(3, w, 4, 2, 1, bias=False), nn.LeakyReLU(slope),
        nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.LeakyReLU(slope),
        nn.Conv2d(2 * w, 4 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * w), nn.LeakyReLU(slope),
        nn.Conv2d(4 * w, 8 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(8 * w), nn.LeakyReLU(slope),
        nn.Conv2d(8 * w, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip


class GeneratorStep(nn.Module):
    """The generator against a frozen discriminator."""

    frozen = "discriminator"

    def __init__(self, latent: int = 100, width: int = 64) -> None:
        super().__init__()
        self.generator, self.discriminator = generator(latent, width), discriminator(width)
        getattr(self, self.frozen).requires_grad_(False)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Judge generated images."""
        return self.discriminator(self.generator(noise))


class DiscriminatorStep(GeneratorStep):
    """The discriminator on real and generated images, the generator frozen."""

    frozen = "generator"

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Judge real and generated images."""
        return self.discriminator(images), super().forward(noise)


def generator_loss(fake: torch.Tensor) -> torch.Tensor:
    """Small where generated images pass for real."""
    return F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


def discriminator_loss(judged: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Small where real images pass and generated ones do not."""
    (real, fake), loss = judged, F.binary_cross_entropy_with_logits
    return loss(real, torch.ones_like(real)) + loss(fake, torch.zeros_like(fake))


def shallow_generator() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a narrow variant and a batch for it."""
    return GeneratorStep(8, 4), (torch.randn(4, 8, 1, 1),), ()


def shallow_discriminator() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a narrow variant and a batch for it."""
    return DiscriminatorStep(8, 4), (torch.randn(4, 3, 64, 64), torch.randn(4, 8, 1, 1)), ()
