"""Updates of flat tensors against torch's optimizers: groups, clipping, accumulation, loss scaling."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from campo_onnx.export.optimizers import BY_NAME, LAMB, SGD, Adam, AdamW, Momentum
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.openvino.installed import openvino_problem
from campo_onnx.training import flat_update
from campo_onnx.training.flat_step import GRAD_NORM
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import ParameterGroup, WeightUpdate

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn

from campo_onnx.export.torch import export_training_step

LR, STEPS, TOLERANCE = 0.05, 10, 1e-5
SHAPES = {"fc.weight": (40, 30), "fc.bias": (40,), "norm.weight": (), "head.weight": (7, 5, 3)}


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, with bias correction and without a bound on the norm."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * p.grad.double()
                v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * p.grad.double() ** 2
                r = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-6)
                r = r + group["weight_decay"] * p
                phi = p.double().norm() / r.norm() if p.norm() > 0 else 1.0
                p -= (group["lr"] * phi * r).float()


OPTIMIZERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "sgd": (SGD(), torch.optim.SGD),
    "sgd_decayed": (SGD(weight_decay=0.1), lambda ps, lr: torch.optim.SGD(ps, lr, weight_decay=0.1)),
    "momentum": (Momentum(), lambda ps, lr: torch.optim.SGD(ps, lr, momentum=0.9)),
    "nesterov": (
        Momentum(momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda ps, lr: torch.optim.SGD(ps, lr, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adam": (Adam(), torch.optim.Adam),
    "adam_decayed": (Adam(weight_decay=0.1), lambda ps, lr: torch.optim.Adam(ps, lr, weight_decay=0.1)),
    "adamw": (AdamW(beta2=0.95), lambda ps, lr: torch.optim.AdamW(ps, lr, betas=(0.9, 0.95))),
    "adamw_without_decay": (
        AdamW(weight_decay=0.0),
        lambda ps, lr: torch.optim.AdamW(ps, lr, weight_decay=0.0),
    ),
    "lamb": (LAMB(), Lamb),
}


class Weighted(nn.Module):
    """Gives each parameter any gradient one likes: that of ``sum(parameter * input)`` is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "_") for name in SHAPES}
        for name, attribute in self.names.items():
            self.register_parameter(attribute, nn.Parameter(torch.randn(SHAPES[name])))

    def forward(self, *gradients: Any) -> Any:
        return sum((p * x).sum() for p, x in zip(self.parameters(), gradients, strict=True))


def gradients(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(np.asarray(rng.standard_normal(s), np.float32)) for s in SHAPES.values()]


@cache
def exported(*, loss_scale: bool, unscale: bool) -> Any:
    return export_training_step(
        Weighted(), lambda loss: loss, gradients(0), loss_scale=loss_scale, unscale=unscale
    )


def session(
    module: Any,
    update: WeightUpdate,
    *,
    scaler: LossScaler | None = None,
    unscale: bool = True,
    runtime: str = DEFAULT,
) -> TrainingSession:
    model = exported(loss_scale=scaler is not None, unscale=unscale)
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    return TrainingSession(
        model,
        state,
        update=update,
        settings={"lr": LR},
        provider="cpu",
        threads=2,
        scaler=scaler,
        runtime=runtime,
    )


def feeds(training: TrainingSession, tensors: list[Any]) -> dict[str, Any]:
    names = [name for name in training.interface.feeds if name.startswith("input.")]
    return dict(zip(names, (t.numpy() for t in tensors), strict=True))


def assert_like(training: TrainingSession, module: Any, first: dict[str, Any]) -> None:
    """Compare weights; errors are held against the largest weight, or the largest change."""
    state = training.state()
    for name, parameter in module.named_parameters():
        expected = parameter.detach().numpy()
        moved = np.abs(expected - first[name]).max()
        assert moved > 1e-4
        assert np.abs(state[f"param.{name}"] - expected).max() < TOLERANCE * max(
            moved, np.abs(expected).max()
        ), name


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip_norm", [None, 5.0])
@pytest.mark.parametrize("scaling", ["none", "in the graph", "left to the update"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_updates_are_torchs(name: str, scaling: str, clip_norm: float | None, accumulate: int) -> None:
    """Half of them in each runtime, where both are installed."""
    is_for_openvino = (accumulate == 1) == (clip_norm is None)
    runtime = "openvino" if is_for_openvino and not openvino_problem() else DEFAULT
    module = Weighted()
    first = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    optimizer, reference_of = OPTIMIZERS[name]
    reference = reference_of(module.parameters(), lr=LR)
    update = WeightUpdate(optimizer=optimizer, clip_norm=clip_norm, accumulate=accumulate)
    scaler = None if scaling == "none" else LossScaler(scale=1024.0)
    training = session(
        module, update, scaler=scaler, unscale=scaling != "left to the update", runtime=runtime
    )
    for step in range(STEPS):
        reference.zero_grad()
        for micro in range(accumulate):
            batch = gradients(accumulate * step + micro)
            (module(*batch) / accumulate).backward()
            result = training.step(feeds(training, batch))
            assert result.updated == (micro == accumulate - 1)
        if clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            assert float(result.metrics[GRAD_NORM]) == pytest.approx(norm.item(), rel=1e-5)
            assert norm > clip_norm
        reference.step()
    assert_like(training, module, first)


@pytest.mark.parametrize("target", ["standard", "cuda"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_torchs_in_every_form(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPU provider has all operators of both; a first step at a rate of 0 moves nothing.
    monkeypatch.setattr(flat_update, "target_here", lambda provider, release: target)
    module = Weighted()
    first = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    optimizer, reference_of = OPTIMIZERS[name]
    reference = reference_of(module.parameters(), lr=LR)
    scaler = LossScaler(scale=1024.0)
    training = session(module, WeightUpdate(optimizer=optimizer), scaler=scaler, unscale=False)
    for step in range(STEPS):
        rate = LR if step else 0.0
        reference.param_groups[0]["lr"] = rate
        reference.zero_grad()
        module(*gradients(step)).backward()
        training.step(feeds(training, gradients(step)) | {"lr": np.float32(rate)})
        reference.step()
    assert_like(training, module, first)


@pytest.mark.parametrize("name", ["sgd_decayed", "momentum", "adam", "adamw", "lamb"])
def test_groups_have_rates_and_decays_of_their_own(name: str) -> None:
    module = Weighted()
    first = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    optimizer, _ = OPTIMIZERS[name]
    named = dict(module.named_parameters())
    rest = [p for n, p in named.items() if "bias" not in n and "norm" not in n and "head" not in n]
    torch_groups = [
        {"params": rest},
        {"params": [named["fc_bias"], named["norm_weight"]], "weight_decay": 0.0},
        {"params": [named["head_weight"]], "lr": 0.2 * LR, "weight_decay": 0.3},
    ]
    reference: Any = {
        "sgd_decayed": lambda: torch.optim.SGD(torch_groups, LR, weight_decay=0.1),
        "momentum": lambda: torch.optim.SGD(torch_groups, LR, momentum=0.9),
        "adam": lambda: torch.optim.Adam(torch_groups, LR),
        "adamw": lambda: torch.optim.AdamW(torch_groups, LR, betas=(0.9, 0.95)),
        "lamb": lambda: Lamb(torch_groups, LR),
    }[name]()
    groups = (
        ParameterGroup(parameters=("bias$", "norm"), weight_decay=0.0),
        ParameterGroup(parameters=("head",), lr_scale=0.2, weight_decay=0.3),
    )
    training = session(module, WeightUpdate(optimizer=optimizer, groups=groups))
    for step in range(STEPS):
        batch = gradients(step)
        reference.zero_grad()
        module(*batch).backward()
        training.step(feeds(training, batch))
        reference.step()
    assert_like(training, module, first)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("clip_norm", [None, 5.0])
@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "lamb"])
def test_an_update_in_several_runs_is_the_same(
    name: str, clip_norm: float | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Weighted()
    groups = (ParameterGroup(parameters=("bias$", "norm"), weight_decay=0.0),)
    update = WeightUpdate(
        optimizer=OPTIMIZERS[name][0], groups=groups, clip_norm=clip_norm, average_decay=0.5
    )
    in_one = session(module, update, scaler=LossScaler(scale=8.0), unscale=False)
    monkeypatch.setattr(flat_update, "ROWS_A_RUN", {"cpu": rows})
    in_several = session(module, update, scaler=LossScaler(scale=8.0), unscale=False)
    is_split = len(in_several._runner._update._programs) > 2  # type: ignore[attr-defined]
    assert is_split == (name != "lamb"), "LAMB's ratios need whole tensors, the others are cut"
    for step in range(3):
        for training in (in_one, in_several):
            training.step(feeds(training, gradients(step)))
    one, several = in_one.state(), in_several.state()
    assert all(np.array_equal(one[name], several[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "size", "clip_norm"), [("sgd", 1e14, 1.0), ("adamw", 1e14, 1.0), ("adamw", 1e9, 1e-3)]
)
def test_squares_that_leave_fp32_change_nothing(name: str, size: float, clip_norm: float) -> None:
    """Of gradients times the scale, which are finite themselves, and of the factor that clips them."""
    module = Weighted()
    first = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    optimizer, make = OPTIMIZERS[name]
    update, reference = (
        WeightUpdate(optimizer=optimizer, clip_norm=clip_norm),
        make(module.parameters(), lr=LR),
    )
    training = session(module, update, scaler=LossScaler(), unscale=False)
    for step, factor in enumerate((1.0, size, 1.0)):
        batch = [factor * gradient for gradient in gradients(step)]
        result = training.step(feeds(training, batch))
        assert result.updated
        for parameter, gradient in zip(module.parameters(), batch, strict=True):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        assert result.metrics[GRAD_NORM] == pytest.approx(norm.item(), rel=1e-5)
        reference.step()
    assert_like(training, module, first)


@pytest.mark.parametrize("unscale", [True, False], ids=["in_the_graph", "left_to_the_update"])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_overflow_within_a_window_skips_the_window(bad: int, unscale: bool) -> None:
    update = WeightUpdate(optimizer=AdamW(), accumulate=3, clip_norm=1.0)
    module = Weighted()
    training = session(module, update, scaler=LossScaler(scale=1024.0), unscale=unscale)
    for micro in range(3):
        training.step(feeds(training, gradients(micro)))
    before = training.state()
    results = []
    for micro in range(3):
        batch = gradients(10 + micro)
        if micro == bad:
            batch[0][0, 0] = np.inf
        results.append(training.step(feeds(training, batch)))
    assert [r.skipped for r in results] == [False, False, True]
    assert not any(r.updated for r in results)
    assert training.scaler is not None
    assert training.scaler.scale == 512
    after = training.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    for micro in range(3):
        result = training.step(feeds(training, gradients(20 + micro)))
    assert result.updated
    assert (training.state()["param.fc_weight"] != before["param.fc_weight"]).any()


def network() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        images = rng.standard_normal((16, 2, 8, 8)).astype(np.float32)
        yield torch.from_numpy(images), torch.from_numpy(rng.integers(0, 3, 16))


def trained(module: Any, update: WeightUpdate, **options: Any) -> TrainingSession:
    images, labels = next(batches(1))
    model = export_training_step(module, F.cross_entropy, images, labels, **options)
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b.numpy() for n, b in module.named_buffers()}
    return TrainingSession(
        model, state, update=update, settings={"lr": 0.003}, provider="cpu", threads=2, runtime=DEFAULT
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_network_with_running_statistics_trains_like_torch(accumulate: int) -> None:
    module = network()
    update = WeightUpdate(optimizer=Momentum(), clip_norm=0.5, accumulate=accumulate)
    training = trained(module, update, unscale=False)
    reference = torch.optim.SGD(module.parameters(), 0.003, momentum=0.9)
    for number, (images, labels) in enumerate(batches(STEPS * accumulate), 1):
        loss = F.cross_entropy(module(images), labels)
        (loss / accumulate).backward()
        result = training.step({"input.input": images.numpy(), "target.target": labels.numpy()})
        assert result.loss == pytest.approx(loss.item(), rel=1e-4)
        if number % accumulate == 0:
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            reference.step()
            reference.zero_grad()
    state = training.state()
    for name, value in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items():
        own = state.get(f"param.{name}", state.get(f"buf.{name}"))
        np.testing.assert_allclose(own, value.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_running_statistics_go_back_to_before_the_window() -> None:
    module = network()
    training = trained(module, WeightUpdate(optimizer=SGD(), accumulate=2), unscale=False)
    feeds = [{"input.input": x.numpy(), "target.target": y.numpy()} for x, y in batches(4)]
    list(training.train(feeds[:2]))
    before = training.state()
    broken = feeds[3] | {"input.input": feeds[3]["input.input"] * np.float32(np.inf)}
    results = list(training.train([feeds[2], broken]))
    assert results[1].skipped
    after = training.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert int(before["buf.1.num_batches_tracked"]) == 2


def test_a_moving_average_follows_the_weights() -> None:
    module = Weighted()
    training = session(module, WeightUpdate(optimizer=SGD(), average_decay=0.9))
    average = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    for step in range(STEPS):
        training.step(feeds(training, gradients(step)))
        state = training.state()
        for name in average:
            average[name] = 0.9 * average[name] + 0.1 * state[f"param.{name}"]
    for name, expected in average.items():
        np.testing.assert_allclose(state[f"ema.{name}"], expected, rtol=1e-5, atol=1e-6)


def test_whole_steps_and_flat_steps_agree_on_every_optimizer() -> None:
    for name in ("sgd", "momentum", "adam", "adamw", "lamb"):
        module = network()
        images, labels = next(batches(1))
        state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
        state |= {f"buf.{n}": b.numpy() for n, b in module.named_buffers()}
        whole = TrainingSession(
            export_training_step(module, F.cross_entropy, images, labels, optimizer=name),
            state, settings={"lr": 0.003}, provider="cpu", threads=2, runtime=DEFAULT,
        )  # fmt: skip
        flat = trained(module, WeightUpdate(optimizer=BY_NAME[name]), unscale=False)
        assert flat.interface.signature == whole.interface.signature
        for x, y in batches(3):
            batch = {"input.input": x.numpy(), "target.target": y.numpy()}
            assert flat.step(batch).loss == pytest.approx(whole.step(batch).loss, rel=1e-4)
