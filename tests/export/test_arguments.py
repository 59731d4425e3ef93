"""Arguments of a step, and what a loss may return: nested, by name, or refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from campo_onnx.errors import UsageError

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import TOLERANCE, deviation, feeds_of, run, weighted_sum
from layers import Layer, X
from torch import nn

from campo_onnx.export.torch import export_training_step


def test_targets_by_name_go_by_name() -> None:
    def loss(y: Any, wanted: Any, *, weight: Any) -> Any:
        return ((y - wanted) ** 2 * weight).sum()

    module = nn.Linear(3, 2)
    targets = {"weight": torch.full((4, 2), 3.0), "wanted": torch.full((4, 2), 0.5)}
    model = export_training_step(module, loss, X, targets, loss_scale=False)
    feeds = feeds_of(model, module, [X, *targets.values()])
    assert run(model, feeds)["loss"] == pytest.approx(loss(module(X), **targets).item())
    with pytest.raises(UsageError, match=r"targets do not fit .*missing a required argument: 'weight'"):
        export_training_step(module, loss, X, {"wanted": X, "weights": X})


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Any, mask: Any = None, *, pair: Any, double: bool = False, how: str = "") -> Any:
        y = self.linear(x) + pair[0] * pair[1]["by"] + (pair[1]["more"] or 0)
        y = y if mask is None else y * mask
        return {"twice": y * 2 if double else y, "how": how}


def test_arguments_may_be_nested_and_hold_what_is_no_tensor() -> None:
    def loss(y: Any) -> Any:
        return weighted_sum(y["twice"]), {"shown": {"first": y["twice"][0]}, "largest": y["twice"].max()}

    pair = [torch.randn(4, 3), {"by": torch.randn(3), "more": None}]
    arguments = {"x": X, "mask": None, "pair": pair, "double": True, "how": "x"}
    module = Nested()
    model = export_training_step(module, loss, arguments, loss_scale=False)
    inputs = [v.name for v in model.graph.input if v.name.startswith("input.")]
    assert inputs == ["input.x", "input.pair.0", "input.pair.1.by"]
    out = run(model, feeds_of(model, module, [X, pair[0], pair[1]["by"]]))
    value, shown = loss(module(**arguments))
    assert float(out["loss"]) == pytest.approx(value.item(), rel=1e-5)
    assert deviation(out["output.shown.first"], shown["shown"]["first"].detach().numpy()) < TOLERANCE
    assert float(out["output.largest"]) == pytest.approx(shown["largest"].item(), rel=1e-5)
    value.backward()
    assert deviation(out["grad.linear.weight"], module.linear.weight.grad.numpy()) < TOLERANCE
    with pytest.raises(UsageError, match=r"example input 'x' is a NumPy array"):
        export_training_step(module, loss, arguments | {"x": X.numpy()})


@dataclass
class Kept:
    """An argument that torch does not look into."""

    x: Any
    rest: Any


def test_tensors_that_an_argument_keeps_to_itself_are_no_constants() -> None:
    class Reads(Layer):
        def forward(self, kept: Any) -> Any:
            return self.linear(kept.x)

    module = Reads(lambda self, y: y)
    for kept, path in ((Kept(X, 1), r"\.x"), (Kept("x", {"more": [X]}), r"\.rest\['more'\]\[0\]")):
        message = rf"example input 'kept' is of type Kept, which keeps tensors \({path}\).*register_dataclass"
        with pytest.raises(UsageError, match=message):
            export_training_step(module, weighted_sum, (kept,))


@pytest.mark.parametrize("beside", [lambda y: (y,), lambda y: {"loss": y}, lambda y: (y, y)])
def test_what_a_loss_may_return_is_said(beside: Callable[[Any], Any]) -> None:
    with pytest.raises(
        UsageError, match=r"the loss is not a scalar but \w+. Return the scalar alone, or \(loss, {"
    ):
        export_training_step(nn.Linear(3, 3), lambda y: beside(weighted_sum(y)), X)
