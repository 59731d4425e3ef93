"""Exported steps whose loss is a difference of statistics that lie close together, as emulated."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import Arrays, feeds_of, run
from torch import nn

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.emulation.drift import most_drift
from campo_onnx.emulation.numerics import emulate, relative_l2
from campo_onnx.export.torch import export_training_step


class _Picture(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.last(F.relu(self.first(x))))


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, *batches: Any) -> tuple[Any, ...]:
        return tuple(self.last(torch.tanh(self.first(x))) + 2 for x in batches)


def _structural_similarity(a: Any, b: Any) -> Any:
    line = torch.exp(-((torch.arange(11) - 5.0) ** 2) / 4.5)
    window = torch.outer(line, line)[None, None] / line.sum() ** 2
    mean_a, mean_b, square_a, square_b, product = (F.conv2d(x, window) for x in (a, b, a * a, b * b, a * b))
    variances = square_a - mean_a**2 + square_b - mean_b**2
    means = mean_a**2 + mean_b**2
    top = (2 * mean_a * mean_b + 1e-4) * (2 * (product - mean_a * mean_b) + 9e-4)
    return 1 - (top / ((means + 1e-4) * (variances + 9e-4))).mean()


def _correlation(a: Any, b: Any) -> Any:
    window = torch.ones(1, 1, 9, 9) / 81
    mean_a, mean_b, square_a, square_b, product = (F.conv2d(x, window) for x in (a, b, a * a, b * b, a * b))
    variances = (square_a - mean_a * mean_a) * (square_b - mean_b * mean_b)
    return -((product - mean_a * mean_b) ** 2 / (variances + 1e-5)).mean()


def _smooth(*shape: int) -> Any:
    return F.avg_pool2d(torch.rand(*shape), 5, 1, 2)


def _similar_pictures() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    return _Picture(3), _structural_similarity, [torch.rand(2, 3, 48, 48)], [_smooth(2, 1, 48, 48)]


def _registered_pictures() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    return _Picture(2), _correlation, [_smooth(2, 2, 40, 40)], [_smooth(2, 1, 40, 40)]


def _close_embeddings() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def loss(pair: Any) -> Any:
        return (1 - F.cosine_similarity(*pair, dim=1, eps=1e-6)).mean()

    x = torch.randn(64, 32)
    return _Embeddings(), loss, [x, x + 0.1 * torch.randn(64, 32)], []


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("step", [_similar_pictures, _registered_pictures, _close_embeddings])
def test_loss_and_gradients_of_weights_are_those_of_fp32(step: Callable[[], Any], low: Precision) -> None:
    module, loss, inputs, targets = step()
    model = export_training_step(module, loss, inputs, targets)
    free = replace(target("v100" if low is Precision.FP16 else "h100"), launch_us=1e-6, host_us=1e-6)
    options = Options(target=free, lists=oplists("campo"), low=low, margin_us=1e12, min_gain=0.0, pads=False)
    optimized = optimize_model(model, options)
    feeds: Arrays = feeds_of(model, module, [*inputs, *targets], loss_scale=np.float32(1024))
    expected, actual = run(model, feeds), run(emulate(optimized.model), feeds)
    assert optimized.plan.low_nodes
    for name in ("loss", *(f"grad.{n}" for n, p in module.named_parameters() if p.ndim > 1)):
        assert relative_l2(actual[name], expected[name]) < 3 * most_drift(low), name  # products are low, too
