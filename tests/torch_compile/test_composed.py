"""Operations that ONNX lacks, against torch in FP64: results and gradients."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_eager import compiled, distance, weighted
from torch import nn

from campo_onnx.export import special
from campo_onnx.export.torch import composed

ROUNDING = 1e-6
LABELS = torch.arange(4)
LEFT_OUT = torch.tensor([[0, 2, -1, 0, 4, 1]] * 2 + [[5, 4, 3, 2, 1, 0], [-1, 0, 0, 0, 0, 0]])
MASK = torch.tensor([[True, False, True, False, True, True]] * 2 + [[False] * 6, [True] * 3 + [False] * 3])


def chunks(x: Any) -> Any:
    """Cut rows into chunks of which each shares half with the next, as Longformer does."""
    x = x.reshape(2, 3, 4)
    return x.as_strided((2, 5, 4), (12, 2, 1))


def unpooled(image: Any, pooled: tuple[Any, Any]) -> Any:
    """Write what a pool found to where it was found."""
    values, places = (part.flatten() for part in pooled)
    return torch.zeros(image.numel(), dtype=values.dtype).index_add(0, places, values.sin())


def sampled(image: Any, **options: Any) -> Any:
    """Sample at places of which some lie outside, and which have gradients themselves."""
    rank = image.dim() - 2
    grid = (image.reshape(-1)[: 6 * rank].reshape(1, 3, *[1] * (rank - 2), 2, rank) * 2).sin() * 1.3 - 0.2
    return F.grid_sample(image, grid, **{"align_corners": False, **options})


class Applied(nn.Module):
    """A function of positive numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 6).abs() + 0.3), function

    def forward(self) -> Any:
        return self.function(self.weight)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "eye": lambda w: (torch.eye(300, 6)[:4] * w).sin(),
    "logcumsumexp": lambda w: w.logcumsumexp(1),
    "order of masks": lambda w: ((w > 1) < (w < 2)).float() * w,
    "larger mask": lambda w: torch.maximum(w > 1, w < 0.5).float() * w,
    "lgamma": lambda w: w.lgamma(),
    "digamma": lambda w: w.digamma(),
    "types joined": lambda w: torch.cat([w, torch.ones(4, 2, dtype=torch.int64)], 1).sin(),
    "types stacked": lambda w: torch.stack([w, torch.ones(4, 6, dtype=torch.int32)]).sin(),
    "shifts": lambda w: w * ((torch.arange(6) - 3 << 2) + (torch.arange(6) - 3 >> 1)),
    "shifts by tensors": lambda w: w * torch.bitwise_left_shift(torch.arange(6), torch.arange(6)),
    "pdist": F.pdist,
    "multilabel_margin": lambda w: F.multilabel_margin_loss(w, LEFT_OUT),
    "multilabel_margin of each": lambda w: F.multilabel_margin_loss(w, LEFT_OUT, reduction="none"),
    "multi_margin": lambda w: F.multi_margin_loss(w, LABELS),
    "unfold": lambda w: w.unfold(1, 4, 1).sin(),
    "hypot": lambda w: torch.hypot(w, w.flip(0) - 1),
    "atan2": lambda w: torch.atan2(w - 1, w.flip(0) - 1),
    "kthvalue": lambda w: w.kthvalue(2)[0],
    "dist": lambda w: torch.dist(w, w.flip(0)),
    "masked_scatter": lambda w: w.masked_scatter(MASK, (w * w).flip(0).flatten()[:11]).sin(),
    "masked_scatter of a row": lambda w: w.masked_scatter(MASK[0], w.exp()),
    "exp2": lambda w: w.exp2() + torch.logaddexp2(w, w.flip(0)),
    "copysign": lambda w: torch.copysign(w, w.detach() - 1) * torch.copysign(w, -0.0),
    "bilinear": lambda w: F.bilinear(w, w.flip(0), w.flatten().repeat(3)[:72].reshape(2, 6, 6)),
    "as_strided": lambda w: (w * w).as_strided((2, 3, 6), (12, 3, 1)).sin(),
    "as_strided, turned": lambda w: (w * w).T.as_strided((3, 5), (6, 2), 3).sin(),
    "as_strided, viewed": lambda w: (w * w).as_strided((4, 3, 2), (2, 8, 1)).transpose(0, 1).view(3, 8).sin(),
    "chunks that overlap": lambda w: chunks(w.exp()).sin(),
    "gaussian_nll": lambda w: F.gaussian_nll_loss(w, w.detach() + 1, w.exp()),
    "running extremes": lambda w: w.cummax(1)[0] * (w * w).cummin(0)[0] * w.cummin(1)[1],
    "erfc": lambda w: w.erfc() + (-w).erfc() + torch.special.erfcx(w - 1),
    "erfinv": lambda w: w.tanh().erfinv() + torch.special.ndtri(w.sigmoid()),
    "log_ndtr": lambda w: torch.special.log_ndtr(w * 4 - 5),
    "bessel": lambda w: w.i0() * torch.special.i1(-w) + torch.special.i0e(w * 9) / torch.special.i1e(w * 9),
    "angle of a number": lambda w: (w - 1).angle() * w,
    "rounded to tenths": lambda w: w.round(decimals=1) * w + (w * 9e2).round(decimals=-2) * w,
    "nanmedian": lambda w: torch.where(w > 1, math.nan, w).nanmedian(1)[0] + w.nanmedian(),
    "adaptive pool with places": lambda w: unpooled(w, F.adaptive_max_pool2d(w[None], (3, 4), True)),
    "adaptive pool of volumes": lambda w: unpooled(
        w.reshape(2, 3, 4), F.adaptive_max_pool3d(w.reshape(1, 2, 3, 4), (2, 2, 3), True)
    ),
    "signbit": lambda w: w * (w - 1).signbit(),
    "rows repeated": lambda w: w.repeat_interleave(LABELS, 0, output_size=6).sin(),
    "antialiased": lambda w: F.interpolate(w[None, None], (3, 2), mode="bilinear", antialias=True),
    "antialiased, cubic": lambda w: F.interpolate(
        w[None, None], scale_factor=(0.6, 1.5), mode="bicubic", antialias=True
    ),
    "sampled, cubic": lambda w: sampled(w[None, None], mode="bicubic"),
    "sampled, cubic, to the border": lambda w: sampled(
        w[None, None], mode="bicubic", padding_mode="border", align_corners=True
    ),
    "volume sampled": lambda w: sampled(w.reshape(1, 2, 3, 2, 2), align_corners=True),
    "volume sampled at the border": lambda w: sampled(w.reshape(1, 1, 2, 3, 4), padding_mode="border"),
    "volume sampled, nearest": lambda w: sampled(w.reshape(1, 1, 2, 3, 4), mode="nearest"),
}


@pytest.mark.parametrize("function", OPERATIONS.values(), ids=list(OPERATIONS))
def test_values_and_gradients(function: Callable[[Any], Any]) -> None:
    module = Applied(function)
    exact = copy.deepcopy(module).double()
    actual, expected = compiled(module)(), exact()
    weighted(actual).backward()
    weighted(expected).backward()
    assert actual.dtype == torch.float32
    assert distance([actual.detach()], [expected.detach()]) < ROUNDING
    assert distance([module.weight.grad], [exact.weight.grad]) < 10 * ROUNDING


def test_too_few_elements_for_a_mask_are_an_error() -> None:
    short = Applied(lambda w: w.masked_scatter(MASK, w[0, :5]))
    with pytest.raises(IndexError):
        compiled(short)()


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (composed._lgamma, torch.lgamma),
        (composed._digamma, torch.digamma),
        (lambda x: composed._polygamma(1, x), lambda x: torch.polygamma(1, x)),
    ],
    ids=["lgamma", "digamma", "trigamma"],
)
def test_the_gamma_function(ours: Callable[[Any], Any], torchs: Callable[[Any], Any]) -> None:
    x = torch.cat([torch.linspace(-9.9, 40, 1001), torch.tensor([1e-6, 1e4, 1e-3, 1.0, 2.0, 0.5])]).double()
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    ["erfc", "erfinv", "i0", "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_ndtri"],
)
def test_special_functions(name: str) -> None:
    tiny = 10.0 ** torch.arange(-30, 0, dtype=torch.float64)
    inner = torch.cat(
        [torch.linspace(-40, 40, 1601).double(), tiny, -tiny, torch.tensor([math.inf, math.nan])]
    )
    places = {"erfinv": inner.clamp(-1, 1) * (1 - 1e-7), "special_ndtri": torch.cat([tiny, 1 - tiny[20:]])}
    x = torch.cat([places.get(name, inner), torch.tensor([0.0, 1.0, -1.0, 2.0, -math.inf])])
    operation = getattr(torch.ops.aten, name).default
    torch.testing.assert_close(
        composed.OPERATIONS[operation](x), operation(x), rtol=1e-8, atol=1e-300, equal_nan=True
    )


def test_angles_in_every_quadrant() -> None:
    ends = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0])
    y, x = ends.repeat_interleave(5), ends.repeat(5)
    torch.testing.assert_close(special.atan2(torch, y, x), torch.atan2(y, x))
    torch.testing.assert_close(composed._hypot(y * 1e30, x * 1e30), torch.hypot(y * 1e30, x * 1e30))
