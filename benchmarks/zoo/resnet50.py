"""ResNet-50 with the stride on the 3 x 3 convolution, as everybody trains it ("v1.5")."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.reduce = _normalized(nn.Conv2d(channels, width, 1, bias=False))
        self.transform = _normalized(nn.Conv2d(width, width, 3, stride, 1, bias=False))
        self.restore = _normalized(nn.Conv2d(width, out, 1, bias=False))
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = _normalized(nn.Conv2d(channels, out, 1, stride, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the shortcut."""
        y = self.relu(self.transform(self.relu(self.reduce(x))))
        return self.relu(self.restore(y) + self.shortcut(x))


def _normalized(convolution: nn.Conv2d) -> nn.Module:
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels))


def resnet50(classes: int = 1000, blocks: Sequence[int] = BLOCKS, width: int = 64) -> nn.Module:
    """Build it for images of 3 x 224 x 224; fewer blocks and less width make it shallow."""
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *_stages(blocks, width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(EXPANSION * width * 2 ** (len(blocks) - 1), classes),
    )  # fmt: skip


def _stages(blocks: Sequence[int], width: int) -> Iterator[nn.Module]:
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            yield Bottleneck(channels, width * 2**stage, 2 if stage and not block else 1)
            channels = EXPANSION * width * 2**stage


def shallow() -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Give a variant of two blocks: at full depth torch differs from itself by percents."""
    return resnet50(10, (1, 1), 8), (torch.randn(4, 3, 32, 32),), (torch.randint(0, 10, (4,)),)
