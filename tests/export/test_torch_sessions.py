"""Sessions beside torch: its state dicts, its schedules, and its optimizers on the session's own memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UsageError
from campo_onnx.export.optimizers import SGD, AdamW, Momentum
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.schedules import cosine, linear, stepped
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import ParameterGroup, WeightUpdate

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn

from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.state_dict import first_state, state_dict_of

BATCH = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 5


class Network(nn.Module):
    """Tied weights, running statistics, and a parameter and a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.unread = nn.Parameter(torch.randn(3))
        self.register_buffer("note", torch.arange(4))

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.norm(self.second(torch.tanh(self.first(x))))))


def session(module: Any, update: WeightUpdate, **options: Any) -> TrainingSession:
    model = export_training_step(module, F.cross_entropy, *BATCH, unscale=False)
    options = {"settings": {"lr": 0.05}} | options
    return TrainingSession(
        model, first_state(module.state_dict(), model), update=update, provider="cpu", threads=2, **options
    )


def feeds() -> dict[str, Any]:
    return {"input.x": BATCH[0].numpy(), "target.target": BATCH[1].numpy()}


def eager_steps(module: Any, optimizer: Any, count: int, scheduler: Any = None) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(module(BATCH[0]), BATCH[1]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def assert_close(weights: Any, module: Any) -> None:
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(weights[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_state_dict_goes_in_and_comes_out() -> None:
    module = Network()
    training = session(module, WeightUpdate(optimizer=SGD()))
    like = {name: value.clone() for name, value in module.state_dict().items()}
    unchanged = state_dict_of(training.state(), module.state_dict())
    assert unchanged.keys() == like.keys()
    assert all(torch.equal(unchanged[name], like[name]) for name in like)
    eager_steps(module, torch.optim.SGD(module.parameters(), 0.05), 3)
    for _ in range(3):
        training.step(feeds())
    weights = state_dict_of(training.state(), module.state_dict())
    assert_close(weights, module)
    assert torch.equal(weights["second.weight"], weights["first.weight"])
    assert not torch.equal(weights["first.weight"], like["first.weight"])
    Network().load_state_dict(weights)


def test_buffers_that_are_not_persistent_come_from_the_module() -> None:
    module = nn.BatchNorm1d(6)
    module.register_buffer("running_mean", torch.zeros(6), persistent=False)
    model = export_training_step(module, lambda y: y.square().mean(), BATCH[0])
    with pytest.raises(UsageError, match=r"it lacks 'running_mean'.*the module itself"):
        first_state(module.state_dict(), model)
    state = first_state(module, model)
    assert state.keys() == {f"param.{name}" for name in ("weight", "bias")} | {
        "buf.running_mean", "buf.running_var", "buf.num_batches_tracked"
    }  # fmt: skip
    with pytest.raises(UsageError, match="this one has no running_mean"):
        state_dict_of(state, module.state_dict())
    assert state_dict_of(state, module).keys() == module.state_dict().keys()


def test_the_last_batch_of_an_epoch_has_a_session_of_its_own() -> None:
    module = Network()
    sizes = {16: session(module, WeightUpdate(optimizer=Momentum()))}
    last = [tensor[:5] for tensor in BATCH]
    model = export_training_step(module, F.cross_entropy, *last, unscale=False)
    sizes[5] = TrainingSession(
        model,
        sizes[16].state(),
        update=WeightUpdate(optimizer=Momentum()),
        settings={"lr": 0.05},
        provider="cpu",
    )
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    before = 16
    for size in (16, 5, 16, 5):
        sizes[size].load_state(sizes[before].state())
        sizes[size].step({name: value[:size] for name, value in feeds().items()})
        optimizer.zero_grad()
        F.cross_entropy(module(BATCH[0][:size]), BATCH[1][:size]).backward()
        optimizer.step()
        before = size
    assert_close(state_dict_of(sizes[before].state(), module.state_dict()), module)
    with pytest.raises(UsageError, match=r"input\.x"):
        sizes[16].step({name: value[:5] for name, value in feeds().items()})


def test_buffers_in_bfloat16_are_state() -> None:
    class Scaled(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 5)
            self.register_buffer("scale", torch.tensor([1.5, 0.1, 3, -2, 7], dtype=torch.bfloat16))
            self.register_buffer("offset", torch.tensor(0.3, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) * self.scale.float() + self.offset.float()

    module = Scaled()
    x, target = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    model = export_training_step(module, F.cross_entropy, x, target, unscale=False)
    state = first_state(module, model)
    assert sum(value.dtype.name == "bfloat16" for value in state.values()) == 2
    again = state_dict_of(state, module)
    assert all(torch.equal(again[name], value) for name, value in module.state_dict().items())


def test_a_state_dict_of_another_model_changes_nothing() -> None:
    module = Network()
    model = export_training_step(module, F.cross_entropy, *BATCH, unscale=False)
    other = nn.Sequential(nn.Linear(6, 5)).state_dict()
    with pytest.raises(UsageError, match=r"does not fit.*it lacks 'first\.weight'.*and \d more"):
        first_state(other, model)
    wide = module.state_dict() | {"head.bias": torch.zeros(7)}
    with pytest.raises(UsageError, match=r"'head\.bias' is float32\[7\], not float32\[5\]"):
        first_state(wide, model)
    low = {name: value.bfloat16() for name, value in module.state_dict().items()}
    with pytest.raises(UsageError, match=r"'first\.weight' is bfloat16\[6, 6\], not float32\[6, 6\]"):
        first_state(low, model)
    training = session(module, WeightUpdate(optimizer=SGD()))
    before = training.state()
    with pytest.raises(UsageError, match=r"no state param\.0\.weight"):
        training.load_state({"param.0.weight": np.zeros((5, 6), np.float32)})
    with pytest.raises(UsageError, match=r"this one has no first\.weight"):
        state_dict_of(before, other)
    after = training.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_state_dict_is_loaded_into_a_running_session() -> None:
    module = Network()
    training = session(module, WeightUpdate(optimizer=SGD()))
    model = export_training_step(module, F.cross_entropy, *BATCH)
    first = first_state(module.state_dict(), model)
    losses = [training.step(feeds()).loss for _ in range(3)]
    training.load_state(first)
    assert [training.step(feeds()).loss for _ in range(3)] == losses


SCHEDULES: dict[str, tuple[Callable[[int], float], Callable[[Any], Any]]] = {
    "cosine": (cosine(0.05, 8), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)),
    "cosine_warmed": (
        cosine(0.05, 8, warmup=4, floor=0.01),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, 0.25, total_iters=3),
                torch.optim.lr_scheduler.CosineAnnealingLR(o, 4, eta_min=0.01),
            ],
            [4],
        ),
    ),
    "linear": (
        linear(0.05, 8, floor=0.005),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=8),
    ),
    "stepped": (stepped(0.05, [3, 6]), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6])),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_torchs(name: str) -> None:
    schedule, torchs = SCHEDULES[name]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.05)
    scheduler = torchs(optimizer)
    for count in range(8):
        assert schedule(count) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6), count
        optimizer.step()
        scheduler.step()


def test_a_schedule_moves_all_groups_and_counts_windows() -> None:
    module = Network()
    groups = (ParameterGroup(parameters=("head",), lr_scale=0.1),)
    update = WeightUpdate(optimizer=SGD(), groups=groups, accumulate=2)
    training = session(module, update, settings={"lr": stepped(0.05, [2], 0.5)})
    head = [p for n, p in module.named_parameters() if n.startswith("head")]
    rest = [p for n, p in module.named_parameters() if not n.startswith("head")]
    optimizer = torch.optim.SGD([{"params": rest}, {"params": head, "lr": 0.005}], 0.05)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], 0.5)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            (F.cross_entropy(module(BATCH[0]), BATCH[1]) / 2).backward()
            training.step(feeds())
        optimizer.step()
        scheduler.step()
    assert_close(state_dict_of(training.state(), module.state_dict()), module)


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_an_optimizer_of_torch_drives_the_sessions_memory(clip_norm: float | None) -> None:
    module = Network()
    update = WeightUpdate(optimizer=None, clip_norm=clip_norm)
    training = session(module, update, settings={}, scaler=LossScaler(scale=1024.0))
    arrays = training.shared()
    names = [name.removeprefix("param.") for name in arrays if name.startswith("param.")]
    assert {f"grad.{name}" for name in names} < arrays.keys()
    parameters = []
    for name in names:
        parameter = nn.Parameter(torch.from_numpy(arrays[f"param.{name}"]))
        parameter.grad = torch.from_numpy(arrays[f"grad.{name}"])
        parameters.append(parameter)
    # A small epsilon would turn the noise of a gradient that is all rounding into steps of full size.
    optimizer = torch.optim.AdamW(parameters, 0.05, eps=0.1, fused=True)
    reference = torch.optim.AdamW(module.parameters(), 0.05, eps=0.1, fused=True)
    for _ in range(5):
        reference.zero_grad()
        F.cross_entropy(module(BATCH[0]), BATCH[1]).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        reference.step()
        assert training.step(feeds()).updated
        optimizer.step()
    assert_close(state_dict_of(training.state(), module.state_dict()), module)


def test_a_graph_that_holds_its_update_shares_nothing() -> None:
    module = Network()
    model = export_training_step(module, F.cross_entropy, *BATCH, optimizer="sgd")
    training = TrainingSession(model, first_state(module.state_dict(), model), provider="cpu")
    with pytest.raises(UsageError, match="cannot be shared"):
        training.shared()


@pytest.mark.parametrize("wrong", [lambda: cosine(0.1, 4, warmup=4), lambda: linear(0.1, 4, floor=0.2)])
def test_schedules_out_of_range(wrong: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="a schedule"):
        wrong()


def test_a_mixed_gradient_graph_trains_in_flat_steps() -> None:
    module = Network()
    model = export_training_step(module, F.cross_entropy, *BATCH, unscale=False)
    # Launches that cost nothing: so small a graph has precisions worth choosing.
    free = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
    mixed = optimize_model(model, Options(target=free, lists=oplists("campo")))
    assert mixed.plan.low_nodes
    update = WeightUpdate(optimizer=AdamW(), clip_norm=1.0, accumulate=2)
    state = first_state(module.state_dict(), model)
    options = {"settings": {"lr": 0.01}, "scaler": LossScaler(scale=1024.0), "provider": "cpu", "threads": 2}
    graphs = (model, emulate(mixed.model))
    sessions = [TrainingSession(graph, state, update=update, **options) for graph in graphs]
    losses = [[result.loss for result in each.train([feeds()] * 60) if result.updated] for each in sessions]
    assert all(each[-1] < 0.7 * each[0] for each in losses)
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.05)


def test_buffers_that_a_step_writes_and_does_not_read_are_state() -> None:
    """The first of spectral norm's vectors: each step computes it from the second."""
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)))
    training = session(module, WeightUpdate(optimizer=SGD()))
    training.step({"input.input": BATCH[0].numpy(), "target.target": BATCH[1].numpy()})
    module(BATCH[0])
    name = "0.parametrizations.weight.0._u"
    np.testing.assert_allclose(
        training.state()[f"buf.{name}"], module.state_dict()[name].numpy(), rtol=1e-4, atol=1e-6
    )
