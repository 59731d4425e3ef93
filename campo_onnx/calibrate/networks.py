"""Layer shapes of real networks, and how one is drawn at about a given size."""

from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Random: TypeAlias = np.random.Generator

# (channels, height = width) of feature maps and (sequence, width) of token layers: ResNet-50, VGG-16,
# GoogLeNet, DenseNet-121, MobileNet, SSD, Mask R-CNN, U-Net, BERT base and large, RNN-T, DLRM.
_MAPS = (
    *((64, 112), (64, 56), (256, 56), (512, 28), (1024, 14), (2048, 7), (128, 28), (256, 14), (512, 7)),
    *((64, 224), (128, 112), (256, 28), (192, 28), (480, 14), (832, 7), (96, 35), (288, 35), (768, 17)),
    *((32, 112), (144, 56), (576, 14), (960, 7), (24, 56), (116, 28), (232, 14), (512, 38), (256, 19)),
)
_TOKENS = (
    *((128, 768), (128, 1024), (384, 768), (384, 1024), (512, 768), (128, 3072), (384, 4096), (64, 512)),
    *((1, 128), (1, 256), (1, 512), (1, 1024), (32, 320), (100, 1024), (16, 2048), (1, 4096)),
)
# (width in, width out) of dense layers.
_DENSE = (
    *((768, 768), (768, 3072), (3072, 768), (1024, 1024), (1024, 4096), (4096, 1024), (2048, 1000)),
    *((13, 512), (512, 256), (256, 64), (479, 1024), (1024, 1024), (1024, 512), (4096, 4096), (320, 1280)),
)
# (heads, sequence, width of a head) of attention.
ATTENTION = (
    (12, 128, 64),
    (12, 384, 64),
    (16, 128, 64),
    (16, 384, 64),
    (8, 64, 64),
    (12, 512, 64),
    (16, 512, 80),
)
# (channels in, channels out, height = width, kernel, stride) of convolutions.
_CONVS = (
    *((3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 128, 56, 1, 1)),
    *((128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1), (512, 2048, 7, 1, 1)),
    *(
        (3, 64, 224, 3, 1),
        (64, 128, 112, 3, 1),
        (256, 512, 28, 3, 1),
        (3, 32, 149, 3, 2),
        (192, 64, 35, 1, 1),
    ),
    *(
        (48, 64, 35, 5, 1),
        (288, 384, 35, 3, 2),
        (128, 32, 28, 3, 1),
        (512, 128, 14, 1, 1),
        (96, 24, 56, 1, 1),
    ),
)

# (channels, height = width, kernel, stride, channels of a group): MobileNet, EfficientNet, ConvNeXt, ResNeXt.
_GROUPED = (
    *((16, 112, 3, 2, 1), (72, 56, 3, 2, 1), (88, 28, 3, 1, 1), (96, 28, 5, 2, 1), (240, 14, 5, 1, 1)),
    *((288, 14, 5, 2, 1), (576, 7, 5, 1, 1), (32, 112, 3, 1, 1), (144, 56, 3, 2, 1), (480, 14, 3, 1, 1)),
    *((40, 56, 7, 1, 1), (320, 7, 7, 1, 1), (128, 56, 3, 1, 4), (256, 56, 3, 2, 8), (512, 14, 3, 1, 16)),
)


def pick(random: Random, table: tuple[Any, ...]) -> Any:
    """One row of a table, each as likely as the others."""
    return table[int(random.integers(len(table)))]


def _nudged(random: Random, size: int) -> int:
    """Every other size as it is, the others off the multiples of 8."""
    return size if random.random() < 0.5 or size < 16 else size - int(random.integers(1, 8))


def aligned_or_not(random: Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every other time all on multiples of 8, as one size off them is enough to lose tensor cores."""
    if random.random() < 0.5:
        return tuple(-(-size // 8) * 8 for size in sizes)
    nudged = tuple(_nudged(random, size) for size in sizes)
    return nudged if nudged != sizes or any(size % 8 for size in sizes) else (*sizes[:-1], sizes[-1] + 1)


def feature_map(random: Random, target: float) -> Shape:
    """A feature map (N, C, H, W) of about `target` elements; small ones are cut, large ones batched."""
    channels, size = pick(random, _MAPS)
    while channels * size * size > target and size > 4:
        size = max(4, size // 2)
    while channels * size * size > target and channels > 4:
        channels = max(4, channels // 2)
    return (max(1, round(target / (channels * size * size))), _nudged(random, channels), size, size)


def tokens(random: Random, target: float) -> Shape:
    """Activations (B, S, W) of about `target` elements."""
    sequence, width = pick(random, _TOKENS)
    while sequence * width > target and sequence > 1:
        sequence //= 2
    while sequence * width > target and width > 16:
        width //= 2
    return (max(1, round(target / (sequence * width))), sequence, _nudged(random, width))


def activation(random: Random, target: float) -> Shape:
    """A feature map or tokens of about `target` elements."""
    return feature_map(random, target) if random.random() < 0.5 else tokens(random, target)


def dense(random: Random, target: float) -> tuple[int, int, int]:
    """Rows, width in and width out of a dense layer with about `target` elements on its larger side."""
    k, n = pick(random, _DENSE)
    while k * n > target and max(k, n) > 16:
        k, n = max(8, k // 2), max(8, n // 2)
    rows, k, n = aligned_or_not(random, (max(1, round(target / max(k, n))), k, n))
    return rows, k, n


def convolution(random: Random, target: float) -> tuple[Shape, Shape, int, int]:
    """Shapes of data and filters, padding and stride."""
    channels, filters, size, kernel, stride = pick(random, _CONVS)
    while channels * size * size > target and size > 7:
        size = max(7, size // 2)
    while channels * size * size > target and channels > 8:
        channels, filters = max(8, channels // 2), max(8, filters // 2)
    batch = max(1, round(target / (channels * size * size)))
    channels, filters = aligned_or_not(random, (channels, filters))
    return (batch, channels, size, size), (filters, channels, kernel, kernel), kernel // 2, stride


def grouped_convolution(random: Random, target: float) -> tuple[Shape, Shape, int, int, int]:
    """Shapes of data and filters, padding, stride and groups: mostly depthwise, as in mobile networks."""
    channels, size, kernel, stride, width = pick(random, _GROUPED)
    while channels * size * size > target and size > 7:
        size = max(7, size // 2)
    while channels * size * size > target and channels // 2 >= max(8, width):
        channels //= 2
    batch = max(1, round(target / (channels * size * size)))
    return (
        (batch, channels, size, size),
        (channels, width, kernel, kernel),
        kernel // 2,
        stride,
        channels // width,
    )
