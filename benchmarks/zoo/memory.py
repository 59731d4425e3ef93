"""Batches of the zoo's models that fit on a device.

What the arena of ONNX Runtime holds after two steps was counted on stubs of CUDA (``tests/cuda``), where the
sizes that it asks for are real (``python -m benchmarks.zoo.held``). FP32, without memory patterns, weight
gradients of convolutions as products, the update in the graph; a mixed graph holds less.
"""

from collections.abc import Iterable
from dataclasses import dataclass

USABLE = 0.9
"""Share of a device's memory that graphs get: CUDA, cuDNN's workspaces and fragments take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Memory that a model's step held."""

    batch: int
    gb: float

    def at(self, batch: int) -> float:
        """Gigabytes with another batch: activations are nearly all of it."""
        return self.gb * batch / self.batch


HELD = {
    "alexnet": Held(batch=256, gb=6.2),
    "vgg16": Held(batch=64, gb=20.6),
    "resnet50": Held(batch=256, gb=33.0),
    "inception3": Held(batch=256, gb=43.7),
    "dcgan_generator": Held(batch=256, gb=1.4),
    "dcgan_discriminator": Held(batch=256, gb=1.5),
    "bert_large": Held(batch=10, gb=20.9),
}


def fitting_batch(
    model: str, candidates: Iterable[int], *, memory_gb: float, together: int = 1
) -> int | None:
    """Choose the largest of some batches that fits on a device; None where none does.

    Examples
    --------
    >>> fitting_batch("resnet50", [256, 128, 64], memory_gb=80)
    256
    >>> fitting_batch("resnet50", [256, 128, 64], memory_gb=80, together=3)
    128
    """
    fits = [n for n in candidates if together * HELD[model].at(n) <= USABLE * memory_gb]
    return max(fits, default=None)
