"""From a module to a trained one: exported steps in a training session, against torch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from campo_onnx.errors import CheckpointError, UsageError
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn

from campo_onnx.export.torch import export_training_step

LR, STEPS = 0.003, 10

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, LR),
    "momentum": lambda parameters: torch.optim.SGD(parameters, LR, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, LR),
}


def network() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def batch(seed: int, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    images = (rng.standard_normal((16, 2, 8, 8)) * scale).astype(np.float32)
    return {"input.input": images, "target.target": rng.integers(0, 3, 16)}


def session(module: Any, optimizer: str, scaler: LossScaler | None = None) -> TrainingSession:
    images, labels = batch(0).values()
    step = export_training_step(
        module,
        F.cross_entropy,
        torch.from_numpy(images),
        torch.from_numpy(labels),
        optimizer=optimizer,
    )
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b.numpy() for n, b in module.named_buffers()}
    return TrainingSession(step, state, settings={"lr": LR}, provider="cpu", threads=2, scaler=scaler)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ten_steps_are_torchs(optimizer: str) -> None:
    module = network()
    training = session(module, optimizer, LossScaler(scale=1024.0))
    reference = OPTIMIZERS[optimizer](module.parameters())
    for result in training.train(batch(seed) for seed in range(STEPS)):
        images, labels = (torch.from_numpy(value) for value in batch(result.step - 1).values())
        reference.zero_grad()
        loss = F.cross_entropy(module(images), labels)
        loss.backward()
        reference.step()
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        assert not result.skipped
    state = training.state()
    expected = {f"param.{n}": p.detach() for n, p in module.named_parameters()}
    expected |= {f"buf.{n}": b for n, b in module.named_buffers()}
    for name, value in expected.items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_infinite_gradient_changes_nothing_and_halves_the_scale(optimizer: str) -> None:
    training = session(network(), optimizer)
    list(training.train(batch(seed) for seed in range(3)))
    before = training.state()
    scale = training.scaler.scale
    result = training.step(batch(3, scale=np.inf))
    assert result.skipped
    assert training.scaler.scale == scale / 2
    after = training.state()
    assert after.keys() == before.keys()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert not training.step(batch(4)).skipped


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"input.input": batch(0)["input.input"]}, r"lacks target\.target"),
        (batch(0) | {"images": np.zeros(3, np.float32)}, "no feed named images"),
        (
            batch(0) | {"target.target": np.zeros(16, np.int32)},
            r"'target\.target' is int32\[16\].*int64\[16\]",
        ),
        (batch(0) | {"input.input": np.zeros((8, 2, 8, 8), np.float32)}, r"is float32\[8, 2, 8, 8\]"),
    ],
    ids=["missing", "name", "type", "shape"],
)
def test_wrong_feeds_are_named_and_nothing_is_lost(feeds: dict[str, Any], message: str) -> None:
    training = session(network(), "adam")
    training.step(batch(0))
    before = training.state()
    with pytest.raises(UsageError, match=message):
        training.step(feeds)
    assert all(np.array_equal(before[name], value) for name, value in training.state().items())


def test_a_checkpoint_resumes_and_that_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    module = network()
    straight, resumed = session(module, "adam"), session(module, "adam")
    list(straight.train(batch(seed) for seed in range(3)))
    straight.save(tmp_path / "adam.safetensors")
    resumed.restore(tmp_path / "adam.safetensors")
    assert resumed.step(batch(7)).loss == straight.step(batch(7)).loss
    other = session(module, "momentum")
    with pytest.raises(CheckpointError, match=r"another model: it lacks 'opt\.mom"):
        other.restore(tmp_path / "adam.safetensors")
    assert other.steps == 0
