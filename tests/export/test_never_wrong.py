"""What a graph cannot keep is done right or refused, and the module is left as it was."""

import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from campo_onnx.errors import CampoError, UnsupportedModelError, UsageError
from campo_onnx.training.session import TrainingSession

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F  # noqa: E402, N812
from against_torch import TOLERANCE, deviation, feeds_of, run, weighted_sum, worst_deviation  # noqa: E402
from torch import nn  # noqa: E402

from campo_onnx.export.torch import export_evaluation, export_training_step  # noqa: E402

X = torch.linspace(-1, 2, 12).reshape(4, 3)


class Layer(nn.Module):
    """A linear layer, and something else that forward does with its result."""

    def __init__(self, also: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.also = nn.Linear(3, 3), also
        self.register_buffer("mean", torch.zeros(3))
        self.plain, self.seen, self.count = torch.ones(3), [], 1
        self.dice = random.Random(0)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        made = self.also(self, y)
        return y if made is None else made


def exported(also: Callable[[Any, Any], Any], **options: Any) -> onnx.ModelProto:
    return export_training_step(Layer(also), weighted_sum, X, loss_scale=False, **options)


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
    return torch.linalg.det(y[:3]) * y


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


_AGAIN = r"test_never_wrong.py:\d+ does something else when the step runs again"

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "attribute": (grows, r"forward changes plain, and the next step would be another one.*register_buffer"),
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
    "decision": (decides, r"test_never_wrong.py:\d+ .*looks at the data to decide what to do"),
    "check": (checks, r"test_never_wrong.py:\d+ checks the data: .*assume='checks'"),
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
    "operation": (
        untranslated,
        r"no translation for aten._linalg_det.default \(in .*test_never_wrong.py:\d+\)",
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


def test_a_cache_that_is_filled_may_be_read() -> None:
    table.cache_clear()
    module = Layer(caches)
    module(X)
    assert worst_deviation(module, weighted_sum, [X], []) < TOLERANCE


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_power_iterations_move_their_vectors(norm: Any) -> None:
    """They multiply a transposed matrix with a vector, which ONNX Runtime fuses wrongly."""
    assert worst_deviation(norm(nn.Linear(3, 3)), weighted_sum, [X], []) < TOLERANCE


def test_checks_pass_where_the_user_says_so() -> None:
    def asserted(self: Any, y: Any) -> Any:
        assert (y > -1e6).all().item()
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
    given = {"x": X, "mask": None, "pair": pair, "double": True, "how": "x"}
    module = Nested()
    model = export_training_step(module, loss, given, loss_scale=False)
    inputs = [v.name for v in model.graph.input if v.name.startswith("input.")]
    assert inputs == ["input.x", "input.pair.0", "input.pair.1.by"]
    out = run(model, feeds_of(model, module, [X, pair[0], pair[1]["by"]]))
    value, shown = loss(module(**given))
    assert float(out["loss"]) == pytest.approx(value.item(), rel=1e-5)
    assert deviation(out["output.shown.first"], shown["shown"]["first"].detach().numpy()) < TOLERANCE
    assert float(out["output.largest"]) == pytest.approx(shown["largest"].item(), rel=1e-5)
    value.backward()
    assert deviation(out["grad.linear.weight"], module.linear.weight.grad.numpy()) < TOLERANCE
    with pytest.raises(UsageError, match=r"example input 'x' is a NumPy array"):
        export_training_step(module, loss, given | {"x": X.numpy()})


@dataclass
class Kept:
    """What torch does not look into."""

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
