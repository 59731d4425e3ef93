"""JAX's parameters trained by sessions: what the loss shows, the last batch, evaluation, the way back."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")
optax = pytest.importorskip("optax", reason="optax is not installed (make test-frameworks installs it)")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp

from campo_onnx.errors import UsageError
from campo_onnx.export.jax import export_function, export_training_step
from campo_onnx.export.jax.state import first_state, tree_of
from campo_onnx.export.optimizers import Momentum
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import ParameterGroup, WeightUpdate

RATE, DECAY = 0.1, 0.01
GRAPH, PARAMETERS, _ = nnx.split(nnx.Linear(6, 3, rngs=nnx.Rngs(0)), nnx.Param, ...)


def loss(parameters: Any, batch: Any, *, how: str = "", weighs: bool = False, more: Any = None) -> Any:
    x, y = batch["x"], batch["y"]
    logits = nnx.merge(GRAPH, parameters, copy=True)(x)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    assert (how, more) == ("mean", None)
    value = (each * (y + 1)).mean() if weighs else each.mean()
    return value, {"logits": logits, "of": {"hits": (logits.argmax(1) == y).sum()}}


def batch_of(size: int) -> dict[str, Any]:
    x = np.random.default_rng(size).standard_normal((size, 6), dtype=np.float32)
    return {"x": x, "y": np.arange(size, dtype=np.int32) % 3}


def session(size: int, parameters: Any) -> TrainingSession:
    example = {"batch": batch_of(size), "how": "mean", "weighs": True, "more": None}
    step = export_training_step(loss, parameters, example)
    assert {v.name for v in step.graph.input} == {
        *("input.batch.x", "input.batch.y", "loss_scale", "param.bias", "param.kernel"),
    }
    groups = (ParameterGroup(parameters=("kernel",), weight_decay=DECAY),)
    update = WeightUpdate(optimizer=Momentum(momentum=0.9), groups=groups)
    state = first_state(parameters)
    return TrainingSession(step, state, update=update, settings={"lr": RATE}, provider="cpu", threads=1)


def test_an_epoch_with_a_smaller_last_batch_trains_and_is_evaluated_as_in_jax() -> None:
    training, last = session(8, PARAMETERS), session(5, PARAMETERS)
    parameters = PARAMETERS
    decay = optax.add_decayed_weights(DECAY, mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p))
    optimizer = optax.chain(decay, optax.sgd(RATE, 0.9))
    state = optimizer.init(parameters)
    options = {"how": "mean", "weighs": True}
    for size, runs in ((8, training), (8, training), (5, last)):
        if runs is last:
            last.load_state(training.state())
        batch = batch_of(size)
        result = runs.step({f"input.batch.{name}": value for name, value in batch.items()})
        (value, shown), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, batch, **options)
        assert result.loss == pytest.approx(float(value), rel=1e-5)
        assert result.metrics["output.logits"] == pytest.approx(
            np.asarray(shown["logits"]), rel=1e-4, abs=1e-5
        )
        assert result.metrics["output.of.hits"] == shown["of"]["hits"]
        updates, state = optimizer.update(gradients, state, parameters)
        parameters = optax.apply_updates(parameters, updates)

    weights = tree_of(last.state(), PARAMETERS)
    assert jax.tree.structure(weights) == jax.tree.structure(PARAMETERS)
    for ours, theirs in zip(jax.tree.leaves(weights), jax.tree.leaves(parameters), strict=True):
        assert ours == pytest.approx(np.asarray(theirs), rel=1e-4, abs=1e-6)

    def evaluated(inputs: Any) -> Any:
        value, shown = loss(inputs["param"], inputs["input"], how="mean")
        return {"loss": value, "output": shown}

    import onnxruntime

    model = export_function(evaluated, {"param": PARAMETERS, "input": batch_of(4)})
    runs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    batch = {f"input.{name}": value for name, value in batch_of(4).items()}
    (value,) = runs.run(["loss"], first_state(weights) | batch)
    assert value == pytest.approx(float(loss(parameters, batch_of(4), how="mean")[0]), rel=1e-4)


def test_what_a_loss_may_return_and_a_state_must_have() -> None:
    weights, x = {"w": np.ones((3, 2), np.float32)}, np.ones((4, 3), np.float32)
    with pytest.raises(UsageError, match=r"not a scalar but tuple. Return the scalar alone, or \(loss, {"):
        export_training_step(lambda p, x: ((x @ p["w"]).sum(), jnp.sum(x)), weights, {"x": x})
    with pytest.raises(UsageError, match=r"not a scalar but of shape \(4, 2\)"):
        export_training_step(lambda p, x: x @ p["w"], weights, {"x": x})
    with pytest.raises(UsageError, match=r"the state lacks param.v"):
        tree_of(first_state(weights), {"v": 0})
