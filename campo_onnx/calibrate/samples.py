"""Shapes to calibrate on: layers of real networks, resized over orders of magnitude.

The Campo paper takes its inputs from layers of 11 MLPerf networks at many batch sizes. The same is
done here from public layer shapes: a layer is drawn, its batch set for a size drawn evenly on a
log scale, and every other sample is nudged off the multiples of 8 that tensor cores want.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from campo_onnx.calibrate.layers import FURTHER_ON_CPU, FURTHER_ON_GPU, GENERATORS, SAMPLED_OPS, Generator
from campo_onnx.errors import UsageError
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, Signature, make_signature

_TRIES = 200

SMALLEST_ELEMENTS = 512
"""Elements of the smallest nodes that are drawn: nothing is learned of smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Number and size of an op's samples."""

    count: int
    largest_bytes: float
    largest_flops: float
    seed: int = 0  # of the generator; the same seed gives the same samples, whatever other ops are drawn


_MORE_PRODUCTS = 3


def samples_of(label: str, sampling: Sampling, *, is_gpu: bool | None = None) -> tuple[Signature, ...]:
    """Draw FP32 nodes of one op, all different.

    `is_gpu`: for as many of each further kind that matters on a GPU, or on a CPU, behind the usual one; of
    that a CPU, whose kernels differ most by shape, gets three times as many for products and convolutions.
    """
    if label not in GENERATORS:
        raise UsageError(
            f"no samples can be drawn of {label!r}", remedy=f"Choose among: {', '.join(SAMPLED_OPS)}."
        )
    further = () if is_gpu is None else (FURTHER_ON_GPU if is_gpu else FURTHER_ON_CPU).get(label, ())
    more = _MORE_PRODUCTS if further and not is_gpu else 1
    dense = _drawn(label, GENERATORS[label], replace(sampling, count=sampling.count * more))
    kinds = (replace(sampling, seed=sampling.seed + 1 + i) for i in range(len(further)))
    return (*dense, *(node for kind in zip(further, kinds, strict=True) for node in _drawn(label, *kind)))


def _drawn(label: str, draw: Generator, sampling: Sampling) -> tuple[Signature, ...]:
    generator = np.random.default_rng([sampling.seed, zlib.crc32(label.encode())])
    drawn: dict[str, Signature] = {}
    for _ in range(sampling.count * _TRIES):
        if len(drawn) == sampling.count:
            break
        largest = sampling.largest_bytes / Precision.FP32.itemsize_bytes / 2
        target = math.exp(generator.uniform(math.log(SMALLEST_ELEMENTS), math.log(largest)))
        signature = draw(generator, target)(OpKey.parse(label))
        if signature.nbytes <= sampling.largest_bytes and work_of(signature).flops <= sampling.largest_flops:
            drawn.setdefault(signature.key, signature)
    return tuple(drawn.values())


def cast_samples(count: int, largest_elements: int, low: Precision) -> Iterator[tuple[int, Signature]]:
    """Casts in both directions over log-spaced numbers of elements, as the paper sweeps them."""
    for size in np.geomspace(SMALLEST_ELEMENTS, largest_elements, count):
        elements = round(size)
        for source, target in ((FLOAT, low.onnx_dtype), (low.onnx_dtype, FLOAT)):
            yield (
                elements,
                make_signature(
                    OpKey("", "Cast"),
                    inputs=[(source, (elements,))],
                    outputs=[(target, (elements,))],
                    attributes={"to": target},
                ),
            )
