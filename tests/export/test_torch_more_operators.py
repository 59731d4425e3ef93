"""Operations that fewer models use, against torch eager: the loss and every gradient."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import (
    TOLERANCE,
    Function,
    feeds_of,
    replayed,
    run,
    session,
    weighted_sum,
    with_masks,
    worst,
    worst_deviation,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from campo_onnx.errors import IndexOutOfRangeError, UnsupportedModelError
from campo_onnx.export.torch import export_training_step
from campo_onnx.training.session import TrainingSession

SCALES, ZEROS = torch.tensor([0.05, 0.1, 0.3]), torch.tensor([-5, 0, 9], dtype=torch.int32)
PLACES = torch.tensor([[0, 2, 1], [1, 1, 1], [2, 0, 0], [0, 0, 1]])
POWERS = 2.0 ** torch.arange(-10, 10).reshape(4, 5)
UNPOOLED = 8 * torch.arange(6).reshape(1, 2, 3) + torch.zeros(2, 3, 1, 1, 1, dtype=torch.int64)
GRID = torch.rand(2, 3, 4, 2, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2


def reduced(how: str, include_self: bool) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return (x[:3] ** 2).scatter_reduce(0, PLACES, x[:, :3], how, include_self=include_self)

    return function


def written_apart(x: Any) -> Any:
    y = x.clone()
    y[PLACES[0], :, PLACES[1]] = 2.0
    y[PLACES[2], :, PLACES[1]] += x[0].mT
    first = torch.tensor(0).expand(3)
    return y.index_put((PLACES[3], first, PLACES[1]), x[:3, 1, 0], accumulate=True) * x


def index_reduced(x: Any) -> Any:
    rows, columns = PLACES[0], PLACES[1].repeat(2)[:4]
    ways = [(how, include_self) for how in ("prod", "mean", "amax", "amin") for include_self in (True, False)]
    return torch.cat(
        [(x * 2).index_reduce(0, rows, x, how, include_self=keep) for how, keep in ways]
        + [(x * 2).index_reduce(-1, columns, x, how, include_self=keep) for how, keep in ways]
    )


def sampled(**options: Any) -> Callable[[Any], Any]:
    return lambda x: F.grid_sample(x, GRID + 0 * x.sum(), **options)


def moved(x: Any) -> Any:
    """Sample an image where it says itself, so that the places have gradients too."""
    return F.grid_sample(x, torch.tanh(x[:, :, :3, :4].permute(0, 2, 3, 1) + GRID), align_corners=False)


def grouped(x: Any) -> Any:
    weights = torch.linspace(-1, 1, 3 * 8 * 4).reshape(3, 8, 4) * x[:1, :4]
    offsets = torch.tensor([2, 2, 7], dtype=torch.int32)
    if isinstance(x, torch._subclasses.FakeTensor):
        return torch.nn.functional.grouped_mm(x, weights, offs=offsets)
    return torch.cat([x[:2] @ weights[0], x[2:] @ weights[2]])


SHAPES = {1: (2, 3, 7), 2: (2, 3, 7, 5), 3: (2, 3, 4, 5, 3)}


def resampled(mode: str, rank: int, **options: Any) -> tuple[Callable[[Any], Any], tuple[int, ...]]:
    return lambda x: F.interpolate(x, mode=mode, **options), SHAPES[rank]


FIRST = torch.tensor(0)
ALONG_A_SCALAR: tuple[Callable[[Any], Any], ...] = (
    *(
        lambda s: s.sum(0),
        lambda s: s.mean(-1),
        lambda s: s.prod(0),
        lambda s: s.amax(0),
        lambda s: s.amin(-1),
    ),
    *(lambda s: s.max(0).values, lambda s: s.min(0).values, lambda s: s * s.argmax(0), lambda s: s.flip(0)),
    *(lambda s: s * s.softmax(0), lambda s: s + s.log_softmax(-1), lambda s: s.logsumexp(0)),
    *(
        lambda s: s.cumsum(0),
        lambda s: s.cumprod(0),
        lambda s: s.sort(0).values,
        lambda s: s.topk(1, 0).values,
    ),
    *(lambda s: s.kthvalue(1, 0).values, lambda s: s.median(0).values, lambda s: s.gather(0, FIRST)),
    *(lambda s: s.index_select(0, FIRST[None]), lambda s: s.scatter(0, FIRST, 2.0) + s),
    *(lambda s: s + s.scatter(0, FIRST, s * 3), lambda s: s.index_add(0, FIRST, s * 2)),
    *(lambda s: s + s.var(0, correction=0), lambda s: s * (s > 0).any(0)),
)
"""Functions along a dimension of a tensor that has none."""

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "nearest_1d": resampled("nearest", 1, size=11),
    "nearest_3d": resampled("nearest", 3, scale_factor=(2, 0.5, 1.7)),
    "nearest_exact_1d": resampled("nearest-exact", 1, scale_factor=0.6),
    "nearest_exact_2d": resampled("nearest-exact", 2, size=(13, 4)),
    "nearest_exact_3d": resampled("nearest-exact", 3, size=(6, 3, 5)),
    "linear": resampled("linear", 1, scale_factor=1.7, align_corners=False),
    "linear_corners": resampled("linear", 1, size=12, align_corners=True),
    "trilinear": resampled("trilinear", 3, scale_factor=(2, 0.5, 1.7), align_corners=False),
    "trilinear_corners": resampled("trilinear", 3, size=(6, 3, 5), align_corners=True),
    "bicubic": resampled("bicubic", 2, scale_factor=(2.3, 0.7), align_corners=False),
    "bicubic_corners": resampled("bicubic", 2, size=(13, 4), align_corners=True),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 3, 7, 4)),
    "adaptive_max_pool_1d": (lambda x: F.adaptive_max_pool1d(x, 1) * F.adaptive_max_pool1d(x, 3), (2, 4, 7)),
    "adaptive_max_pool_3d": (lambda x: F.adaptive_max_pool3d(x, (3, None, 2)), (2, 3, 7, 2, 4)),
    "bits": (lambda x: x * (((x > 0).long() * 2654435761 ^ torch.arange(10)) % 64 & 13 | 5), (4, 10)),
    "adaptive_pool_turned": (lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1), (2, 5, 4, 3)),
    "adaptive_pool_1d": (lambda x: F.adaptive_avg_pool1d(x.mT, 1) * F.adaptive_avg_pool1d(x, 2), (2, 4, 4)),
    "adaptive_pool_3d": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 1)), (2, 3, 7, 4, 5)),
    "apart": (
        lambda x: x[PLACES[0], :, PLACES[1]] + x[:, PLACES[2, :, None], 0, PLACES[3]].sum(), (4, 3, 2, 3)
    ),
    "apart_written": (written_apart, (4, 2, 3)),
    "argmin": (lambda x: x * x.argmin(1, keepdim=True) + x.argmin(), (4, 5)),
    "avg_pool_3d": (lambda x: F.avg_pool3d(x, (3, 2, 1), 2, (1, 0, 0)), (2, 3, 6, 5, 4)),
    "avg_pool_3d_ceil": (lambda x: F.avg_pool3d(x, 3, 2, ceil_mode=True), (2, 2, 6, 6, 4)),
    "bincount": (
        lambda x: x * (PLACES[0].bincount(None, 5) + PLACES[1].bincount(x.detach()[0, :3], 5)), (4, 5)
    ),
    "cdist": (lambda x: torch.cdist(x[:, :3], x[:, 3:] * 2), (2, 8, 4)),
    "cdist_of_itself": (lambda x: torch.cdist(x, x), (5, 4)),
    "cdist_1": (lambda x: torch.cdist(x[:3], x[3:], p=1.0), (8, 4)),
    "cumprod": (lambda x: x.cumprod(1), (3, 5)),
    "divided": (lambda x: x * (torch.arange(-5, 5) // 3) + (x * 5).div(2, rounding_mode="trunc"), (4, 10)),
    "eye_of_300": (lambda x: (x @ x.mT - 9 * torch.eye(300)).log_softmax(-1), (300, 4)),
    "eye_as_mask": (lambda x: (x @ x.mT).masked_fill(torch.eye(257, dtype=torch.bool), -9.0), (257, 4)),
    "eye_of_a_rectangle": (lambda x: x * torch.eye(256, 300, dtype=torch.int32), (256, 300)),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -20, 30), (4, 9)),
    "fake_quantize_by_tensors": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[:1], ZEROS[:1], -20, 30)
        + torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            x, SCALES[1:2], ZEROS[:1], torch.tensor([0]), -20, 30
        )[0],
        (4, 9),
    ),
    "fake_quantize_channels": (
        lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 1, -20, 30)
        * torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS + 0.3, 1, -20, 30), (6, 3, 2)
    ),
    "fake_quantize_learned": (
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(
            x[1:], x[0, :1].abs() / 9 + 0.02, x[0, 1:2] - 0.7, -20, 15
        )
        * torch._fake_quantize_learnable_per_channel_affine(
            x[1:], x[0].abs() / 9 + 0.02, x[0] * 3, 1, -20, 15, 0.7
        ),
        (7, 3),
    ),
    "gather_fewer": (lambda x: x.gather(1, PLACES[:2]) ** 2, (3, 5)),
    "grid_sample": (sampled(align_corners=False), (2, 3, 5, 6)),
    "grid_sample_corners": (sampled(align_corners=True), (2, 3, 5, 6)),
    "grid_sample_border": (sampled(padding_mode="border", align_corners=False), (2, 3, 5, 6)),
    "grid_sample_nearest": (sampled(mode="nearest", align_corners=False), (2, 3, 5, 6)),
    "grid_sample_moved": (moved, (2, 2, 5, 6)),
    "grouped_mm": (lambda x: grouped(x), (7, 8)),
    "gaussian_nll": (lambda x: F.gaussian_nll_loss(x[:, :3], x[:, 3:6], x[:, 6:] ** 2), (4, 9)),
    "gaussian_nll_full": (
        lambda x: F.gaussian_nll_loss(x, x * 0, x[:, :1].exp(), full=True, eps=0.5, reduction="none"), (4, 5)
    ),
    "histc": (lambda x: x[:3] * torch.histc(x, 5, -1, 1), (4, 5)),
    "reversed_difference": (lambda x: torch.rsub(x, 2.0, alpha=3) * torch.rsub(x, x * x, alpha=0.5), (4, 9)),
    "hardtanh": (lambda x: F.relu6(x * 5) + F.hardtanh(x, -0.3, 0.4), (4, 9)),
    "hard_activations": (lambda x: F.hardswish(x * 3) + F.hardsigmoid(x * 4), (4, 9)),
    "added_products": (
        lambda x: torch.addmv(x[0], x, x[1], beta=3, alpha=0.5) * torch.addbmm(x, x[None], x[None]), (4, 4)
    ),
    "along_a_scalar": (
        lambda x: torch.stack([f(x.mean() + i) for i, f in enumerate(ALONG_A_SCALAR)]), (4, 5)
    ),
    "covariances": (lambda x: torch.cov(x, correction=0) + x.cov() + torch.corrcoef(x) + x[0].cov(), (4, 9)),
    "logarithms": (lambda x: x.abs().log2() + (x**2).log10() + torch.floor(POWERS.log2()) * x, (4, 5)),
    "max_of_numbers": (
        lambda x: torch.fmax(x, x.flip(0) * 2) - torch.fmin(x.exp(), torch.tensor([1, math.nan] * 2)), (5, 4)
    ),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x * 60, 1) + x.logcumsumexp(dim=0), (5, 13)),
    "index_reduce": (index_reduced, (3, 4)),
    "max_pool_3d": (lambda x: F.max_pool3d(x, 3, 2, 1), (2, 3, 6, 5, 4)),
    "max_unpool": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) ** 2, (2, 3, 4, 6)
    ),
    "max_unpool_3d": (lambda x: F.max_unpool3d(x[:, :, :1, :2, :3], UNPOOLED, 2) ** 2, (2, 3, 2, 4, 6)),
    "median": (lambda x: x.median(1, keepdim=True)[0] * x + x.median(), (4, 6)),
    "multi_margin": (
        lambda x: F.multi_margin_loss(x, PLACES[:, 0], 2, 0.5, x.detach()[0].abs(), reduction="none")
        + F.multi_margin_loss(x[0], PLACES[0, 0]),
        (4, 3),
    ),
    "pooled_by_attention": (lambda x: torch.einsum("bt,btd->bd", x[..., 0].softmax(-1), x), (4, 9, 3)),
    "prod": (lambda x: x.prod(1) + x.prod(), (3, 4)),
    "remainder": (lambda x: torch.remainder(x * 3, -0.7) + x * (torch.arange(-4, 4) % 3), (4, 8)),
    "scatter_max": (reduced("amax", True), (4, 5)),
    "scatter_max_alone": (reduced("amax", False), (4, 5)),
    "scatter_mean_alone": (reduced("mean", False), (4, 5)),
    "scatter_min": (reduced("amin", True), (4, 5)),
    "scatter_prod": (reduced("prod", True), (4, 5)),
    "scatter_sum_alone": (reduced("sum", False), (4, 5)),
    "scatter_into": (
        lambda x: x * torch.ones(4, 5).scatter(0, PLACES, 2.5, reduce="multiply").scatter(
            1, PLACES, SCALES.expand(4, -1), reduce="add"
        ), (4, 5)
    ),
    "triangle": (lambda x: x[tuple(torch.tril_indices(5, 6, -1))] ** 2, (5, 6)),
    "trunc": (lambda x: x + (x * 3).trunc(), (4, 5)),
    "upper_triangle": (lambda x: x[tuple(torch.triu_indices(5, 6, 1))] ** 2, (5, 6)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_functions(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    module = Function(function, *shape)
    assert worst_deviation(module, weighted_sum, [torch.randn(shape)], []) < TOLERANCE


def test_an_order_is_drawn_anew_in_each_step() -> None:
    module = Function(lambda x: x[torch.randperm(12)], 12)
    step = export_training_step(module, lambda y: (y.sum(), {"drawn": y}), torch.ones(12), loss_scale=False)
    feeds = feeds_of(step, module, [torch.arange(12.0)])
    feeds["param.weight"][:] = 1
    opened = session(step)
    orders = [opened.run(["output.drawn"], feeds)[0] for _ in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["old", "new"])
def test_weight_normalization(kind: str) -> None:
    norm = nn.utils.weight_norm if kind == "old" else nn.utils.parametrizations.weight_norm
    module = nn.Sequential(norm(nn.Conv1d(3, 4, 3)), nn.Tanh(), norm(nn.Linear(6, 5), dim=1))
    assert worst_deviation(module, weighted_sum, [torch.randn(2, 3, 8)], []) < TOLERANCE


class Bags(nn.Module):
    def __init__(self, mode: str, weigh: bool, **options: Any) -> None:
        super().__init__()
        self.bags, self.weigh = nn.EmbeddingBag(20, 6, mode=mode, **options), weigh

    def forward(self, words: Any, offsets: Any = None) -> Any:
        weights = torch.linspace(-1, 1, words.numel()).reshape(words.shape) if self.weigh else None
        return self.bags(words, offsets, per_sample_weights=weights).tanh()


@pytest.mark.parametrize(
    ("mode", "weigh", "options"),
    [("mean", False, {}), ("sum", True, {}), ("max", False, {}), ("mean", False, {"padding_idx": 3})],
    ids=["mean", "weighted", "max", "padding"],
)
def test_bags_of_rows(mode: str, weigh: bool, options: dict[str, Any]) -> None:
    module, words = Bags(mode, weigh, **options), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
    assert worst_deviation(module, weighted_sum, [words.reshape(3, 4)], []) < TOLERANCE
    assert worst_deviation(module, weighted_sum, [words, torch.tensor([0, 4, 4, 9])], []) < TOLERANCE


class Recomputed(nn.Module):
    def __init__(self, times: int = 1, **options: Any) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Linear(6, 30), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(30, 6)
        )
        self.times, self.options, self.is_eager = times, options, False

    def forward(self, x: Any) -> Any:
        for _ in range(self.times):
            x = (
                self.block(x)
                if self.is_eager
                else checkpoint(self.block, x, use_reentrant=False, **self.options)
            )
        return x


@pytest.mark.parametrize("options", [{}, {"preserve_rng_state": False}], ids=["kept", "redrawn"])
def test_recomputed_dropout_has_the_mask_of_the_forward_pass(options: dict[str, Any]) -> None:
    module, x = Recomputed(**options), torch.randn(8, 6)
    model = export_training_step(module, weighted_sum, x, loss_scale=False)
    assert [node.op_type for node in model.graph.node].count("Dropout") == 2
    assert not {"RandomUniform", "Bernoulli"} & {node.op_type for node in model.graph.node}
    actual = run(with_masks(model), feeds_of(model, module, [x]))
    module.is_eager = True
    with replayed(actual, model):
        loss = weighted_sum(module(x))
    loss.backward()
    expected = {"loss": loss} | {f"grad.{n}": p.grad for n, p in module.named_parameters()}
    assert worst({n: (actual[n], t.detach().numpy()) for n, t in expected.items()}) < TOLERANCE


def test_dropout_whose_mask_is_unclear_when_it_runs_again_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="run several times under activation checkpointing"):
        export_training_step(Recomputed(times=2), weighted_sum, torch.randn(8, 6))


def test_exponential_numbers_have_their_rate_and_a_finite_logarithm() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            drawn = torch.empty_like(x).exponential_(4.0)
            return self.weight * drawn.mean() + 0 * drawn.log().sum()

    model = export_training_step(Noisy(), lambda y: y, torch.zeros(10_000), loss_scale=False)
    mean = run(model, feeds_of(model, Noisy(), [torch.zeros(10_000)]))["loss"]
    assert abs(mean - 0.25) < 0.025  # ten standard deviations


class Repeated(torch.nn.Module):
    """Rows that the batch says how often to repeat, to a length that the program says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self.layer(x).repeat_interleave(counts, 0, output_size=6).sin()


@pytest.mark.parametrize("counts", [[5, 1], [3, 1], [4, 5]])
def test_rows_repeated_to_another_length_are_an_error(counts: list[int]) -> None:
    """As in torch: neither fewer rows than that nor those that are left over may pass in silence."""
    module, x = Repeated(), torch.randn(2, 4)
    model = export_training_step(module, torch.sum, (x, torch.tensor([2, 4])), optimizer="sgd")
    state = {f"param.{name}": value.detach().numpy().copy() for name, value in module.named_parameters()}
    training = TrainingSession(model, state, settings={"lr": 0.0}, provider="cpu")
    feeds = {"input.x": x.numpy(), "input.counts": np.asarray(counts)}
    if sum(counts) == 6:
        expected = module(x, torch.tensor(counts)).sum().item()
        assert training.step(feeds).loss == pytest.approx(expected, rel=1e-5)
    else:
        with pytest.raises(IndexOutOfRangeError):
            training.step(feeds)
