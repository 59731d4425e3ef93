"""A training loop on plain ONNX Runtime: state, loss scaling, and what it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from momentum_step import Batch, assert_same, batch, by_numpy, first_state, session, step_model
from onnx import parser

from campo_onnx.errors import CampoError, IndexOutOfRangeError, UnsupportedModelError, UsageError
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession


def test_steps_like_numpy() -> None:
    training = session(scaler=LossScaler(scale=1024.0))
    results = [training.step(batch(number)) for number in range(10)]
    w, m, losses = by_numpy(10)
    state = training.state()
    np.testing.assert_allclose(state["param.w"], w, rtol=1e-5)
    np.testing.assert_allclose(state["opt.m.w"], m, rtol=1e-4, atol=1e-6)
    assert [r.loss for r in results] == pytest.approx(losses, rel=1e-5)
    assert (state["buf.seen"], state["step"], training.steps) == (10, 10, 10)
    assert [r.step for r in results] == list(range(1, 11))
    assert set(results[0].metrics) == {"loss"}
    assert all(r.duration_s > 0 and not r.skipped and r.loss_scale == 1024 for r in results)


def test_state_is_neither_the_callers_nor_handed_out() -> None:
    state = first_state()
    training = session(state=state)
    training.step(batch())
    training.step(batch())  # writes where the first state lay
    assert_same(state, first_state())
    before = training.state()
    training.state()["param.w"][:] = 7
    assert_same(training.state(), before)
    result = training.step(batch())
    loss = result.loss
    training.step(batch(1))
    assert result.loss == loss


def test_overflow_leaves_state_untouched_and_halves_the_scale() -> None:
    training = session()
    training.step(batch())
    before, scale = training.state(), 2.0**24
    for _ in range(3):  # twice and once more: both buffers hold rubbish by now
        result = training.step(batch(1, scale=1e18))
        assert result.skipped
        assert result.loss_scale == scale
        scale /= 2
        assert training.scaler is not None
        assert training.scaler.scale == scale
        assert_same(training.state(), before)
    assert not training.step(batch(1)).skipped
    assert training.state()["step"] == 2
    assert training.steps == 5


def test_static_scale() -> None:
    training = session(scaler=LossScaler.static(8.0))
    assert training.step(batch(1, scale=1e20)).skipped
    assert training.step(batch()).loss_scale == 8


def test_settings_hold_and_a_batch_overrules_them_once() -> None:
    training = session()
    training.step(batch() | {"lr": 0.0})
    assert_same({"w": training.state()["param.w"]}, {"w": first_state()["param.w"]})
    training.step(batch())
    assert (training.state()["param.w"] != 0.5).any()


def test_a_graph_without_a_loss_scale() -> None:
    model = step_model(
        (" float loss_scale,", ""),
        ("d_half, loss_scale", "d_half, one"),
        ("g_scaled, loss_scale", "g_scaled, one"),
    )
    training = session(model)
    assert training.scaler is None
    result = training.step(batch())
    assert result.loss_scale is None
    assert training.step(batch(scale=1e25)).skipped
    with pytest.raises(UsageError, match="no input 'loss_scale'"):
        session(model, scaler=LossScaler())


def test_other_names_are_paired_by_hand() -> None:
    model = step_model(("opt.m.w", "velocity"), ("new_m.w", "next"))
    training = session(
        model, pairs={"velocity": "next"}, state=first_state() | {"velocity": np.zeros((3, 1), "f4")}
    )
    training.step(batch(0))
    np.testing.assert_allclose(training.state()["param.w"], by_numpy(1)[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["param.v", "buf.v", "constant"])
def test_frozen_state_keeps_its_value(name: str) -> None:
    v = {name: np.zeros((3, 1), np.float32)}
    model = step_model(
        ("float[1] buf.seen", f"float[3, 1] {name}, float[1] buf.seen"), ("(x, param.w)", f"(x, {name})")
    )
    training = session(model, state=first_state() | v, pairs={name: None} if name == "constant" else None)
    first = training.step(batch()).loss
    assert training.step(batch()).loss == first
    assert_same({name: training.state()[name]}, v)
    assert name not in training.interface.next_value


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([("new.w", "other")], r"without a counterpart: param\.w"),
        (
            [("float[3, 1] param.w", "float[3, 1] weight"), ("param.w", "weight")],
            r"without a counterpart: new\.w",
        ),
        ([("bool grads_finite", "bool finite"), ("grads_finite", "finite")], "no output 'grads_finite'"),
        (
            [("float[1] buf.seen", "float[2] buf.seen"), ("float[1] buf_out.seen", "float[2] buf_out.seen")],
            r"'buf\.seen' is float32\[1\]",
        ),
    ],
)
def test_models_that_do_not_fit(changes: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(CampoError, match=why):
        session(step_model(*changes))


def test_a_graph_without_an_update() -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[1] x) => (float[1] loss) { loss = Mul(x, x) }'
    with pytest.raises(UnsupportedModelError, match="updates no state"):
        TrainingSession(parser.parse_model(text), {}, provider="cpu")


def test_pairs_of_different_shapes() -> None:
    model = step_model()
    with pytest.raises(UnsupportedModelError, match=r"float32\[3, 1\], but its next value"):
        session(model, pairs={"param.w": "step_out", "step": "new.w"})


def test_pairs_with_unknown_names() -> None:
    with pytest.raises(UsageError, match="pairs names nobody, nothing"):
        session(pairs={"nobody": "nothing"})


def wrong_type() -> Any:
    return {**batch(), "x": batch()["x"].astype(np.float64)}


@pytest.mark.parametrize(
    ("feeds", "why"),
    [
        ({"x": batch()["x"]}, "lacks t"),
        (batch() | {"y": batch()["t"]}, "no feed named y"),
        (batch() | {"param.w": np.zeros((3, 1), np.float32)}, r"no feed named param\.w"),
        (batch() | {"t": np.zeros((4, 2), np.float32)}, r"'t' is float32\[4, 2\].*takes float32\[4, 1\]"),
        (wrong_type(), r"'x' is float64\[4, 3\]"),
        (batch() | {"lr": "fast"}, "'lr' is"),
        (batch() | {"t": 1.0}, "'t' is float64"),
        (batch() | {"loss_scale": 1.0}, "fed by the session"),
    ],
)
def test_wrong_feeds_change_nothing(feeds: Any, why: str) -> None:
    training, other = session(), session()
    for each in (training, other):
        each.step(batch())
    with pytest.raises(UsageError, match=why):
        training.step(feeds)
    assert_same(training.state(), other.state())
    assert training.steps == 1
    assert training.step(batch(1)).loss == other.step(batch(1)).loss


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"param.w": None}, r"lacks param\.w"),
        ({"param.x": np.zeros(1, np.float32)}, r"no state param\.x"),
        ({"param.w": np.zeros((1, 3), np.float32)}, r"'param\.w' is float32\[1, 3\]"),
    ],
)
def test_wrong_first_state(change: dict[str, Any], why: str) -> None:
    state = {name: value for name, value in (first_state() | change).items() if value is not None}
    with pytest.raises(UsageError, match=why):
        session(state=state)


def test_a_failing_graph_changes_nothing() -> None:
    model = step_model(
        (
            "step_out = Add(step, one)",
            "index = Cast<to = 7>(lr) row = Gather(buf.seen, index) step_out = Add(step, row)",
        )
    )
    training = session(model)
    training.step(batch())
    before = training.state()
    with pytest.raises(IndexOutOfRangeError, match="out of data bounds"):
        training.step(batch() | {"lr": 5.0})
    assert_same(training.state(), before)
    training.step(batch())


def test_train_takes_a_step_per_batch_and_none_ahead() -> None:
    training, other = session(), session()
    asked = []

    def batches() -> Iterator[Batch]:
        for number in range(3):
            asked.append(number)
            yield batch(number)

    results = training.train(batches())
    assert training.steps == 0
    assert next(results).loss == other.step(batch(0)).loss
    assert (asked, training.steps) == ([0], 1)
    assert [result.step for result in results] == [2, 3]
    for number in (1, 2):
        other.step(batch(number))
    assert_same(training.state(), other.state())


def test_a_wrong_batch_ends_training_where_it_stands() -> None:
    training = session()
    results = training.train([batch(0), {"x": batch(1)["x"]}, batch(2)])
    next(results)
    with pytest.raises(UsageError, match="lacks t"):
        next(results)
    assert training.steps == 1
    assert training.step(batch(2)).step == 2


def test_samples_per_second() -> None:
    result = session().step(batch())
    assert result.samples == 4
    assert replace(result, duration_s=0.5).samples_per_s == 8


def test_settings_are_no_batch() -> None:
    model = step_model(("float lr, ", "float[2, 5] mask, float lr, "))
    settings = {"lr": 0.05, "mask": np.zeros((2, 5), np.float32)}
    assert session(model, settings=settings).step(batch()).samples == 4
    assert session(model).step(batch() | {"mask": settings["mask"]}).samples == 2


def test_a_cuda_graph_needs_cuda() -> None:
    with pytest.raises(UsageError, match="CUDA graph"):
        session(cuda_graph=True)
