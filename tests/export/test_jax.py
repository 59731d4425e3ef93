"""Exported JAX steps against JAX: the loss and every gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import SGD
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from against_jax import TOLERANCE, array, run, worst_deviation
from jax import lax

from campo_onnx.export.jax import export_function, export_training_step


def cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def mlp(p: Any, x: Any, y: Any) -> Any:
    return cross_entropy(jax.nn.gelu(jax.nn.relu(x @ p["a"] + p["b"]) @ p["c"]), y)


def normalized(y: Any, scale: Any, axes: tuple[int, ...]) -> Any:
    mean = y.mean(axes, keepdims=True)
    return scale * (y - mean) * lax.rsqrt(((y - mean) ** 2).mean(axes, keepdims=True) + 1e-5)


def conv_batch_norm(p: Any, x: Any, y: Any, stride: int, layout: tuple[str, str, str]) -> Any:
    z = lax.conv_general_dilated(x, p["k"], (stride, stride), "SAME", dimension_numbers=layout)
    channels_last = layout[0] == "NHWC"
    scale = p["s"] if channels_last else p["s"][:, None, None]
    z = jax.nn.relu(normalized(z, scale, (0, 1, 2) if channels_last else (0, 2, 3)))
    return cross_entropy(z.mean((1, 2) if channels_last else (2, 3)) @ p["w"], y)


def pooled(p: Any, x: Any, y: Any, average: bool) -> Any:
    z = lax.conv_general_dilated(x, p["k"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    if average:
        z = lax.reduce_window(z, 0.0, lax.add, window, strides, "VALID") / 4
    else:
        z = lax.reduce_window(z, -jnp.inf, lax.max, window, strides, "SAME")
    return cross_entropy(z.reshape(z.shape[0], -1) @ p["w"], y)


def attention(p: Any, x: Any, y: Any) -> Any:
    q, k, v = (jnp.einsum("btd,dhe->bhte", x, p[n]) for n in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k) / 2.0)
    z = jnp.einsum("bhts,bhse->bthe", weights, v).reshape(x.shape[0], x.shape[1], -1)
    return cross_entropy(normalized(z @ p["o"] + x, p["s"], (-1,)).mean(1), y)


LABELS = jnp.asarray([0, 2, 1, 2])
PROJECTIONS = {n: array(8, 2, 4, seed=i) for i, n in enumerate("qkv")}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "mlp": (mlp, {"a": array(6, 8), "b": array(8), "c": array(8, 3)}, array(4, 6)),
    "conv_nhwc": (
        lambda p, x, y: conv_batch_norm(p, x, y, 1, ("NHWC", "HWIO", "NHWC")),
        {"k": array(3, 3, 2, 4), "s": array(4), "w": array(4, 3)}, array(4, 7, 6, 2),
    ),
    "conv_strided_nhwc": (
        lambda p, x, y: conv_batch_norm(p, x, y, 2, ("NHWC", "HWIO", "NHWC")),
        {"k": array(3, 3, 2, 4), "s": array(4), "w": array(4, 3)}, array(4, 8, 7, 2),
    ),
    "conv_strided_nchw": (
        lambda p, x, y: conv_batch_norm(p, x, y, 2, ("NCHW", "OIHW", "NCHW")),
        {"k": array(4, 2, 3, 3), "s": array(4), "w": array(4, 3)}, array(4, 2, 8, 7),
    ),
    "max_pool": (
        lambda p, x, y: pooled(p, x, y, average=False),
        {"k": array(3, 3, 2, 4), "w": array(4 * 9, 3)}, array(4, 7, 7, 2),
    ),
    "avg_pool": (
        lambda p, x, y: pooled(p, x, y, average=True),
        {"k": array(3, 3, 2, 4), "w": array(4 * 4, 3)}, array(4, 7, 7, 2),
    ),
    "attention": (attention, PROJECTIONS | {"o": array(8, 8), "s": array(8)}, array(4, 5, 8)),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "parameters", "x"), CASES.values(), ids=list(CASES))
def test_value_and_grad(loss: Callable[..., Any], parameters: dict[str, Any], x: Any) -> None:
    assert worst_deviation(loss, parameters, x=x, y=LABELS) < TOLERANCE


def test_depthwise_convolution() -> None:
    def loss(p: Any, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        z = lax.conv_general_dilated(
            x, p["k"], (2, 2), "SAME", dimension_numbers=layout, feature_group_count=4
        )
        return jnp.tanh(z).sum()

    assert worst_deviation(loss, {"k": array(3, 3, 1, 4)}, x=array(2, 7, 7, 4)) < TOLERANCE


def test_lookups_with_repeated_indices_on_several_threads() -> None:
    def loss(p: Any, i: Any) -> Any:
        return (jnp.tanh(p["w"][i]) * jnp.arange(16.0)).sum()

    parameters, i = {"w": array(2, 16)}, jnp.asarray(np.random.default_rng(0).integers(0, 2, (8, 64)))
    model = export_training_step(loss, parameters, {"i": i}, loss_scale=False)
    assert "ScatterND" not in {node.op_type for node in model.graph.node}
    for _ in range(5):
        assert worst_deviation(loss, parameters, i=i) < TOLERANCE


def test_loss_scale_leaves_gradients_unscaled_and_reports_overflow() -> None:
    parameters, x = {"a": array(6, 8), "b": array(8), "c": array(8, 3)}, array(4, 6)
    model = export_training_step(mlp, parameters, {"x": x, "y": LABELS})
    feeds = {f"param.{n}": v for n, v in parameters.items()} | {"input.x": x, "input.y": LABELS}
    out = run(model, feeds | {"loss_scale": np.float32(1024)})
    gradients = jax.grad(mlp)(parameters, x, LABELS)
    assert out["grads_finite"]
    assert np.allclose(out["grad.a"], gradients["a"], rtol=1e-4, atol=1e-6)
    assert not run(model, feeds | {"loss_scale": np.float32(np.inf)})["grads_finite"]


def test_a_whole_step_is_named_by_its_dictionaries() -> None:
    def step(inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(mlp)(inputs["param"], **inputs["input"])
        new = jax.tree.map(lambda p, g: p - inputs["lr"] * g, inputs["param"], gradients)
        return {"loss": loss, "new": new}

    parameters, x = {"a": array(6, 8), "b": array(8), "c": array(8, 3)}, array(4, 6)
    model = export_function(step, {"param": parameters, "input": {"x": x, "y": LABELS}, "lr": jnp.float32(0)})
    assert {value.name for value in model.graph.output} == {"loss", "new.a", "new.b", "new.c"}


def test_inputs_and_outputs_are_not_called_the_same() -> None:
    with pytest.raises(UsageError, match=r"x is an input and an output"):
        export_function(lambda inputs: {"x": inputs["x"] + 1}, {"x": array(2)})


def test_nodes_are_named_after_scopes() -> None:
    def loss(p: Any, x: Any) -> Any:
        with jax.named_scope("encoder"):
            return jnp.tanh(x @ p["w"]).sum()

    model = export_training_step(loss, {"w": array(3, 2)}, {"x": array(4, 3)}, loss_scale=False)
    names = [node.name for node in model.graph.node]
    assert "encoder/MatMul" in names
    assert any(name.startswith("encoder/grad/") for name in names)


def test_weight_gradients_take_no_transpose() -> None:
    parameters, x = {"a": array(6, 8), "b": array(8), "c": array(8, 3)}, array(4, 6)
    model = export_training_step(mlp, parameters, {"x": x, "y": LABELS}, loss_scale=False)
    assert "Transpose" not in {node.op_type for node in model.graph.node}


def repeated(p: Any, x: Any) -> Any:
    return (lax.while_loop(lambda h: h.sum() < 3, lambda h: h + 1, x) @ p["w"]).sum()


def long(p: Any, x: Any) -> Any:
    return lax.fori_loop(0, 50_000, lambda _, h: jnp.tanh(h @ p["w"]), x).sum()


def decided(p: Any, x: Any) -> Any:
    return (x @ p["w"]).sum() if x.sum() > 0 else 0.0


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (repeated, UnsupportedModelError, "control flow cannot be exported: while"),
        (long, UnsupportedModelError, "a loop of 50000 turns .* too long to be unrolled"),
        (decided, UnsupportedModelError, "looks at the data"),
        (lambda p, x: x @ p["w"], UsageError, "not a scalar"),
        (
            lambda p, x: jnp.linalg.eigh(x[:3] @ p["w"])[0].sum(),
            UnsupportedModelError,
            "no translation .*eigh",
        ),
    ],
    ids=["loop", "long_loop", "decision", "vector", "linear_algebra"],
)
def test_refusals_name_what_is_wrong(loss: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        export_training_step(loss, {"w": array(3, 3)}, {"x": array(4, 3)})


def test_another_opset_is_refused() -> None:
    with pytest.raises(UsageError, match="opset 17"):
        export_training_step(mlp, {}, {}, opset=17)


def test_a_session_updates_the_weights_from_scaled_gradients() -> None:
    parameters = {"dense": {"a": array(6, 8), "b": array(8)}, "c": array(8, 3)}

    def loss(p: Any, x: Any, y: Any) -> Any:
        return mlp({**p["dense"], "c": p["c"]}, x, y)

    inputs = {"x": array(4, 6), "y": LABELS}
    model = export_training_step(loss, parameters, inputs, unscale=False)
    assert "scaled_grad.dense.a" in {value.name for value in model.graph.output}
    first = {
        "param.dense.a": parameters["dense"]["a"],
        "param.dense.b": parameters["dense"]["b"],
        "param.c": parameters["c"],
    }
    training = TrainingSession(
        model,
        {name: np.asarray(value) for name, value in first.items()},
        update=WeightUpdate(optimizer=SGD(), accumulate=2),
        settings={"lr": 0.1},
        provider="cpu",
        threads=2,
    )
    feeds = {f"input.{name}": np.asarray(value) for name, value in inputs.items()}
    for step in range(3):
        assert [training.step(feeds).updated for _ in range(2)] == [False, True], step
        gradients = jax.grad(loss)(parameters, **inputs)
        parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)
    state = training.state()
    np.testing.assert_allclose(state["param.dense.a"], parameters["dense"]["a"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state["param.dense.b"], parameters["dense"]["b"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state["param.c"], parameters["c"], rtol=1e-4, atol=1e-6)


def of_labels(p: Any, x: Any, y: Any) -> Any:
    """The loss of optax, as it writes it."""
    logits = x @ p["w"]
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    return (normalizer - jax.vmap(lambda row, label: row[label])(logits, y)).mean()


def picked(p: Any, x: Any) -> Any:
    w = p["w"]
    rows, columns = jnp.asarray([0, 2, 2]), jnp.asarray([1, 0, 1])
    parts = w[rows, columns] * 2, w[:, columns], w[1:, rows[:2]] ** 2, w[::-1, 1], w[rows][:, None]
    return sum((jnp.tanh(part) * (i + 1)).sum() for i, part in enumerate(parts)) + x.sum()


def written(p: Any, x: Any) -> Any:
    w, rows = p["w"], jnp.asarray([0, 2, 2])
    y = jnp.zeros((4, 3)).at[rows, jnp.asarray([1, 0, 1])].set(w[0])
    z = x.at[rows].add(w).at[1, :2].multiply(w[1, :2]).at[0].max(w[1]).at[:, 1].min(w[:, 0].sum())
    return (jnp.tanh(y) * jnp.arange(12.0).reshape(4, 3)).sum() + (z**2).sum()


def sliced(p: Any, x: Any) -> Any:
    start = jnp.argmax(x[0])
    part = lax.dynamic_slice(p["w"], (start, 0), (2, 3))
    return (lax.dynamic_update_slice(x, part * 2, (1, start)) ** 2).sum()


def looped(p: Any, x: Any) -> Any:
    def turn(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ p["w"] + row)
        return h, h * 2

    last, rows = lax.scan(turn, jnp.zeros(3), x)
    _, back = lax.scan(turn, last, x, reverse=True)
    return (rows**2).sum() + (back * jnp.arange(12.0).reshape(4, 3)).sum()


def whole(p: Any, x: Any) -> Any:
    count = (jnp.arange(-6, 6) // 4) + jnp.arange(12) % 5 + (jnp.arange(12) & 3)
    return ((x @ p["w"]).ravel() * count).sum()


def inverted(p: Any, x: Any) -> Any:
    return (jax.scipy.special.erfinv(jnp.tanh(x @ p["w"])) * jnp.arange(12.0).reshape(4, 3)).sum()


SMALL: dict[str, Callable[..., Any]] = {
    "gather": picked, "scatter": written, "slices": sliced, "scan": looped, "integers": whole,
    "erf_inverse": inverted,
}  # fmt: skip


@pytest.mark.parametrize("loss", SMALL.values(), ids=list(SMALL))
def test_lookups_loops_and_integers(loss: Callable[..., Any]) -> None:
    assert worst_deviation(loss, {"w": array(3, 3)}, x=array(4, 3)) < TOLERANCE


def test_the_loss_that_picks_by_label() -> None:
    assert worst_deviation(of_labels, {"w": array(6, 3)}, x=array(4, 6), y=LABELS) < TOLERANCE


@pytest.mark.parametrize(
    ("window", "strides"),
    [((1, 1, 2, 2, 1), (1, 1, 2, 2, 1)), ((1, 2, 2, 2, 1), (1, 2, 1, 2, 1)), ((2, 3), (1, 2))],
)
def test_windows_over_any_axes(window: tuple[int, ...], strides: tuple[int, ...]) -> None:
    shape = (2, 3, 6, 5, 2) if len(window) == 5 else (6, 9)

    def loss(p: Any, x: Any) -> Any:
        y = x * p["w"]
        largest = lax.reduce_window(y, -jnp.inf, lax.max, window, strides, "VALID")
        total = lax.reduce_window(y, 0.0, lax.add, window, strides, "SAME")
        return (largest * jnp.linspace(-1, 1, largest.size).reshape(largest.shape)).sum() + (total**2).sum()

    assert worst_deviation(loss, {"w": array(*shape)}, x=array(*shape, seed=1)) < TOLERANCE


def dropped(p: Any, x: Any, key: Any) -> Any:
    first, second = jax.random.split(key)
    y = jnp.where(jax.random.bernoulli(first, 0.7, (40, 50)), x @ p["w"], 0.0)
    return y.sum() + 0 * jax.random.normal(second, (3,)).sum() + (jax.random.uniform(second, (4,)) * 2).sum()


def test_random_numbers_are_drawn_anew_and_used_twice_where_a_key_is() -> None:
    parameters, x = {"w": jnp.ones((3, 50))}, jnp.ones((40, 3))
    model = export_training_step(dropped, parameters, {"x": x, "key": jax.random.key(0)}, loss_scale=False)
    assert [value.name for value in model.graph.input] == ["input.x", "param.w"]  # a key is no input
    feeds = {"input.x": np.asarray(x), "param.w": np.asarray(parameters["w"])}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [session.run(["loss", "grad.w"], feeds) for _ in range(2)]
    assert outputs[0][0] != outputs[1][0]
    # Every element that was kept gives 3 to the loss and 1 to the gradient: the mask is the same both times.
    for loss, gradient in outputs:
        kept = gradient[0].sum()
        assert 0.6 * 2000 < kept < 0.8 * 2000
        assert 0 <= float(loss) - 3 * kept <= 8
    recomputed = jax.checkpoint(dropped)
    again = export_training_step(recomputed, parameters, {"x": x, "key": jax.random.key(0)}, loss_scale=False)
    count = [node.op_type for node in again.graph.node].count("RandomUniform")
    assert count == [node.op_type for node in model.graph.node].count("RandomUniform")


def test_what_a_constant_key_draws_is_a_constant() -> None:
    def loss(p: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.fold_in(jax.random.PRNGKey(3), 1), 0.5, (4, 3))
        return (jnp.where(keep, x @ p["w"], 0.0) * jax.random.normal(jax.random.key(1), (4, 3))).sum()

    assert worst_deviation(loss, {"w": array(3, 3)}, x=array(4, 3)) < TOLERANCE


def test_a_long_sum_over_leading_axes_is_as_exact_as_jaxs() -> None:
    x = np.random.default_rng(0).standard_normal((16, 32, 32, 8)).astype(np.float32) + 1

    def loss(p: Any, x: Any) -> Any:
        return jnp.square(x * p["scale"]).sum((0, 1, 2)).sum()

    model = export_training_step(loss, {"scale": np.ones(8, np.float32)}, {"x": x}, loss_scale=False)
    out = run(model, {"param.scale": np.ones(8, np.float32), "input.x": x})
    exact = 2 * np.square(x.astype(np.float64)).sum((0, 1, 2))
    # One term after the other is wrong by several times as much.
    assert np.linalg.norm(out["grad.scale"] - exact) < 4e-7 * np.linalg.norm(exact)


def test_a_mask_before_a_logarithm_of_a_sum_keeps_no_gradient_in_fp32() -> None:
    def loss(p: Any, x: Any, seen: Any) -> Any:
        scores = jnp.where(seen > 0, x @ p["w"], -1e30)
        return jax.scipy.special.logsumexp(scores, axis=-1).mean()

    model = export_training_step(loss, {"w": array(8, 16)}, {"x": array(4, 8), "seen": array(4, 16)})
    plan = optimize_model(model, Options(target=target("v100"), lists=oplists("campo"))).plan
    products = [d for d in plan.decisions if d.op_type in ("Gemm", "MatMul")]
    assert len(products) > 1
    assert not [d for d in products if d.decided_by is Reason.VALUE_OVERFLOW]
