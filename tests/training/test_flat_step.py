"""Steps in two graphs: gradients, and the update of flat tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from momentum_step import (
    LR,
    MOMENTUM,
    assert_same,
    batch,
    by_numpy,
    first_state,
    gradient_model,
    step_model,
)

from campo_onnx.errors import (
    CheckpointError,
    IndexOutOfRangeError,
    ModelError,
    UnsupportedModelError,
    UsageError,
)
from campo_onnx.export.optimizers import SGD, Adam, AdamW, Momentum
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.onnxruntime import sessions
from campo_onnx.training.flat_update import FlatProgram
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import ParameterGroup, WeightUpdate

UPDATE = WeightUpdate(optimizer=Momentum(momentum=MOMENTUM))


def session(update: WeightUpdate = UPDATE, *, model: Any = None, **options: Any) -> TrainingSession:
    options = {"settings": {"lr": LR}, "provider": "cpu", "threads": 2} | options
    return TrainingSession(model or gradient_model(), first_state(), update=update, **options)


@pytest.mark.parametrize("scaled", [False, True])
def test_steps_are_those_of_momentum(scaled: bool) -> None:
    training = session(model=gradient_model(scaled=scaled))
    results = [training.step(batch(number)) for number in range(5)]
    w, m, losses = by_numpy(5)
    np.testing.assert_allclose([result.loss for result in results], losses, rtol=1e-5)
    state = training.state()
    np.testing.assert_allclose(state["param.w"], w, rtol=1e-5)
    np.testing.assert_allclose(state["opt.mom.w"], m, rtol=1e-4, atol=1e-6)
    assert state["buf.seen"] == 5
    assert set(results[0].metrics) == {"loss"}
    assert list(training.interface.feeds) == ["loss_scale", "x", "t", "lr"]


@pytest.mark.parametrize("scaled", [False, True])
def test_an_overflow_changes_nothing_but_the_scale(scaled: bool) -> None:
    training = session(model=gradient_model(scaled=scaled))
    training.step(batch())
    before, scale = training.state(), 2.0**24
    for _ in range(3):
        result = training.step(batch(1, scale=1e25))
        assert result.skipped
        assert not result.updated
        assert result.loss_scale == scale
        scale /= 2
        assert_same(training.state(), before)
    assert training.step(batch(2)).updated


def test_a_rate_in_the_batch_overrules_the_setting_once() -> None:
    training = session()
    training.step(batch() | {"lr": 0.0})
    assert_same({"w": training.state()["param.w"]}, {"w": first_state()["param.w"]})
    training.step(batch())
    assert (training.state()["param.w"] != 0.5).any()


def test_without_a_rate_no_step_is_taken() -> None:
    with pytest.raises(UsageError, match="the batch lacks lr"):
        session(settings={}).step(batch())


def test_checkpoints_are_those_of_a_graph_that_holds_its_update(tmp_path: Path) -> None:
    renamed = [("opt.m.w", "opt.mom.w"), ("new_m.w", "new_mom.w")]
    without_count = [
        ("float step, ", ""),
        (",\n            float step_out", ""),
        ("step_out = Add(step, one)", ""),
    ]
    whole = TrainingSession(
        step_model(*renamed, *without_count), first_state(), settings={"lr": LR}, provider="cpu", threads=2
    )
    flat = session()
    for number in range(3):
        whole.step(batch(number))
    whole.save(tmp_path / "whole.safetensors")
    flat.restore(tmp_path / "whole.safetensors")
    assert_same(flat.state(), whole.state())
    for training in (whole, flat):
        training.step(batch(3))
    np.testing.assert_allclose(flat.state()["param.w"], whole.state()["param.w"], rtol=1e-6)
    flat.save(tmp_path / "flat.safetensors")
    whole.restore(tmp_path / "flat.safetensors")
    assert_same(flat.state(), whole.state())


def test_a_resumed_run_gives_the_same_numbers(tmp_path: Path) -> None:
    update = WeightUpdate(optimizer=AdamW(), clip_norm=1.0, average_decay=0.5)
    straight, resumed = session(update), session(update)
    for number in range(3):
        straight.step(batch(number))
    straight.save(tmp_path / "a.safetensors")
    resumed.step(batch(7))
    resumed.restore(tmp_path / "a.safetensors")
    for training in (straight, resumed):
        training.step(batch(3))
    assert_same(straight.state(), resumed.state())
    assert straight.state()["step"] == 4
    with pytest.raises(CheckpointError, match=r"another model: it holds 'ema\.w'"):
        session(WeightUpdate(optimizer=AdamW())).restore(tmp_path / "a.safetensors")


def test_within_a_window_the_state_is_that_before_it(tmp_path: Path) -> None:
    training = session(WeightUpdate(optimizer=SGD(), accumulate=2))
    before = training.state()
    assert not training.step(batch()).updated
    assert_same(training.state(), before)
    with pytest.raises(UsageError, match="while gradients are being accumulated"):
        training.save(tmp_path / "a.safetensors")
    assert training.step(batch(1)).updated
    training.save(tmp_path / "a.safetensors")
    straight = training.step(batch(2)), training.step(batch(3))
    training.step(batch(4))
    training.restore(tmp_path / "a.safetensors")  # in the middle of a window, which is forgotten
    again = training.step(batch(2)), training.step(batch(3))
    assert [r.loss for r in straight] == [r.loss for r in again]
    assert again[1].updated


def test_schedules_count_updates_whatever_became_of_windows(tmp_path: Path) -> None:
    """One that was begun and forgotten is none, and those of a checkpoint may have been longer."""
    asked: list[int] = []

    def rate(count: int) -> float:
        asked.append(count)
        return 0.1

    four = session(WeightUpdate(optimizer=SGD(), accumulate=4), settings={"lr": rate})
    for _ in range(3):
        four.step(batch())
    four.load_state({})
    for _ in range(4):
        four.step(batch())
    assert set(asked) == {0}
    four.save(tmp_path / "a.safetensors")
    two = session(WeightUpdate(optimizer=SGD(), accumulate=2), settings={"lr": rate})
    two.restore(tmp_path / "a.safetensors")
    asked.clear()
    two.step(batch())
    assert asked == [1]


def test_a_gradient_graph_that_fails_in_a_window_costs_that_step_alone() -> None:
    failing = (
        "buf_out.seen = Add(buf.seen, one)",
        "index = Cast<to = 7>(fail) row = Gather(buf.seen, index) buf_out.seen = Add(buf.seen, row)",
    )
    model = gradient_model(failing, ("float loss_scale,", "float loss_scale, float fail,"))
    update = WeightUpdate(optimizer=SGD(), accumulate=3)
    training, other = session(update, model=model), session(update, model=model)
    for number in range(3):
        if number:
            with pytest.raises(IndexOutOfRangeError, match="out of data bounds"):
                training.step(batch(9) | {"fail": 5.0})
        for each in (training, other):
            result = each.step(batch(number) | {"fail": 0.0})
    assert result.updated
    assert_same(training.state(), other.state())


def test_weights_of_a_failed_update_are_refused_until_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = session()
    training.step(batch())
    training.save(tmp_path / "a.safetensors")
    before = training.state()

    def fail(*_: Any) -> None:
        raise ModelError("the training step fails while it runs")

    with monkeypatch.context() as patch:
        patch.setattr(FlatProgram, "run", fail)
        with pytest.raises(ModelError, match="fails"):
            training.step(batch(1))
    for use in (lambda: training.step(batch(1)), training.state):
        with pytest.raises(ModelError, match=r"the last one failed\. Restore a checkpoint"):
            use()
    training.restore(tmp_path / "a.safetensors")
    assert_same(training.state(), before)
    assert training.step(batch(1)).updated


@pytest.mark.parametrize(
    ("model", "error", "why"),
    [
        (step_model(), UsageError, "updates its parameters itself"),
        (gradient_model(("grad.w", "g.w")), UsageError, "returns no gradients"),
        (
            gradient_model(
                ("float[3, 1] grad.w", "float[1, 3] grad.w"),
                ("grad.w = Div(g_scaled, loss_scale)", "g = Div(g_scaled, loss_scale) grad.w = Transpose(g)"),
            ),
            UnsupportedModelError,
            r"float32\[3, 1\], and its gradient 'grad.w' float32\[1, 3\]",
        ),
    ],
    ids=["update", "no_gradients", "shape"],
)
def test_graphs_that_do_not_fit(model: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        session(model=model)


def test_scaled_gradients_without_a_scale() -> None:
    model = gradient_model((" float loss_scale,", ""), ("d_half, loss_scale", "d_half, one"), scaled=True)
    with pytest.raises(UnsupportedModelError, match="scaled"):
        session(model=model)


def test_a_gradient_graph_needs_an_update() -> None:
    with pytest.raises(UsageError, match="update=WeightUpdate"):
        TrainingSession(gradient_model(), first_state(), provider="cpu")


def test_frozen_parameters_keep_their_value() -> None:
    changes = (
        ("float[1] buf.seen", "float[3, 1] param.v, float[1] buf.seen"),
        ("(x, param.w)", "(x, param.v)"),
    )
    model = gradient_model(*changes)
    v = {"param.v": np.ones((3, 1), np.float32)}
    training = TrainingSession(model, first_state() | v, update=UPDATE, settings={"lr": LR}, provider="cpu")
    first = training.step(batch()).loss
    assert training.step(batch()).loss == first
    assert_same({"param.v": training.state()["param.v"]}, v)


def test_a_static_scale_and_none() -> None:
    assert session(scaler=LossScaler.static(8.0)).step(batch()).loss_scale == 8
    model = gradient_model(
        (" float loss_scale,", ""),
        ("d_half, loss_scale", "d_half, one"),
        ("g_scaled, loss_scale", "g_scaled, one"),
    )
    assert session(model=model).step(batch()).loss_scale is None


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: WeightUpdate(optimizer="adam"), "str is not an optimizer"),  # type: ignore[arg-type]
        (lambda: WeightUpdate(optimizer=SGD(), clip_norm=0.0), "clip_norm is 0"),
        (lambda: WeightUpdate(optimizer=SGD(), clip_norm=float("nan")), "clip_norm is nan"),
        (lambda: WeightUpdate(optimizer=SGD(), accumulate=0), "accumulate is 0"),
        (lambda: WeightUpdate(optimizer=SGD(), average_decay=1.0), "average_decay is 1"),
        (lambda: ParameterGroup(parameters=("(",)), r"the pattern '\('"),
        (lambda: ParameterGroup(parameters="bias"), "Give a tuple"),  # type: ignore[arg-type]
        (lambda: WeightUpdate(optimizer=SGD(), accumulate=1.5), "accumulate is 1.5"),  # type: ignore[arg-type]
        (lambda: ParameterGroup(parameters=("bias",), lr_scale=-1.0), "lr_scale is -1"),
        (lambda: ParameterGroup(parameters=("bias",), weight_decay=float("nan")), "weight_decay is nan"),
        (lambda: Adam(beta1=1.0), "beta1 is 1.*below 1"),
        (lambda: Momentum(momentum=float("inf")), "momentum is inf.*finite"),
    ],
)
def test_settings_out_of_range(build: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build()


def test_a_group_without_parameters_is_refused() -> None:
    groups = (ParameterGroup(parameters=("nothing",)),)
    with pytest.raises(UsageError, match=r"no parameter is left for the group nothing.*Parameters: w\."):
        session(WeightUpdate(optimizer=SGD(), groups=groups))


def test_threads_leave_the_cores_to_others_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    make = sessions.session_options

    def seen(*arguments: Any, **options: Any) -> Any:
        opened.append(make(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sessions, "session_options", seen)
    session(runtime=DEFAULT)  # which of several is faster differs from run to run
    TrainingSession(
        step_model(), first_state(), settings={"lr": LR}, provider="cpu", threads=2, runtime=DEFAULT
    )
    stops = [options.get_session_config_entry("session.force_spinning_stop") for options in opened]
    assert stops == ["1"] * len(opened)
    assert len(stops) >= 3
