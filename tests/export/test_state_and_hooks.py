"""Buffers that forward moves, hooks, autocast: what of a module's state takes part in its step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.training.session import TrainingSession

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import TOLERANCE, deviation, feeds_of, run, weighted_sum, worst_deviation
from layers import Layer, X
from torch import nn

from campo_onnx.export.torch import export_evaluation, export_training_step


@pytest.mark.parametrize("scale", [False, True])
def test_hooks_on_parameters_see_the_unscaled_gradient(scale: bool) -> None:
    module = nn.Linear(3, 3)
    module.weight.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    module.weight.register_hook(lambda gradient: gradient * 3)
    model = export_training_step(module, weighted_sum, X, loss_scale=scale)
    out = run(model, feeds_of(model, module, [X], **({"loss_scale": np.float32(64)} if scale else {})))
    weighted_sum(module(X)).backward()
    assert deviation(out["grad.weight"], module.weight.grad.numpy()) < TOLERANCE
    with pytest.raises(UsageError, match="hook on parameter 'weight' would get a scaled gradient"):
        export_training_step(module, weighted_sum, X, unscale=False)
    module.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(UnsupportedModelError, match="'bias' has a hook that runs after"):
        export_training_step(module, weighted_sum, X)


def test_hooks_on_modules_run() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    module[1].register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 2,))
    module[0].register_forward_hook(lambda _, inputs, y: y + 1)
    assert worst_deviation(module, weighted_sum, [X], []) < TOLERANCE


def moved(self: Any, y: Any) -> Any:
    self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
    return y * self.mean


def moved_in_place(self: Any, y: Any) -> Any:
    self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y * self.mean


@pytest.mark.parametrize("also", [moved, moved_in_place])
def test_buffers_that_forward_assigns_are_updated(also: Callable[..., Any]) -> None:
    module = Layer(also)
    nn.init.ones_(module.mean)
    model = export_training_step(module, weighted_sum, X, loss_scale=False)
    out = run(model, feeds_of(model, module, [X]))
    assert weighted_sum(module(X)).item() == pytest.approx(float(out["loss"]), rel=1e-5)
    assert deviation(out["buf_out.mean"], module.mean.numpy()) < TOLERANCE


def test_what_nothing_reads_may_be_left_on_the_module() -> None:
    def remember(self: Any, y: Any) -> None:
        self.plain = y.detach()
        self.seen.append(y)
        self.count += 1

    module = Layer(remember)
    assert worst_deviation(module, weighted_sum, [X], []) < TOLERANCE


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_power_iterations_move_their_vectors(norm: Any) -> None:
    """They multiply a transposed matrix with a vector, which ONNX Runtime fuses wrongly."""
    assert worst_deviation(norm(nn.Linear(3, 3)), weighted_sum, [X], []) < TOLERANCE


class HalfWay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            return self.last(torch.relu(self.norm(self.first(x))))


def test_a_step_is_exported_in_full_precision_under_autocast() -> None:
    module, x, target = HalfWay(), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    with torch.autocast("cpu", torch.bfloat16):
        model = export_training_step(module, F.cross_entropy, x, target, loss_scale=False)
        assert torch.is_autocast_enabled("cpu")
    out = run(model, feeds_of(model, module, [x, target]))
    module.forward = lambda x: module.last(torch.relu(module.norm(module.first(x))))
    loss = F.cross_entropy(module(x), target)
    loss.backward()
    assert deviation(out["loss"], loss.detach().numpy()) < TOLERANCE
    assert deviation(out["grad.first.weight"], module.first.weight.grad.numpy()) < TOLERANCE
    with torch.autocast("cpu", torch.bfloat16):
        assert module.first(x).dtype == torch.bfloat16  # it works again
    assert not torch.is_autocast_enabled("cpu")


def test_a_session_refuses_gradients_without_an_update_though_statistics_move() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = export_training_step(module, weighted_sum, X)
    assert "buf_out.1.running_mean" in {value.name for value in model.graph.output}
    with pytest.raises(UsageError, match="gives gradients and updates no parameter"):
        TrainingSession(model, {}, provider="cpu")


def test_an_evaluation_runs_on_the_state_of_training() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))
    module[2].eval()
    model = export_evaluation(module, lambda y, t: (F.mse_loss(y, t), {"logits": y}), X[:2], X[:2, :2])
    assert [child.training for child in module] == [True, True, False, True]
    assert [value.name for value in model.graph.output] == ["loss", "output.logits"]
    out = run(model, feeds_of(model, module, [X[:2], X[:2, :2]]))
    y = module.eval()(X[:2])
    assert deviation(out["output.logits"], y.detach().numpy()) < TOLERANCE
    assert float(out["loss"]) == pytest.approx(F.mse_loss(y, X[:2, :2]).item(), rel=1e-5)
