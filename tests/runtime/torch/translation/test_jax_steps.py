"""Training steps from JAX, run by torch's operations beside ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")
jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from jax import lax

from campo_onnx.export.jax import export_training_step
from tests.runtime.torch.translation.beside import TOLERANCE, worst_deviation

pytestmark = pytest.mark.slow

_GENERATOR = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return _GENERATOR.standard_normal(shape, np.float32) / 2


def cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def perceptron(p: Any, x: Any, y: Any) -> Any:
    return cross_entropy(jax.nn.gelu(jax.nn.relu(x @ p["a"] + p["b"]) @ p["c"]), y)


def convolution(p: Any, x: Any, y: Any) -> Any:
    z = lax.conv_general_dilated(x, p["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mean = z.mean((0, 1, 2))
    z = (z - mean) * lax.rsqrt(((z - mean) ** 2).mean((0, 1, 2)) + 1e-5)
    return cross_entropy(jax.nn.silu(z).mean((1, 2)) @ p["w"], y)


def pooled(p: Any, x: Any, y: Any) -> Any:
    z = lax.conv_general_dilated(x, p["k"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    z = lax.reduce_window(z, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    return cross_entropy(z.reshape(z.shape[0], -1) @ p["w"], y)


def attention(p: Any, x: Any, y: Any) -> Any:
    q, k, v = (jnp.einsum("btd,dhe->bhte", x, p[n]) for n in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k) / 2.0)
    z = jnp.einsum("bhts,bhse->bthe", weights, v).reshape(x.shape[0], x.shape[1], -1)
    return cross_entropy(z[:, 0] @ p["w"], y)


def recurrent(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        return jnp.tanh(row @ p["a"] + h @ p["b"]), None

    last, _ = lax.scan(step, jnp.zeros((x.shape[0], 4)), x.swapaxes(0, 1))
    return cross_entropy(last @ p["w"], y)


STEPS = {
    "perceptron": (perceptron, {"a": array(6, 8), "b": array(8), "c": array(8, 5)}, array(7, 6)),
    "convolution": (convolution, {"k": array(3, 3, 2, 6), "w": array(6, 5)}, array(7, 8, 8, 2)),
    "pooled": (pooled, {"k": array(3, 3, 2, 6), "w": array(54, 5)}, array(7, 8, 8, 2)),
    "attention": (attention, {n: array(6, 2, 3) for n in "qkv"} | {"w": array(6, 5)}, array(7, 4, 6)),
    "recurrent": (recurrent, {"a": array(3, 4), "b": array(4, 4), "w": array(4, 5)}, array(7, 5, 3)),
}


@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_onnx_runtime(name):
    loss, parameters, x = STEPS[name]
    y = np.arange(len(x), dtype=np.int32) % 5
    model = export_training_step(loss, parameters, {"x": x, "y": y}, loss_scale=False)
    feeds = {f"param.{key}": value for key, value in parameters.items()} | {"input.x": x, "input.y": y}
    assert {f"grad.{key}" for key in parameters} <= {v.name for v in model.graph.output}
    assert worst_deviation(model, feeds) < TOLERANCE
