"""Exported JAX steps whose gradients cancel, as emulated."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from against_jax import array, run
from jax import lax

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.emulation.drift import most_drift
from campo_onnx.emulation.numerics import emulate, relative_l2
from campo_onnx.export.jax import export_training_step

STATES = 8


def hidden_markov(p: Any, x: Any) -> Any:
    """The likelihood of a sequence: scaling all transitions from a state changes little of it."""
    seen, moves = jax.nn.softmax(jnp.tanh(x @ p["first"]) @ p["last"]), jax.nn.softmax(p["moves"])

    def turn(state: Any, row: Any) -> tuple[Any, Any]:
        state = (state @ moves) * row
        total = state.sum(-1, keepdims=True)
        return state / total, jnp.log(total[:, 0])

    return -lax.scan(turn, jnp.full((x.shape[1], STATES), 1 / STATES), seen)[1].sum(0).mean()


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_weights_that_a_softmax_normalizes(low: Precision, seed: int) -> None:
    """The common part of the gradients of all time steps cancels in their sum: 2 % and 11 % were lost."""
    parameters = {
        "first": array(16, 32, seed=seed) / 4,
        "last": array(32, STATES, seed=seed) / 6,
        "moves": array(STATES, STATES, seed=seed),
    }
    x = array(50, 8, 16, seed=seed)
    model = export_training_step(hidden_markov, parameters, {"x": x})
    free = replace(target("v100" if low is Precision.FP16 else "h200"), launch_us=1e-6, host_us=1e-6)
    options = Options(target=free, low=low, lists=oplists("campo"), margin_us=1e12, min_gain=0.0, pads=False)
    optimized = optimize_model(model, options)
    assert optimized.plan.low_nodes
    feeds = {f"param.{n}": v for n, v in parameters.items()} | {"input.x": x}
    feeds["loss_scale"] = np.float32(4096 if low is Precision.FP16 else 1)
    expected, actual = run(model, feeds), run(emulate(optimized.model), feeds)
    error = relative_l2(actual["grad.moves"], expected["grad.moves"])
    assert error < most_drift(low) / 4
