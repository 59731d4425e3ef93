"""Training through the backend computes what eager does: loss, every gradient, running statistics, masks."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import (
    Attention,
    Encoder,
    convolutions,
    error_against_fp64,
    perceptron,
    worst_of_steps,
)

ROUNDING = 2e-6


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: perceptron(0.0), (8, 4)),
        (Encoder, (4, 7, 32)),
        (Attention, (4, 6, 16)),
        (convolutions, (4, 3, 12, 12)),
    ],
    ids=["perceptron", "encoder", "fused attention", "convolutions"],
)
def test_gradients_are_as_exact_as_torchs(module: Any, shape: tuple[int, ...]) -> None:
    ours, torchs = error_against_fp64(module(), [torch.randn(shape)])
    assert ours <= 3 * torchs


@pytest.mark.parametrize(
    ("module", "shape"),
    [(perceptron, (4,)), (lambda: Encoder(0.1), (7, 32)), (convolutions, (3, 12, 12))],
    ids=["dropout", "encoder with dropout", "running statistics"],
)
def test_steps_of_changing_batch_sizes_match_eager(module: Any, shape: tuple[int, ...]) -> None:
    batches = [[torch.randn(size, *shape)] for size in (8, 8, 5, 7, 8, 5)]
    assert worst_of_steps(module(), batches) < ROUNDING


@pytest.mark.parametrize(("precision", "bits"), [("fp16", 11), ("bf16", 8)])
def test_low_precision_is_kept_between_the_passes(precision: str, bits: int) -> None:
    batches = [[torch.randn(8, 7, 32)] for _ in range(2)]
    error = worst_of_steps(Encoder(), batches, device="h200", strategy="nvidia-amp", precision=precision)
    assert 2.0 ** (-bits - 5) < error < 2.0 ** (4 - bits)
