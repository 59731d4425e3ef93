"""Layer shapes of real networks, and how one is drawn at about a given size."""

import tomllib
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Random: TypeAlias = np.random.Generator

_ROWS = tomllib.loads(files(__package__).joinpath("data", "networks.toml").read_text(encoding="utf-8"))
_MAPS, _TOKENS, _DENSE, ATTENTION, _CONVS, _FIRST_CONVS, _GROUPED = (
    tuple(map(tuple, _ROWS[name]))
    for name in (
        "maps", "tokens", "dense", "attention", "convolutions", "first_convolutions", "grouped_convolutions"
    )
)  # fmt: skip


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


def first_convolution(random: Random, target: float) -> tuple[int, int, int, int, int]:
    """Channels in and out, size, kernel and stride of a network's first convolution: its image is large."""
    channels, filters, size, kernel, stride = pick(random, _FIRST_CONVS)
    while channels * size * size > target and size > 28:
        size = max(28, size // 2)
    while filters * size * size > target and filters > 4:
        filters = max(4, filters // 2)
    return channels, _nudged(random, filters), size, kernel, stride


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
