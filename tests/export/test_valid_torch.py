"""Operations in uses that are valid in torch: they are exported, not met with an internal error."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import TOLERANCE, weighted_sum, worst_deviation
from torch import nn

USES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "max pool of one row": (lambda x: F.max_pool1d(x, 3, 2), (2, 12)),
    "max pool of one image": (lambda x: F.max_pool2d(x, 2), (2, 6, 6)),
    "max pool of one image, overlapping": (lambda x: F.max_pool2d(x, 3, 1, 1), (2, 6, 6)),
    "max pool of one volume": (lambda x: F.max_pool3d(x, 2), (2, 4, 4, 4)),
    "average pool of one row": (lambda x: F.avg_pool1d(x, 3, 2), (2, 12)),
    "average pool of one image": (lambda x: F.avg_pool2d(x, 2), (2, 6, 6)),
    "average pool of one image, ceiled": (lambda x: F.avg_pool2d(x, 4, 3, ceil_mode=True), (2, 6, 6)),
    "average pool of one volume": (lambda x: F.avg_pool3d(x, 2, 1), (2, 4, 4, 4)),
    "logcumsumexp before a layer": (
        lambda x: F.linear(torch.logcumsumexp(x, 1), torch.ones(3, 6), torch.ones(3)),
        (2, 5, 6),
    ),
    "index_reduce of a scalar": (
        lambda x: x.sum().index_reduce(0, torch.tensor([0]), torch.tensor(1.0), "mean") * x,
        (2, 3),
    ),
    "normalized scalar": (lambda x: torch.masked.normalize(x.sum(), 2.0, 0) + x, (2, 3)),
    "norm and variance of a scalar": (
        lambda x: torch.linalg.vector_norm(x.sum(), 3, 0) + x.sum().var(0, correction=0) + x,
        (2, 3),
    ),
    "cummax before a layer": (lambda x: F.linear(x.cummax(1)[0], torch.ones(3, 6), torch.ones(3)), (2, 5, 6)),
}


class Behind(nn.Module):
    """An operation on what a layer gives."""

    def __init__(self, function: Callable[[Any], Any], width: int) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(width, width), function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x))


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize(("function", "shape"), USES.values(), ids=USES)
def test_gradients_are_those_of_eager(function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert worst_deviation(Behind(function, shape[-1]), weighted_sum, [torch.randn(shape)], []) < TOLERANCE
