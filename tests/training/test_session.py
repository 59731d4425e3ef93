"""A training loop on plain ONNX Runtime: state, loss scaling, checkpoints, and what it refuses."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import parser
from safetensors.numpy import save_file

from campo_onnx.errors import CampoError, ModelError, UnsupportedModelError, UsageError
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession

LR, MOMENTUM = 0.05, 0.9

# Linear regression with momentum. No Where stands behind grads_finite: the session alone protects the state.
STEP = """
    <ir_version: 10, opset_import: ["": 20]>
    step (float[3, 1] param.w, float[1] buf.seen, float[3, 1] opt.m.w, float step, float loss_scale,
          float lr, float[4, 3] x, float[4, 1] t)
        => (float loss, bool grads_finite, float[3, 1] new.w, float[1] buf_out.seen, float[3, 1] new_m.w,
            float step_out)
    <float half = {0.5}, float momentum = {0.9}, float one = {1}, float zero = {0}> {
        y = MatMul(x, param.w)
        d = Sub(y, t)
        square = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(square)
        d_half = Mul(d, half)
        d_scaled = Mul(d_half, loss_scale)
        xt = Transpose<perm = [1, 0]>(x)
        g_scaled = MatMul(xt, d_scaled)
        g = Div(g_scaled, loss_scale)
        nothing = Mul(g, zero)
        total = ReduceSum<keepdims = 0>(nothing)
        grads_finite = Equal(total, zero)
        m_kept = Mul(opt.m.w, momentum)
        new_m.w = Add(m_kept, g)
        change = Mul(new_m.w, lr)
        new.w = Sub(param.w, change)
        buf_out.seen = Add(buf.seen, one)
        step_out = Add(step, one)
    }"""

Batch = dict[str, NDArray[np.float32]]


def step_model(*changes: tuple[str, str]) -> onnx.ModelProto:
    text = STEP
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    # ONNX's text form has no dots in names.
    model = parser.parse_model(re.sub(r"(?<=[a-z])\.(?=[a-z])", "_dot_", text))
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("_dot_", ".")
    for node in model.graph.node:
        node.input[:] = [t.replace("_dot_", ".") for t in node.input]
        node.output[:] = [t.replace("_dot_", ".") for t in node.output]
    return model


def first_state() -> dict[str, NDArray[np.float32]]:
    return {"param.w": np.full((3, 1), 0.5, np.float32), "buf.seen": np.zeros(1, np.float32)}


def session(model: onnx.ModelProto | None = None, **options: Any) -> TrainingSession:
    options = {"settings": {"lr": LR}, "provider": "cpu", "threads": 2} | options
    return TrainingSession(model or step_model(), options.pop("state", first_state()), **options)


def batch(seed: int = 0, scale: float = 1.0) -> Batch:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((4, 3)) * scale).astype(np.float32)
    return {"x": x, "t": x @ np.array([[1.0], [-2.0], [3.0]], np.float32)}


def by_numpy(steps: int) -> tuple[NDArray[np.float32], NDArray[np.float32], list[float]]:
    w, m, losses = np.full((3, 1), 0.5, np.float32), np.zeros((3, 1), np.float32), []
    for number in range(steps):
        data = batch(number)
        d = data["x"] @ w - data["t"]
        losses.append(float((d * d).mean()))
        m = np.float32(MOMENTUM) * m + data["x"].T @ d / 2
        w = w - np.float32(LR) * m
    return w, m, losses


def assert_same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


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
    given = first_state()
    training = session(state=given)
    training.step(batch())
    training.step(batch())  # writes where the first state lay
    assert_same(given, first_state())
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
    with pytest.raises(ModelError, match="fails while it runs"):
        training.step(batch() | {"lr": 5.0})
    assert_same(training.state(), before)
    training.step(batch())


def test_resuming_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    straight, broken = session(), session()
    for number in range(3):
        straight.step(batch(number))
        broken.step(batch(number))
    broken.step(batch(9, scale=1e18))
    straight.step(batch(9, scale=1e18))
    broken.save(tmp_path / "a.safetensors")
    resumed = session(state={name: value + 1 for name, value in first_state().items()})
    resumed.step(batch(5))  # so that its state lies in the other buffer
    resumed.restore(tmp_path / "a.safetensors")
    assert_same(resumed.state(), straight.state())
    assert resumed.scaler == straight.scaler
    assert resumed.steps == straight.steps
    assert resumed.step(batch(4)).loss == straight.step(batch(4)).loss
    assert_same(resumed.state(), straight.state())
    assert os.listdir(tmp_path) == ["a.safetensors"]


def other_model(path: Path) -> None:
    model = step_model(("[3, 1]", "[2, 1]"), ("[4, 3] x", "[4, 2] x"))
    session(model, state=first_state() | {"param.w": np.zeros((2, 1), np.float32)}).save(path)


def torn(path: Path) -> None:
    session().save(path)
    path.write_bytes(path.read_bytes()[:-5])


def torn_early(path: Path) -> None:
    session().save(path)
    path.write_bytes(path.read_bytes()[:20])


def from_elsewhere(path: Path) -> None:
    save_file(first_state(), path)


def renamed(path: Path) -> None:
    model = step_model(("opt.m.w", "opt.v.w"), ("new_m.w", "new_v.w"))
    session(model).save(path)


def tampered(path: Path) -> None:
    training = session()
    metadata = {
        "format": "campo-onnx-checkpoint-1",
        "signature": "0",
        "steps": "1",
        "scaler": '{"scale": 1.0}',
    }
    save_file(training.state(), path, metadata)


def bad_scaler(path: Path) -> None:
    training = session()
    metadata = {"format": "campo-onnx-checkpoint-1", "signature": training.interface.signature, "steps": "1"}
    save_file(training.state(), path, metadata | {"scaler": '{"scale": -1.0}'})


def no_scaler(path: Path) -> None:
    training = session()
    metadata = {"format": "campo-onnx-checkpoint-1", "signature": training.interface.signature, "steps": "1"}
    save_file(training.state(), path, metadata)


def nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (
            other_model,
            r"another model.*'opt\.m\.w' is float32\[3, 1\] here|another model.*is float32\[3, 1\] here",
        ),
        (renamed, r"another model: it lacks 'opt\.m\.w'"),
        (torn, "torn"),
        (torn_early, "torn"),
        (from_elsewhere, "no checkpoint of a training session"),
        (tampered, "signature"),
        (bad_scaler, "loss scale is -1"),
        (no_scaler, "only one of the two has a loss scale"),
        (nothing, "does not exist"),
        (Path.mkdir, "cannot be read"),
    ],
)
def test_wrong_checkpoints_change_nothing(tmp_path: Path, write: Callable[[Path], None], why: str) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    training = session()
    training.step(batch())
    before, scaler = training.state(), training.scaler
    with pytest.raises(UsageError, match=why):
        training.restore(path)
    assert_same(training.state(), before)
    assert (training.scaler, training.steps) == (scaler, 1)


def test_a_checkpoint_that_cannot_be_written_harms_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    training = session()
    training.save(path)
    earlier = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    training.step(batch())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        training.save(path)
    assert path.read_bytes() == earlier
    assert os.listdir(tmp_path) == ["a.safetensors"]
    with pytest.raises(UsageError, match="cannot be written"):
        training.save(tmp_path / "missing" / "a.safetensors")


def test_a_cuda_graph_needs_cuda() -> None:
    with pytest.raises(UsageError, match="CUDA graph"):
        session(cuda_graph=True)
