"""Behaviour that a graph cannot keep is done right or refused, and the module is left as it was."""

import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from campo_onnx.errors import CampoError, UnsupportedModelError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import TOLERANCE, weighted_sum, worst_deviation
from layers import Layer, X
from torch import nn

from campo_onnx.export.torch import export_evaluation, export_training_step


def exported(also: Callable[[Any, Any], Any], **options: Any) -> onnx.ModelProto:
    return export_training_step(Layer(also), weighted_sum, X, loss_scale=False, **options)


def grows(self: Any, y: Any) -> Any:
    self.plain = self.plain + y.detach().mean(0)
    return y * self.plain


def remembers(self: Any, y: Any) -> Any:
    self.cache = getattr(self, "cache", None)
    if self.cache is None:
        self.cache = y.detach()
    return y * self.cache


def counts(self: Any, y: Any) -> Any:
    self.count += 1
    return y * self.count


def writes(self: Any, y: Any) -> Any:
    self.plain[:1].add_(1)
    return y * self.plain


def clips(self: Any, y: Any) -> Any:
    with torch.no_grad():
        self.linear.weight.clamp_(-0.1, 0.1)
    return y


def pads_beyond_the_stride(self: Any, y: Any) -> Any:
    """ONNX Runtime takes such a graph, and fails when it runs."""
    return nn.functional.conv_transpose1d(y[None], torch.ones(4, 2, 2), output_padding=1, dilation=2)


def registers(self: Any, y: Any) -> Any:
    self.register_buffer("late", y.detach())
    return y


def pythons(self: Any, y: Any) -> Any:
    return y * random.choice([1, 2])


def numpys(self: Any, y: Any) -> Any:
    return y * np.random.rand()  # noqa: NPY002  (this is the case)


def own_dice(self: Any, y: Any) -> Any:
    return y * self.dice.random()


def decides(self: Any, y: Any) -> Any:
    return y if y.sum() > 0 else -y


def selects(self: Any, y: Any) -> Any:
    return y[y > 0].sin()


def checks(self: Any, y: Any) -> None:
    if not torch.isfinite(y).all() or (y > 1e6).any():
        raise ValueError("not finite")


def fails(self: Any, y: Any) -> Any:
    self.count, self.plain = 2, y
    self.seen.append(y)
    return y @ y


def asserts(self: Any, y: Any) -> Any:
    assert y.shape == (1,)


def untranslated(self: Any, y: Any) -> Any:
    self.plain = y.detach()
    return torch.linalg.svdvals(y[:3]) * y


class Counter:
    value = 1


def kept_by_an_object(self: Any, y: Any) -> Any:
    Counter.value += 1
    return y * Counter.value


def kept_by_a_default(self: Any, y: Any, seen: list[int] = []) -> Any:  # noqa: B006  (this is the case)
    seen.append(1)
    return y * len(seen)


def taken_from_an_iterator(self: Any, y: Any) -> Any:
    return y * next(NUMBERS)


NUMBERS = itertools.count()


def tells_the_time(self: Any, y: Any) -> Any:
    return y * time.time_ns()


def asks_the_system(self: Any, y: Any) -> Any:
    return y * os.urandom(4)[0] * random.Random().random()


class Growing(torch.autograd.Function):
    factor = 1

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        Growing.factor += 1
        return gradient * Growing.factor


def grows_in_the_backward_pass(self: Any, y: Any) -> Any:
    return Growing.apply(y)


@functools.cache
def table() -> Any:
    return torch.arange(3.0)


def caches(self: Any, y: Any) -> Any:
    return y * table()


def seeds(self: Any, y: Any) -> Any:
    torch.manual_seed(0)
    return y * torch.rand(3)


def draws_apart(self: Any, y: Any) -> Any:
    return y + torch.rand(3, generator=torch.Generator())


def swallows(self: Any, y: Any) -> Any:
    try:
        return y if y.sum() > 0 else -y
    except Exception:
        return y * 3


def assigns_data(self: Any, y: Any) -> Any:
    self.mean.data = self.mean.data + 1
    return y * self.mean


def runs_backward(self: Any, y: Any) -> Any:
    y.sum().backward(retain_graph=True)
    return y


def hooks(self: Any, y: Any) -> Any:
    self.linear.weight.register_hook(lambda gradient: gradient * 2)
    return self.linear(y)


_AGAIN = r"test_never_wrong.py:\d+ does something different when the step runs again"

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "attribute": (
        grows,
        r"forward changes plain, so the next step would be a different one.*register_buffer",
    ),
    "cache": (remembers, r"forward changes cache"),
    "counter": (counts, r"forward changes count"),
    "constant": (
        writes,
        r"test_never_wrong.py:\d+ writes into a tensor of shape \(3,\) that is not a buffer",
    ),
    "parameter": (clips, r"test_never_wrong.py:\d+ writes into the parameter 'linear.weight'"),
    "late_buffer": (registers, r"buffer 'late' is .* does not exist before"),
    "python": (pythons, r"test_never_wrong.py:\d+ draws a random number in Python"),
    "numpy": (numpys, r"test_never_wrong.py:\d+ draws a random number in Python"),
    "generator": (own_dice, r"test_never_wrong.py:\d+ draws a random number in Python"),
    "decision": (
        decides,
        r"test_never_wrong.py:\d+ .*looks at the data to decide what to do.*, else choose with torch.where",
    ),
    "selection": (selects, r"looks at the data .*ignore_index, or multiply .* by the mask and divide by"),
    "check": (checks, r"test_never_wrong.py:\d+ checks the data: .*assume='checks'"),
    "check of torch's": (
        lambda self, y: torch._check_tensor_all(y < 1e6),
        r"checks the data: .*assume='checks'",
    ),
    "failure": (fails, r"the step fails at .*test_never_wrong.py:\d+ .*RuntimeError: a and b must have same"),
    "object": (kept_by_an_object, _AGAIN),
    "default": (kept_by_a_default, _AGAIN),
    "iterator": (taken_from_an_iterator, _AGAIN),
    "time": (tells_the_time, _AGAIN),
    "system": (asks_the_system, _AGAIN),
    "backward": (grows_in_the_backward_pass, _AGAIN),
    "filled_cache": (caches, _AGAIN + r".*A cache may be filled by one run before"),
    "seed": (seeds, r"test_never_wrong.py:\d+ seeds torch's random numbers"),
    "own_generator": (draws_apart, r"test_never_wrong.py:\d+ draws from a generator of its own"),
    "swallowed": (swallows, r"test_never_wrong.py:\d+ .*looks at the data to decide"),
    "data": (assigns_data, r"forward assigns the data of 'mean'.*mean.copy_"),
    "gradient": (runs_backward, r"backward pass that adds to the gradient of 'linear.weight'"),
    "hook": (hooks, r"forward puts a hook on parameter 'linear.weight'"),
    "assertion": (asserts, r"the step fails at .*test_never_wrong.py:\d+ .*AssertionError"),
    "output_padding": (pads_beyond_the_stride, r"output_padding that is not smaller than the stride"),
    "operation": (
        untranslated,
        r"no translation for aten._linalg_svd.default \(in .*test_never_wrong.py:\d+\)",
    ),
}


def thrown(module: Any) -> Any:
    legacy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), legacy[1].tolist(), legacy[2:], module.dice.getstate()


@pytest.mark.parametrize(("also", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refusals_say_where_and_leave_the_module_as_it_was(also: Callable[..., Any], message: str) -> None:
    module = Layer(also)
    values = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    attributes, plain = set(vars(module)), module.plain
    dice = thrown(module)
    with pytest.raises(CampoError, match=message):
        export_training_step(module, weighted_sum, X, loss_scale=False)
    assert set(vars(module)) == attributes
    assert module.plain is plain
    assert torch.equal(plain, torch.ones(3))
    assert (module.count, module.seen) == (1, [])
    assert list(module._buffers) == ["mean"]
    assert all(torch.equal(values[name], tensor) for name, tensor in module.state_dict().items())
    assert all(isinstance(p, nn.Parameter) and p.grad is None for p in module.parameters())
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())
    assert thrown(module) == dice


def test_an_average_over_all_batches_is_refused_in_training_only() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))
    for assume in (None, "batch"):
        with pytest.raises(UnsupportedModelError, match=r"module '1' averages over all .*Give it a momentum"):
            export_training_step(module, weighted_sum, torch.randn(5, 4), assume=assume)
    assert len(export_evaluation(module, weighted_sum, torch.randn(5, 4)).graph.node)
    module[1].eval()
    assert worst_deviation(module, weighted_sum, [torch.randn(5, 4)], []) < TOLERANCE


def test_a_cache_that_is_filled_may_be_read() -> None:
    table.cache_clear()
    module = Layer(caches)
    module(X)
    assert worst_deviation(module, weighted_sum, [X], []) < TOLERANCE


def test_checks_pass_where_the_user_says_so() -> None:
    def asserted(self: Any, y: Any) -> Any:
        assert (y > -1e6).all().item()
        torch._check_tensor_all(y < 1e6)
        if (y < 0).all() and not (y < 1).any():
            raise ValueError
        return torch.distributions.Normal(y, y.exp()).log_prob(torch.zeros(()))

    plain = exported(lambda self, y: None)
    assert len(exported(checks, assume="checks").graph.node) == len(plain.graph.node)
    assert worst_deviation(Layer(asserted), weighted_sum, [X], [], assume="checks") < TOLERANCE
    with pytest.raises(UnsupportedModelError, match="looks at the data to decide"):
        exported(decides, assume="checks")
    with pytest.raises(UsageError, match="unknown assume 'all'"):
        exported(checks, assume="all")


def test_layers_that_are_never_dropped_need_no_decision() -> None:
    def drops(chance: float) -> Callable[..., Any]:
        return lambda self, y: y * 2 if torch.rand([]) < chance else y

    assert len(exported(drops(0.0)).graph.node) == len(exported(lambda self, y: None).graph.node)
    with pytest.raises(UnsupportedModelError, match="looks at the data"):
        exported(drops(0.1))
