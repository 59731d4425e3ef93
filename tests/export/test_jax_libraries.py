"""Steps as users of optax, flax and equinox write them, held against the same step in JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")
optax = pytest.importorskip("optax", reason="optax is not installed (make test-frameworks installs it)")
pytest.importorskip("flax", reason="flax is not installed (make test-frameworks installs it)")
eqx = pytest.importorskip("equinox", reason="equinox is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from flax import linen, nnx
from flax.training.train_state import TrainState

from campo_onnx.errors import CampoError
from campo_onnx.export.jax import export_function
from campo_onnx.export.jax.state import names_of

X = np.random.default_rng(0).standard_normal((4, 6), dtype=np.float32)
BATCH = {"x": X, "y": np.arange(4, dtype=np.int32) % 3}
PARAMETERS = {"w": X[:, :3].T @ X, "b": np.zeros(6, np.float32)}

Step = Callable[[Any], Any]


def entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def array(leaf: Any) -> Any:
    return np.asarray(leaf, np.int32 if isinstance(leaf, int) else None)


def worst(step: Step, inputs: Any) -> float:
    """Run two steps, exported and in JAX, each on what its own first one returned as ``state``."""
    model = export_function(step, inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    reads = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    feeds = dict(zip(names_of(inputs), jax.tree.leaves(inputs), strict=True))
    feeds = {name: array(feeds[name]) for name in reads}
    far = 0.0
    for _ in range(2):
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        expected = step(inputs)
        for name, leaf in zip(names_of(expected), map(array, jax.tree.leaves(expected)), strict=True):
            far = max(far, float(np.abs(outputs[name] - leaf).max() / (np.abs(leaf).max() or 1)))
        feeds |= {k: v for k, v in outputs.items() if k in reads}
        feeds |= {f"state.{k.removeprefix('new.')}": v for k, v in outputs.items() if k.startswith("new.")}
        feeds = {k: v for k, v in feeds.items() if k in reads}
        inputs = {**inputs, "state": expected["new"]}
    return far


def of_optax(transformation: Any) -> tuple[Step, Any]:
    def step(inputs: Any) -> Any:
        parameters, state = inputs["state"]["p"], inputs["state"]["o"]
        loss, gradients = jax.value_and_grad(
            lambda p: entropy(inputs["x"] @ p["w"].T + p["b"][:3], inputs["y"])
        )(parameters)
        updates, state = transformation.update(gradients, state, parameters)
        return {"loss": loss, "new": {"p": optax.apply_updates(parameters, updates), "o": state}}

    return step, {"state": {"p": PARAMETERS, "o": transformation.init(PARAMETERS)}, **BATCH}


def of_linen(transformation: Any) -> tuple[Step, Any]:
    module = linen.Sequential([linen.Dense(8), linen.relu, linen.Dense(3)])
    parameters = module.init(jax.random.key(0), X)["params"]
    state = TrainState.create(apply_fn=module.apply, params=parameters, tx=transformation)

    @jax.jit
    def step(inputs: Any) -> Any:
        now = inputs["state"]
        loss, gradients = jax.value_and_grad(
            lambda p: entropy(now.apply_fn({"params": p}, inputs["x"]), inputs["y"])
        )(now.params)
        return {"loss": loss, "new": now.apply_gradients(grads=gradients)}

    return step, {"state": state, **BATCH}


class Network(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        # A bias before the normalization would have a gradient that is zero but for rounding.
        self.first = nnx.Linear(6, 8, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.norm(self.first(x))))


def of_nnx(transformation: Any) -> tuple[Step, Any]:
    network = Network(nnx.Rngs(0))
    graph, state = nnx.split((network, nnx.Optimizer(network, transformation, wrt=nnx.Param)))

    def step(inputs: Any) -> Any:
        module, optimizer = nnx.merge(graph, inputs["state"])
        loss, gradients = nnx.value_and_grad(lambda m: entropy(m(inputs["x"]), inputs["y"]))(module)
        optimizer.update(module, gradients)
        return {"loss": loss, "new": nnx.state((module, optimizer))}

    return step, {"state": state, **BATCH}


def of_equinox(transformation: Any) -> tuple[Step, Any]:
    network = eqx.nn.MLP(6, 3, 8, 2, key=jax.random.key(0))
    arrays, rest = eqx.partition(network, eqx.is_inexact_array)

    @eqx.filter_value_and_grad
    def loss_of(module: Any, x: Any, y: Any) -> Any:
        return entropy(jax.vmap(module)(x), y)

    def step(inputs: Any) -> Any:
        module = eqx.combine(inputs["state"]["m"], rest)
        loss, gradients = loss_of(module, inputs["x"], inputs["y"])
        updates, state = transformation.update(
            gradients, inputs["state"]["o"], eqx.filter(module, eqx.is_inexact_array)
        )
        module = eqx.apply_updates(module, updates)
        return {"loss": loss, "new": {"m": eqx.filter(module, eqx.is_inexact_array), "o": state}}

    return step, {"state": {"m": arrays, "o": transformation.init(arrays)}, **BATCH}


def usual() -> Any:
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 1e-2, 10, 100)
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, weight_decay=0.01))


@pytest.mark.parametrize("library", [of_optax, of_linen, of_nnx, of_equinox])
def test_a_clipped_and_scheduled_adamw_steps_as_in_jax(library: Callable[[Any], tuple[Step, Any]]) -> None:
    assert worst(*library(usual())) < 1e-5


@pytest.mark.parametrize(
    "transformation",
    [
        optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
        optax.multi_transform({"a": optax.lamb(1e-3), "s": optax.sgd(0.1, 0.9)}, {"w": "a", "b": "s"}),
        optax.chain(
            optax.masked(optax.add_decayed_weights(0.1), {"w": True, "b": False}), optax.adafactor(1e-3)
        ),
        optax.MultiSteps(optax.adam(0.1), 2),
        optax.chain(optax.lion(optax.piecewise_constant_schedule(1e-3, {1: 0.1})), optax.ema(0.9)),
    ],
    ids=["injected", "groups", "masked", "every second step", "pieces"],
)
def test_other_transformations_step_as_in_jax(transformation: Any) -> None:
    assert worst(*of_optax(transformation)) < 1e-5


@pytest.mark.parametrize(
    ("transformation", "message"),
    [
        (lambda: optax.add_noise(0.1, 0.5, 0), r"'new.o.rng_key' is made of a random key.*nnx.RngState"),
    ],
    ids=["noise"],
)
def test_what_keeps_a_key_is_refused(transformation: Any, message: str) -> None:
    with pytest.raises(CampoError, match=message):
        export_function(*of_optax(transformation()))


def test_a_module_with_functions_in_it_is_taken_apart_first() -> None:
    network = eqx.nn.MLP(6, 3, 8, 2, key=jax.random.key(0))
    with pytest.raises(CampoError, match=r"'m.activation' is not an array .*eqx.partition"):
        export_function(lambda inputs: {"y": jax.vmap(inputs["m"])(jnp.asarray(X))}, {"m": network})
