"""An interrupt anywhere in a step leaves a session that can be saved and trained on."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from momentum_step import LR, assert_same, batch, first_state, gradient_model, step_model

from campo_onnx import training as package
from campo_onnx.errors import ModelError
from campo_onnx.export.optimizers import AdamW
from campo_onnx.files import replacing_all
from campo_onnx.runtime.host_tensor import HostTensor
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.training import flat_update
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

HERE = str(Path(package.__file__).parent)
UPDATES = {
    "in the graph": None,
    "of the session": WeightUpdate(optimizer=AdamW(), clip_norm=1.0, average_decay=0.5),
}


def opened(update: WeightUpdate | None) -> TrainingSession:
    return TrainingSession(
        step_model() if update is None else gradient_model(),
        first_state(),
        update=update,
        settings={"lr": LR},
        provider="cpu",
        threads=1,
        runtime=DEFAULT,
        scaler=LossScaler(scale=8.0, growth_interval=2),
    )


class Interruption(BaseException):
    """Raised by the handlers of these tests."""


@pytest.fixture(params=["SIGINT", "SIGTERM", "SIGHUP", "SIGALRM"])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    if not hasattr(signal, request.param):
        pytest.skip(f"this system has no {request.param}")
    number = getattr(signal, request.param)

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(number, interrupt)
    yield number
    signal.signal(number, before)


def interrupted_at(place: int, number: int, work: Callable[[], object]) -> bool:
    """Send a signal twice at a line of the training package, counted from the start; say if there was one."""
    lines = iter(range(place + 1))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        if event == "line" and next(lines, None) == place:
            sys.settrace(None)
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interruption:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_a_step_that_is_interrupted_at_any_line_is_taken_or_not(
    update: WeightUpdate | None, number: int, tmp_path: Path
) -> None:
    training, straight = opened(update), opened(update)
    place = 0
    while interrupted_at(place, number, lambda: training.step(batch(training.steps))):
        place += 1
        while straight.steps < training.steps:
            straight.step(batch(straight.steps))
        assert_same(training.state(), straight.state())
        assert training.scaler == straight.scaler
    assert place > 20
    training.save(tmp_path / "a.safetensors")
    straight.restore(tmp_path / "a.safetensors")
    assert training.step(batch(99)).loss == straight.step(batch(99)).loss


def test_a_checkpoint_is_restored_whole(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, other = (opened(UPDATES["of the session"]) for _ in range(2))
    for _ in range(3):
        training.step(batch(training.steps))
    training.save(tmp_path / "a.safetensors")
    write = HostTensor.write

    def interrupted(self: HostTensor, array: Any) -> None:
        signal.raise_signal(number)
        write(self, array)

    with monkeypatch.context() as patch:
        patch.setattr(HostTensor, "write", interrupted)
        with pytest.raises(Interruption):
            other.restore(tmp_path / "a.safetensors")
    assert other.steps == 3
    assert_same(other.state(), training.state())
    with monkeypatch.context() as patch:
        patch.setattr(HostTensor, "write", interrupted)
        with pytest.raises(Interruption):
            other.load_state(first_state())
    assert (other.state()["param.w"] == first_state()["param.w"]).all()


def test_a_state_that_could_not_be_put_in_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    training = opened(UPDATES["of the session"])
    write = HostTensor.write
    written: list[int] = []

    def fail(self: HostTensor, array: Any) -> None:
        if written:
            raise MemoryError
        written.append(1)
        write(self, array)

    with monkeypatch.context() as patch:
        patch.setattr(HostTensor, "write", fail)
        with pytest.raises(MemoryError):
            training.load_state(first_state())
    with pytest.raises(ModelError, match="Restore a checkpoint"):
        training.state()


def test_numbers_of_an_update_that_cannot_be_computed_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = opened(UPDATES["of the session"])
    before = training.state()

    def fail(*_: object) -> None:
        raise FloatingPointError("overflow")

    with monkeypatch.context() as patch:
        patch.setattr(flat_update, "update_numbers", fail)
        with pytest.raises(FloatingPointError):
            training.step(batch())
    assert_same(training.state(), before)
    assert training.step(batch()).updated


def test_files_are_moved_into_place_together(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [tmp_path / name for name in ("plan.json", "model.onnx")]
    move = os.replace

    def interrupted(*paths: Any) -> None:
        signal.raise_signal(number)
        move(*paths)

    monkeypatch.setattr(os, "replace", interrupted)

    def write() -> None:
        with replacing_all(targets) as paths:
            for path in paths:
                path.write_text("new")

    with pytest.raises(Interruption):
        write()
    assert [target.read_text() for target in targets] == ["new", "new"]
