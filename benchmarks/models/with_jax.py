"""Models of flax and equinox, with losses of optax, beside JAX itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
from flax import linen, nnx

from benchmarks.models.case import Case
from benchmarks.models.exactness import MOMENTUM, RATE, STEPS, Arrays, Framework, Trained
from campo_onnx.export.jax import export_training_step
from campo_onnx.export.jax.state import first_state, names_of

LABELS = np.arange(4, dtype=np.int32) % 3


def _drawn(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _of_labels(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class _Convolutions(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.BatchNorm(use_running_average=False)(linen.Conv(8, (3, 3), use_bias=False)(x))
        x = linen.avg_pool(linen.relu(x), (2, 2), (2, 2))
        x = linen.GroupNorm(2)(linen.max_pool(linen.swish(linen.Conv(8, (3, 3), (2, 2))(x)), (2, 2), (2, 2)))
        return linen.Dense(3)(x.reshape(x.shape[0], -1))


class _Recurrent(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        words = linen.Embed(20, 6)(x)
        nothing = jnp.zeros((len(x), 8), words.dtype)
        return linen.Dense(3)(linen.RNN(linen.LSTMCell(8))(words, initial_carry=(nothing, nothing))[:, -1])


def _linen(module: Any, x: Any, *state: str) -> Case:
    variables = module.init(jax.random.key(0), x)
    others = {name: variables[name] for name in state}

    def loss(p: Any, x: Any, y: Any) -> Any:
        output = module.apply({"params": p, **others}, x, mutable=list(state))
        return _of_labels(output[0] if isinstance(output, tuple) else output, y)

    return Case(module=None, parameters=variables["params"], inputs={"x": x, "y": LABELS}, loss=loss)


class _Block(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.embed, self.norm = nnx.Embed(20, 8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.out = nnx.Linear(8, 20, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.embed(x)
        y = y + self.attention(self.norm(y), mask=nnx.make_causal_mask(x))
        return self.out(nnx.gelu(y))


def _nnx() -> Case:
    graph, parameters, rest = nnx.split(_Block(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p: Any, x: Any) -> Any:
        return _of_labels(nnx.merge(graph, p, rest, copy=True)(x)[:, :-1], x[:, 1:])

    words = np.random.default_rng(0).integers(0, 20, (3, 7)).astype(np.int32)
    return Case(module=None, parameters=parameters, inputs={"x": words}, loss=loss)


def _equinox(module: Any, x: Any) -> Case:
    parameters, static = eqx.partition(module, eqx.is_inexact_array)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return _of_labels(jax.vmap(eqx.combine(p, static))(x), y)

    return Case(module=None, parameters=parameters, inputs={"x": x, "y": LABELS}, loss=loss)


def _images() -> Case:
    first, second = jax.random.split(jax.random.key(0))
    layers = [
        eqx.nn.Conv2d(3, 4, 3, key=first),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(36, 3, key=second),
    ]
    return _equinox(eqx.nn.Sequential(layers), _drawn(4, 3, 8, 8))


FAMILIES: Mapping[str, Mapping[str, Callable[[], Case]]] = {
    "flax": {
        "linen_convolutions": lambda: _linen(_Convolutions(), _drawn(4, 16, 16, 3), "batch_stats"),
        "linen_lstm": lambda: _linen(
            _Recurrent(), np.random.default_rng(0).integers(0, 20, (4, 6)).astype(np.int32)
        ),
        "nnx_attention": _nnx,
    },
    "equinox": {
        "perceptron": lambda: _equinox(eqx.nn.MLP(6, 3, 16, 2, key=jax.random.key(0)), _drawn(4, 6)),
        "images": _images,
    },
}


def _named(tree: Any) -> Arrays:
    """Name leaves as the exporter does."""
    return dict(zip(names_of(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True))


def drawn(case: Case, number: int) -> Case:
    """Give a case other weights and another batch."""
    random = np.random.default_rng(number)

    def moved(value: Any) -> Any:
        if not number or value.dtype != np.float32:
            return value
        return np.asarray(value * (1 + 0.3 * random.standard_normal(value.shape)), np.float32)

    parameters, inputs = jax.tree.map(moved, (case.parameters, case.inputs))
    return replace(case, parameters=parameters, inputs=inputs)


def _from_jax(case: Case) -> onnx.ModelProto:
    return export_training_step(case.loss, case.parameters, case.inputs)


def _feeds(case: Case, _: onnx.ModelProto) -> Arrays:
    return first_state(case.parameters) | {
        f"input.{name}": np.asarray(value) for name, value in case.inputs.items()
    }


def _in_jax(case: Case, is_exact: bool) -> Trained:
    """Train with gradient descent and momentum."""
    with jax.enable_x64(is_exact):
        parameters, inputs = jax.tree.map(
            lambda v: jnp.asarray(v, jnp.float64 if v.dtype == np.float32 and is_exact else v.dtype),
            (case.parameters, case.inputs),
        )
        optimizer = optax.sgd(RATE, MOMENTUM)
        state, first = optimizer.init(parameters), None
        for _ in range(STEPS):
            loss, gradients = jax.value_and_grad(case.loss)(parameters, **inputs)
            first = (float(loss), _named(gradients)) if first is None else first
            updates, state = optimizer.update(gradients, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        assert first is not None
        return Trained(loss=first[0], gradients=first[1], weights=_named(parameters))


JAX = Framework(export=_from_jax, feeds=_feeds, train=_in_jax)
