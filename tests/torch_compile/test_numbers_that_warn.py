"""NaN comes out as NaN, and what eager draws is drawn: nothing that says something is wrong gets lost."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import compiled, distance
from torch import nn

LAYERS = 3


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 6)), function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight * x)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.max(),
        lambda y: y.min(),
        lambda y: y.amax(1),
        lambda y: y.amin((0, 1)),
        lambda y: y.max(1)[0],
        lambda y: y.min(0)[0],
        lambda y: y.median(),
        lambda y: y.median(1)[0],
        lambda y: y.norm(float("inf")),
        lambda y: y.topk(2)[0],
        lambda y: y.topk(2, 0, largest=False)[0],
        lambda y: y.sort()[0],
        lambda y: y.sort(descending=True)[0],
    ],
    ids=[
        *("max", "min", "amax", "amin", "max 1", "min 0", "median", "median 1", "norm", "topk", "least"),
        *("sort", "descending"),
    ],
)
def test_nan_comes_out_where_eager_gives_it(function: Callable[..., Any]) -> None:
    module, x = Applied(function), torch.ones(4, 6)
    eager, run = copy.deepcopy(module), compiled(module)
    torch.testing.assert_close(run(x), eager(x))
    x[2, 3] = torch.nan
    expected = eager(x)
    torch.testing.assert_close(run(x), expected, equal_nan=True)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True], ids=["plain", "both directions"])
@torch._dynamo.config.patch(allow_rnn=True)
def test_dropout_between_recurrent_layers_is_eagers(kind: Any, both: bool) -> None:
    settings = {"batch_first": both, "bidirectional": both}
    module, x = kind(4, 5, num_layers=LAYERS, dropout=0.5, **settings), torch.randn(6, 3, 4)
    eager, run = copy.deepcopy(module), compiled(module)
    outputs = []
    for one in (run, eager):
        torch.manual_seed(1)
        y, last = one(x)
        (y.sin().sum() + (last[0] if kind is nn.LSTM else last).cos().sum()).backward()
        outputs.append(y.detach())
    assert distance(outputs[:1], outputs[1:]) < 1e-6
    assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < 1e-5
    torch.manual_seed(2)
    assert distance([run(x)[0].detach()], outputs[1:]) > 0.01  # masks, not the mean
