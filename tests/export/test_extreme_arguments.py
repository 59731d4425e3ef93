"""Functions at arguments where a formula may cancel or overflow, signs of zero, and lists of no axes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import feeds_of, run
from torch import nn

from campo_onnx.export.torch import export_training_step

Function = Callable[[Any], Any]


class Of(nn.Module):
    """A function of a parameter."""

    def __init__(self, function: Function, x: Any) -> None:
        super().__init__()
        self.x, self.function = nn.Parameter(x.clone()), function

    def forward(self) -> Any:
        return self.function(self.x)


def exported(function: Function, x: Any) -> tuple[Any, Any]:
    """Give the result and the gradient of its sum."""
    module = Of(function, x)
    step = export_training_step(module, lambda y: (y.sum(), {"y": y}), (), loss_scale=False)
    results = run(step, feeds_of(step, module, ()))
    return results["output.y"], results["grad.x"]


def in_fp64(function: Function, x: Any) -> tuple[Any, Any]:
    module = Of(function, x.double()).double()
    y = module()
    y.sum().backward()
    return y.detach().numpy(), module.x.grad.numpy()


MARGINS = torch.tensor([-80.0, -20, -15, -10, -1, 0, 1, 10, 13, 15, 16, 18, 20, 50, 80])

PRECISE: dict[str, tuple[Function, Any]] = {
    "soft margins": (lambda x: F.soft_margin_loss(x, torch.ones(15), reduction="none"), MARGINS),
    "soft margins of the other class": (
        lambda x: F.soft_margin_loss(-x, -torch.ones(15), reduction="none"),
        MARGINS,
    ),
    "log1p of large numbers": (torch.log1p, torch.tensor([1e-9, 1e-3, 1.0, 1e8, 1e37, 3e38])),
    "gamma function beside zero": (torch.lgamma, torch.tensor([-1e-20, -1e-9, 1e-9, 1e-20])),
}


@pytest.mark.parametrize(("function", "x"), PRECISE.values(), ids=PRECISE)
def test_every_digit_that_torch_has(function: Function, x: Any) -> None:
    for ours, exact in zip(exported(function, x), in_fp64(function, x), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5)


def test_margins_beyond_what_exp_holds() -> None:
    x = torch.tensor([-1e4, -100.0, 100, 1e4])
    loss, slope = exported(lambda x: F.soft_margin_loss(x, torch.ones(4), reduction="none"), x)
    np.testing.assert_allclose(loss, [np.inf, np.inf, 0, 0], atol=1e-30)
    np.testing.assert_allclose(slope, [-1, -1, 0, 0], atol=1e-30)


def test_angles_tell_zeros_apart() -> None:
    numbers = torch.tensor([-np.inf, -2.0, -0.0, 0.0, 2.0, np.inf])
    y, x = (part.reshape(-1) for part in torch.meshgrid(numbers, numbers, indexing="ij"))
    angle, _ = exported(lambda y: torch.atan2(y, x), y)
    expected = torch.atan2(y, x).numpy()
    np.testing.assert_allclose(angle, expected, rtol=1e-6)
    assert np.array_equal(np.signbit(angle), np.signbit(expected))


def test_a_sign_goes_over_to_zero() -> None:
    y = torch.tensor([-1.0, -0.0, 0.0, 1.0])
    signed, _ = exported(lambda x: torch.copysign(x, y), torch.zeros(4))
    assert np.array_equal(np.signbit(signed), [True, True, False, False])


OF_NO_AXES: dict[str, Function] = {
    "flip": lambda x: x.flip(()),
    "flip of a list": lambda x: torch.flip(x, []),
    "sum": lambda x: x.sum(()),
    "mean": lambda x: x.mean((), keepdim=True),
    "amax": lambda x: x.amax(()),
    "var": lambda x: x.var(()),
    "vector norm": lambda x: torch.linalg.vector_norm(x, 2, ()),
    "nansum": lambda x: torch.nansum(x, ()),
    "nansum, axes kept": lambda x: x.nansum((), keepdim=True),
    "nanmean": lambda x: torch.nanmean(x, ()),
    "any": lambda x: (x > 0).any(dim=()) * x,
    "roll": lambda x: x.roll(1, ()),
    "fftn": lambda x: torch.fft.fftn(x, dim=()).real,
    "tensordot": lambda x: torch.tensordot(x, x, ([], [])),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(()),
}


@pytest.mark.parametrize("function", OF_NO_AXES.values(), ids=OF_NO_AXES)
def test_a_list_of_no_axes_means_what_it_means_in_torch(function: Function) -> None:
    x = torch.linspace(-1, 2, 12).reshape(3, 4)

    def weighted(x: Any) -> Any:
        y = function(x)
        return y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)

    for ours, exact in zip(exported(weighted, x), in_fp64(weighted, x), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6)
