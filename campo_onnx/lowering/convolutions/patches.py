"""Patches of an image under a convolution's taps, laid out as rows of a matrix product."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold
from typing import Any

import numpy as np
from numpy.typing import NDArray

from campo_onnx.builder.compact import pad, reshape, transpose
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value

LARGEST_INDEX = 1 << 16
"""Numbers in a constant index; images for which it would be larger are not gathered pixel by pixel."""

_FEW = 1 << 12
"""Zeros and ones by which what the taps read is selected, at most: of images of 3 x 3 that takes 80 us where
gathering takes 300, of those of 6 x 6 440 and 200 (256 and 512 channels, two threads of an EPYC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Strides, padding, dilation and groups of a kernel; one number per spatial axis.

    Numbers are as in ONNX, but with equal padding at both ends.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any], count: int) -> "tuple[Geometry, tuple[int, ...]] | None":
        """Read how a kernel moves over a padded image, and the pads at both ends; None with ``auto_pad``."""
        if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"):
            return None
        geometry = cls(
            strides=tuple(attributes.get("strides", [1] * count)),
            pads=(0,) * count,
            dilations=tuple(attributes.get("dilations", [1] * count)),
            groups=int(attributes.get("group", 1)),
        )
        return geometry, tuple(attributes.get("pads", [0] * 2 * count))

    @property
    def attributes(self) -> dict[str, Any]:
        """As attributes of Conv and ConvTranspose."""
        return {
            "strides": list(self.strides),
            "pads": [*self.pads, *self.pads],
            "dilations": list(self.dilations),
            "group": self.groups,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Elements that the taps read of an image along one axis.

    `offsets` say how far from there each tap reads; a single 0 where the taps move along the other image.
    """

    before: int
    after: int
    first: Sequence[int]  # where each position's first tap reads, behind the zeros
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A convolution along one spatial axis: how many elements go in and come out, and how it moves."""

    size: int
    result: int
    taps: int
    stride: int
    padding: int
    dilation: int

    def of_input(self, turned: bool) -> Reading:
        """Say what is read of the input: all of it as it is, if the taps move along the gradient."""
        if turned:
            return Reading(before=0, after=0, first=range(self.size), offsets=(0,))
        reach = (self.result - 1) * self.stride + (self.taps - 1) * self.dilation + 1
        return Reading(
            before=self.padding,
            after=max(0, reach - self.size - self.padding),
            first=[position * self.stride for position in range(self.result)],
            offsets=[tap * self.dilation for tap in range(self.taps)],
        )

    def of_gradient(self, turned: bool) -> Reading:
        """Say what is read of the gradient: tap i of position q meets its element q - i * d + p."""
        if not turned:
            return Reading(before=0, after=0, first=range(self.result), offsets=(0,))
        before = max(0, (self.taps - 1) * self.dilation - self.padding)
        return Reading(
            before=before,
            after=max(0, self.size + self.padding - self.result),
            first=[position + self.padding + before for position in range(self.size)],
            offsets=[-tap * self.dilation for tap in range(self.taps)],
        )

    def reaching(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Say by which positions and taps each element is read, and which entries of the two tables count."""
        rows = [
            [
                ((element + self.padding - tap * self.dilation) // self.stride, tap)
                for tap in range(self.taps)
                if (element + self.padding - tap * self.dilation) % self.stride == 0
                and 0 <= element + self.padding - tap * self.dilation < self.result * self.stride
            ]
            for element in range(self.size)
        ]
        most = max(1, *map(len, rows))
        positions, taps = np.zeros((2, self.size, most), np.int64)
        counts = np.zeros((self.size, most), bool)
        for element, pairs in enumerate(rows):
            for entry, (position, tap) in enumerate(pairs):
                positions[element, entry], taps[element, entry] = position, tap
                counts[element, entry] = True
        return positions, taps, counts


def axes_of(
    image: tuple[int, ...], result: tuple[int, ...], kernel: tuple[int, ...], geometry: Geometry
) -> list[Axis]:
    """Give a convolution axis by axis, from the shapes of what goes in and comes out, and of the weight."""
    return [
        Axis(size=n, result=o, taps=k, stride=s, padding=p, dilation=d)
        for n, o, k, s, p, d in zip(
            image[2:], result[2:], kernel[2:], geometry.strides, geometry.pads, geometry.dilations,
            strict=True,
        )
    ]  # fmt: skip


def flat_images(g: Graph, image: Value) -> Value:
    """Give an image a single spatial axis."""
    return reshape(g, image, (*image.shape[:2], math.prod(image.shape[2:])))


def seen(g: Graph, image: Value, readings: Sequence[Reading], *, pads_last: bool = False) -> Value:
    """Lay what the taps see of an image side by side: (positions, taps and channels).

    Zeros are added before channels become the last axis, or behind that, where rows are longer.
    """
    batch, channels = image.shape[:2]
    before, after = [r.before for r in readings], [r.after for r in readings]
    perm = [0, *range(2, image.rank), 1]
    if pads_last:
        image = pad(g, transpose(g, image, perm), (0, *before, 0), (0, *after, 0))
    else:
        image = transpose(g, pad(g, image, (0, 0, *before), (0, 0, *after)), perm)
    sizes = image.shape[1:-1]
    positions = math.prod(len(r.first) for r in readings)
    taps = math.prod(len(r.offsets) for r in readings)
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    # Elements are numbered as one axis: where a line starts, and what is read from there.
    lines = np.asarray(readings[0].first) * strides[0]
    within = _sums([r.first for r in readings[1:]], strides[1:])
    offsets = _sums([r.offsets for r in readings], strides)
    if taps > 1 or not np.array_equal(np.add.outer(lines, within).ravel(), np.arange(math.prod(sizes))):
        # Where the sum is large it is made when the step runs, for the file's sake.
        terms = (lines[:, None, None], np.add.outer(within, offsets)[None])
        index = g.op("Add", *(g.constant(term.astype(np.int32)) for term in terms))
        flat = reshape(g, image, (batch, math.prod(sizes), channels))
        image = g.op("Gather", flat, index, axis=1)
    return reshape(g, image, (batch * positions, taps * channels))


def seen_in_place(g: Graph, image: Value, readings: Sequence[Reading]) -> Value:
    """Lay what the taps see side by side, channels first: (batch, channels and taps, positions)."""
    batch, channels = image.shape[:2]
    before, after = ([0, 0, *ends] for ends in ([r.before for r in readings], [r.after for r in readings]))
    image = pad(g, image, before, after)
    sizes = image.shape[2:]
    positions = math.prod(len(r.first) for r in readings)
    taps = math.prod(len(r.offsets) for r in readings)
    first, offsets = numbered(readings, sizes)
    flat = flat_images(g, image)
    if taps > 1 or not np.array_equal(first, np.arange(math.prod(sizes))):
        terms = (offsets[:, None], first[None])
        index = g.op("Add", *(g.constant(term.astype(np.int32)) for term in terms))
        flat = g.op("Gather", flat, index, axis=2)
    return reshape(g, flat, (batch, channels * taps, positions))


def numbered(
    readings: Sequence[Reading], sizes: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the elements of an image where each position begins, and how far from there taps read."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return _sums([r.first for r in readings], strides), _sums([r.offsets for r in readings], strides)


def _sums(numbers: Sequence[Sequence[int]], factors: Sequence[int]) -> NDArray[np.int64]:
    """Sum one number of each list times its factor, in every combination."""
    terms = [np.asarray(each) * factor for each, factor in zip(numbers, factors, strict=True)]
    return fold(np.add.outer, terms, np.zeros((), np.int64)).ravel()


def selected(g: Graph, image: Value, axes: Sequence[Axis]) -> Value:
    """Lay what the taps see side by side, as weights lie: (positions, channels and taps).

    By a product with zeros and ones for each position, which of small images takes less than to gather
    rows of channels and to transpose what they are.
    """
    batch, channels = image.shape[:2]
    which = selection(axes)
    flat = reshape(g, image, (batch, 1, channels, which.shape[1]))
    product = g.op("MatMul", flat, g.constant(which[None].astype(image.numpy_dtype)))
    return reshape(g, product, (batch * which.shape[0], channels * which.shape[2]))


def unfolded(g: Graph, image: Value, axes: Sequence[Axis]) -> Value:
    """Lay what the taps see side by side, as weights lie: (batch, channels and taps, positions by axis).

    Axis by axis, by convolutions of each channel with zeros and ones.
    """
    for number, axis in enumerate(axes):
        if (axis.taps, axis.stride, axis.padding, axis.size) == (1, 1, 0, axis.result):
            continue
        along = partial(_along, len(axes), number)
        channels, after = image.shape[1], axis.of_input(turned=False).after
        ones = np.tile(np.eye(axis.taps, dtype=image.numpy_dtype), (channels, 1))
        image = g.op(
            "Conv",
            image,
            g.constant(ones.reshape(channels * axis.taps, 1, *along(axis.taps, 1))),
            strides=along(axis.stride, 1),
            dilations=along(axis.dilation, 1),
            pads=[*along(axis.padding, 0), *along(after, 0)],
            group=channels,
        )
    return image


def _along(count: int, axis: int, number: int, others: int) -> list[int]:
    """Give a number for each of so many axes: the same for all but one."""
    return [number if i == axis else others for i in range(count)]


def is_small(axes: Sequence[Axis]) -> bool:
    """Whether what the taps read is rather selected than gathered."""
    return selection_size(axes) <= _FEW


def selection_size(axes: Sequence[Axis]) -> int:
    """Count the zeros and ones by which what the taps read is selected."""
    return math.prod(axis.size * axis.result * axis.taps for axis in axes)


def selection(axes: Sequence[Axis]) -> NDArray[np.bool_]:
    """Say which element each tap reads: (positions, elements, taps); those of zeros around the image none."""
    mask = np.ones((1, 1, 1), bool)
    for axis in axes:
        first = np.arange(axis.result)[:, None, None] * axis.stride - axis.padding
        own = first + np.arange(axis.taps) * axis.dilation == np.arange(axis.size)[:, None]
        mask = np.kron(mask, own)
    return mask


def columns_swapped(g: Graph, rows: Value, outer: int) -> Value:
    """Turn (positions, taps and channels) into (positions, channels and taps), as weights lie, or back.

    `outer`: how many there are of what comes first: taps, or channels.
    """
    positions, width = rows.shape
    apart = reshape(g, rows, (positions, outer, width // outer))
    return reshape(g, transpose(g, apart, [0, 2, 1]), (positions, width))
