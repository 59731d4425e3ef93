"""Exported steps whose gradients cancel, since their loss tells close values apart, as emulated."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
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
from campo_onnx.optimize.plan.reason import Reason


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


class _Pool(nn.Module):
    """Mean and deviation of a sequence, by shares that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shares, self.last = nn.Linear(40, 64), nn.Linear(64, 1), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        h = self.first(x) * 0.1 + 3
        shares = self.shares(h).softmax(1).transpose(1, 2)
        mean = shares @ h
        deviation = (shares @ h**2 - mean**2 + 1e-6).sqrt()
        return self.last(torch.cat([mean, deviation], -1))[:, 0]


class _Attentive(nn.Module):
    """Mean and deviation by shares, of channels that are all far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attention = nn.Conv1d(40, 64, 5, padding=2), nn.Conv1d(64, 1, 1)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.conv(x)) + 3
        shares = self.attention(h).softmax(-1)
        mean, square = (torch.einsum("bot,bct->bc", shares, value) for value in (h, h * h))
        return self.out(torch.cat([mean, (square - mean * mean).clamp(min=1e-5).sqrt()], 1))


class _Framed(nn.Module):
    """A network that hands on the window in which its loss takes statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Picture(1)
        self.register_buffer("window", _gaussian())

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.inner(x), self.window


def _gaussian() -> Any:
    line = torch.exp(-((torch.arange(11) - 5.0) ** 2) / 4.5)
    return torch.outer(line, line)[None, None] / line.sum() ** 2


def _structural_similarity(a: Any, b: Any, window: Any = None) -> Any:
    window = _gaussian() if window is None else window
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


def _close_by_einsum() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, _, inputs, targets = _close_embeddings()
    return module, lambda pair: (1 - _cosine(*pair)).mean(), inputs, targets


def _small_angles() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, _, inputs, targets = _close_embeddings()
    return module, lambda pair: torch.acos(_cosine(*pair).clamp(-1 + 1e-6, 1 - 1e-6)).mean(), inputs, targets


def _cosine(a: Any, b: Any) -> Any:
    return torch.einsum("bd,bd->b", F.normalize(a, dim=1), F.normalize(b, dim=1))


def _close_by_bmm() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def loss(pair: Any) -> Any:
        a, b = pair
        return (1 - torch.bmm(a[:, None], b[:, :, None])[:, 0, 0] / (_norm(a) * _norm(b))).mean()

    module, _, inputs, targets = _close_embeddings()
    return module, loss, inputs, targets


def _norm(x: Any) -> Any:
    return (x * x).sum(1).sqrt()


def _similar_embeddings() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, _, inputs, targets = _close_embeddings()
    return module, lambda pair: -F.cosine_similarity(*pair, dim=1).mean(), inputs, targets


def _similar_by_norms() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, _, inputs, targets = _close_embeddings()

    def loss(pair: Any) -> Any:
        a, b = pair
        return -((a * b).sum(1) / (_norm(a) * _norm(b))).mean()

    return module, loss, inputs, targets


def _close_embeddings() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def loss(pair: Any) -> Any:
        return (1 - F.cosine_similarity(*pair, dim=1, eps=1e-6)).mean()

    x = torch.randn(64, 32)
    return _Embeddings(), loss, [x, x + 0.1 * torch.randn(64, 32)], []


def _similar_in_a_buffer() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    x = _smooth(2, 1, 48, 48)
    return _Framed(), lambda pair, b: _structural_similarity(pair[0], b, pair[1]), [x], [x]


def _pooled_by_shares() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    return _Pool(), F.cross_entropy, [torch.randn(8, 100, 40)], [torch.arange(8)]


def _pooled_by_attention() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    return _Attentive(), F.cross_entropy, [torch.randn(8, 40, 100)], [torch.arange(8)]


def _correlated_outputs() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def loss(x: Any, y: Any) -> Any:
        x, y, n = x[:, 0] + 5, y + 100, len(y)
        squares = (n * (x * x).sum() - x.sum() ** 2) * (n * (y * y).sum() - y.sum() ** 2)
        return 1 - (n * (x * y).sum() - x.sum() * y.sum()) / squares.sqrt()

    module = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    return module, loss, [torch.randn(512, 16)], [torch.randn(512)]


def _counts() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def loss(x: Any, counts: Any) -> Any:
        size = x.exp() * 500
        return ((torch.lgamma(size) - torch.lgamma(counts + size)) * counts).sum(-1).mean()

    module = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 20))
    return module, loss, [torch.randn(64, 16)], [torch.poisson(torch.rand(64, 20) * 2)]


@cache
def _learned() -> tuple[nn.Module, Any, Any]:
    """A network that has learned its labels: its gradients are as small as sigmoids are close to 0 and 1."""
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    x, labels = torch.randn(64, 64), (torch.rand(64, 8) > 0.5).float()
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(module(x), labels).backward()
        optimizer.step()
    return module, x, labels


def _learned_labels() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, x, labels = _learned()
    return module, F.binary_cross_entropy_with_logits, [x], [labels]


def _learned_rare_labels() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module, x, labels = _learned()
    rarity = torch.arange(1.0, 9.0)
    return module, lambda z, y: F.binary_cross_entropy_with_logits(z, y, pos_weight=rarity), [x], [labels]


def _learned_regions() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    def dice(z: Any, y: Any) -> Any:
        shares = torch.sigmoid(z)
        return 1 - ((2 * (shares * y).sum(0) + 1) / (shares.sum(0) + y.sum(0) + 1)).mean()

    module, x, labels = _learned()
    return module, dice, [x], [labels]


class _Units(nn.Module):
    """A network of data in units of their own, whose statistics have the shape of a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
        self.register_buffer("mean", torch.tensor([280.0, 101325.0, 5e4, 5.0, 0.5, 250.0, 2e5, 1975.0]))
        self.register_buffer("deviation", torch.tensor([10.0, 1e3, 3e3, 5.0, 0.1, 15.0, 9e4, 20.0]))

    def forward(self, x: Any) -> Any:
        return self.inner((x - self.mean) * (1 / self.deviation))


def _units_of_their_own() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    module = _Units()
    x = module.mean + module.deviation * torch.randn(256, 8)
    return module, F.mse_loss, [x], [torch.randn(256, 8)]


class _Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 100), nn.Softmax(-1))

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.inner(x), self.inner(x + 0.1 * torch.sin(9 * x)).detach()


def _consistent_shares() -> tuple[nn.Module, Callable[..., Any], list[Any], list[Any]]:
    """Two views of an example, as a mean teacher compares them: by a mean over 6,400 small differences."""
    return _Shares(), lambda pair: F.mse_loss(*pair), [torch.randn(64, 64)], []


STEPS = (
    *(_similar_pictures, _similar_in_a_buffer, _registered_pictures, _close_embeddings, _close_by_einsum),
    *(_small_angles, _close_by_bmm, _similar_embeddings, _similar_by_norms),
    *(_pooled_by_shares, _correlated_outputs, _counts),
    _units_of_their_own,
)

CASES = [("optimal", step) for step in STEPS] + [
    ("fine-grained", step)
    for step in (
        *(_close_embeddings, _close_by_einsum, _small_angles, _close_by_bmm, _similar_embeddings),
        *(_pooled_by_attention, _learned_labels, _learned_rare_labels, _learned_regions, _units_of_their_own),
    )
]


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(("strategy", "step"), CASES)
def test_loss_and_gradients_of_weights_are_those_of_fp32(
    step: Callable[[], Any], low: Precision, strategy: str
) -> None:
    _check(step, low, strategy, scale=1024.0)


def test_small_differences_meet_the_loss_scale_before_they_vanish() -> None:
    _check(_consistent_shares, Precision.FP16, "fine-grained", scale=2.0**20)


@pytest.mark.parametrize(
    "step",
    [
        _close_by_einsum,
        _close_by_bmm,
        _similar_by_norms,
        _pooled_by_attention,
        _learned_labels,
        _learned_regions,
    ],
)
def test_bf16_needs_no_loss_scale(step: Callable[[], Any]) -> None:
    _check(step, Precision.BF16, "optimal")


def _check(step: Callable[[], Any], low: Precision, strategy: str, scale: float | None = None) -> None:
    torch.manual_seed(0)
    module, loss, inputs, targets = step()
    model = export_training_step(module, loss, inputs, targets, loss_scale=scale is not None)
    free = replace(target("v100" if low is Precision.FP16 else "h100"), launch_us=1e-6, host_us=1e-6)
    lists = oplists("campo")
    options = Options(
        target=free, lists=lists, low=low, strategy=strategy, margin_us=1e12, min_gain=0.0, pads=False
    )
    optimized = optimize_model(model, options)
    scales = {} if scale is None else {"loss_scale": np.float32(scale)}
    feeds: Arrays = feeds_of(model, module, [*inputs, *targets], **scales)
    expected, actual = run(model, feeds), run(emulate(optimized.model), feeds)
    assert optimized.plan.low_nodes
    for name in ("loss", *(f"grad.{n}" for n, p in module.named_parameters() if p.ndim > 1)):
        assert relative_l2(actual[name], expected[name]) < 3 * most_drift(low), name  # products are low, too


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(32, 32)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(8, 32)
        states = []
        for step in range(4):
            h, c = self.cell(x[:, step], (h, c))
            states.append(h)
        return torch.stack(states, 1)


def test_gates_behind_a_loss_go_low() -> None:
    """A hidden state may be an output; what it is computed of is not, back through all steps."""
    batch = torch.randn(2, 8, 4, 32)
    model = export_training_step(_Recurrent(), F.mse_loss, [batch[0]], [batch[1]])
    options = Options(target=target("v100"), lists=oplists("campo"), strategy="fine-grained", margin_us=1e12)
    decisions = optimize_model(model, replace(options, min_gain=0.0)).plan.decision.values()
    gates = [d for d in decisions if d.op_type in ("Sigmoid", "Tanh")]
    assert gates
    assert not [d for d in gates if d.decided_by is Reason.ACCURACY]
