"""A training step made by hand, for the tests of sessions, checkpoints and the progress display."""

import re
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import parser

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


def gradient_model(*changes: tuple[str, str], scaled: bool = False) -> onnx.ModelProto:
    """Leave the update of :data:`STEP` to the session."""
    grad = "scaled_grad" if scaled else "grad"
    unscaling = (
        ("bool grads_finite, ", ""),
        ("nothing = Mul(g, zero)", ""),
        ("grads_finite = Equal(total, zero)", ""),
        ("total = ReduceSum<keepdims = 0>(nothing)", ""),
        ("g = Div(g_scaled, loss_scale)", ""),
        ("g_scaled = MatMul", "scaled_grad.w = MatMul"),
    )
    renamed = (("g = Div(", "grad.w = Div("), ("nothing = Mul(g,", "nothing = Mul(grad.w,"))
    return step_model(
        *(unscaling if scaled else renamed),
        ("float[3, 1] opt.m.w, float step, ", ""),
        ("float lr, ", ""),
        ("float[3, 1] new.w,", f"float[3, 1] {grad}.w,"),
        (", float[3, 1] new_m.w,\n            float step_out", ""),
        ("m_kept = Mul(opt.m.w, momentum)", ""),
        ("new_m.w = Add(m_kept, g)", ""),
        ("change = Mul(new_m.w, lr)", ""),
        ("new.w = Sub(param.w, change)", ""),
        ("step_out = Add(step, one)", ""),
        *changes,
    )


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
