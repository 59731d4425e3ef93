"""Layers that come to the backend in a form of their own: with checks of the data, or step by step."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_eager import compiled, worst_of_steps
from torch import nn

from campo_onnx.integrations.torch_compile import report

ROUNDING = 2e-6


class Picked(nn.Module):
    """Rows of a weight, picked by number: whether the numbers are small enough is checked by the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, chosen: Any) -> Any:
        return (F.one_hot(chosen, 4).float() @ self.weight).exp()


@pytest.mark.parametrize("trains", [True, False])
def test_checks_of_the_data_raise_as_in_eager(trains: bool) -> None:
    module = Picked()
    good, bad = torch.tensor([0, 3, 1]), torch.tensor([0, 4, 1])
    assert worst_of_steps(module, [[good], [good.flip(0)]]) < ROUNDING
    run = compiled(module)
    with torch.set_grad_enabled(trains):
        for call in (run, module):
            with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
                call(bad)
    kinds = {graph.kind for graph in report(module).graphs}
    assert kinds == ({"training step"} if trains else {"training step", "forward pass"})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_compiled_where_torch_hands_them_over(kind: Any) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = kind(4, 6, batch_first=True, bidirectional=True), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.layer(x)[0])

    module = Recurrent()
    with torch._dynamo.config.patch(allow_rnn=True):
        assert worst_of_steps(module, [[torch.randn(3, 5, 4)]] * 2) < ROUNDING
    assert [graph.kind for graph in report(module).graphs] == ["training step"]
