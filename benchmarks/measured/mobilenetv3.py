"""MobileNetV3-small (Howard et al., 2019, Table 2): the network of depthwise convolutions."""

import torch
import torch.nn.functional as F
from torch import nn

# kernel, expanded channels, output channels, squeeze-and-excitation, activation, stride
_ROWS = (
    (3, 16, 16, True, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 2),
    (3, 88, 24, False, nn.ReLU, 1),
    (5, 96, 40, True, nn.Hardswish, 2),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 240, 40, True, nn.Hardswish, 1),
    (5, 120, 48, True, nn.Hardswish, 1),
    (5, 144, 48, True, nn.Hardswish, 1),
    (5, 288, 96, True, nn.Hardswish, 2),
    (5, 576, 96, True, nn.Hardswish, 1),
    (5, 576, 96, True, nn.Hardswish, 1),
)


class MobileNetV3(nn.Module):
    """The classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers, channels = [_normalized(3, 16, 3, 2, 1, nn.Hardswish)], 16
        for kernel, inner, out, squeezes, activation, stride in _ROWS:
            layers.append(_Block(channels, kernel, inner, out, squeezes, activation, stride))
            channels = out
        self.features = nn.Sequential(*layers, _normalized(channels, 576, 1, 1, 1, nn.Hardswish))
        self.head = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Give the scores of classes."""
        return self.head(self.features(image).mean((2, 3)))


class _Block(nn.Module):
    def __init__(
        self, channels: int, kernel: int, inner: int, out: int, squeezes: bool,
        activation: type[nn.Module], stride: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_residual = stride == 1 and channels == out
        parts = [] if inner == channels else [_normalized(channels, inner, 1, 1, 1, activation)]
        parts.append(_normalized(inner, inner, kernel, stride, inner, activation))
        if squeezes:
            parts.append(_Squeeze(inner))
        self.parts = nn.Sequential(*parts, _normalized(inner, out, 1, 1, 1, nn.Identity))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts(x) if self.is_residual else self.parts(x)


class _Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = max(8, (channels // 4 + 4) // 8 * 8)
        self.down, self.up = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


def _normalized(
    channels: int, out: int, kernel: int, stride: int, groups: int, activation: type[nn.Module]
) -> nn.Module:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), activation())
