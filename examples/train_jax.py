"""A JAX function, trained in cost-aware mixed precision on plain ONNX Runtime, with loss scaling.

    python examples/train_jax.py [DEVICE]

Needs ``pip install "campo-onnx[jax]"``; JAX is not needed for the training itself. DEVICE is what to plan
for (``campo-onnx devices``). Without a GPU the rounding to FP16 is emulated, which is slow.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.export.jax import export_function
from campo_onnx.runtime.registry import processor_for
from campo_onnx.training.loss_scaler import LossScaler
from campo_onnx.training.session import TrainingSession

ROWS, WIDTH = 1024, 1024


def loss(parameters: Any, x: Any, y: Any) -> Any:
    """Three layers, wide enough to gain from tensor cores."""
    hidden = jax.nn.relu(x @ parameters["first"] + parameters["bias"])
    hidden = jax.nn.relu(hidden @ parameters["second"])
    return ((hidden @ parameters["third"] - y) ** 2).mean()


def step(values: dict[str, Any]) -> dict[str, Any]:
    """Gradient descent on the scaled loss; ``new.X`` is the next value of ``param.X``."""

    def scaled(parameters: Any) -> tuple[Any, Any]:
        value = loss(parameters, **values["input"])
        return value * values["loss_scale"], value

    gradients, value = jax.grad(scaled, has_aux=True)(values["param"])
    gradients = jax.tree.map(lambda g: g / values["loss_scale"], gradients)
    total = sum(jnp.abs(g).sum() for g in jax.tree.leaves(gradients))
    return {
        "loss": value,
        "grads_finite": total - total == 0,  # when false, the session keeps the state
        "new": jax.tree.map(lambda p, g: p - values["lr"] * g, values["param"], gradients),
    }


def train(plan_for: str = "v100", steps: int = 20) -> list[float]:
    """Export one step, optimize it, run it again and again, and return the losses."""
    shapes = {"first": (64, WIDTH), "bias": (WIDTH,), "second": (WIDTH, WIDTH), "third": (WIDTH, 8)}
    random = np.random.default_rng(0)
    first = {name: 0.03 * random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    batch = {"x": jnp.zeros((ROWS, 64)), "y": jnp.zeros((ROWS, 8))}
    scalars = {"lr": jnp.zeros(()), "loss_scale": jnp.zeros(())}
    exported = export_function(step, {"param": first, "input": batch, **scalars})
    mixed = optimize_model(exported, Options(target=target(plan_for), lists=oplists("campo")))
    print(f"{len(mixed.plan.low_nodes)} of {len(mixed.plan.decisions)} nodes in {mixed.plan.low.value}")
    print(f"predicted for {plan_for}: {mixed.plan.speedup:.2f}x")

    provider = processor_for("auto")
    training = TrainingSession(
        mixed.model if provider == "cuda" else emulate(mixed.model),
        {f"param.{name}": value for name, value in first.items()},
        settings={"lr": 0.5},
        scaler=LossScaler(scale=2.0**12),  # the default starts higher, and finds its place by skipping steps
        provider=provider,
    )
    losses = []
    for _ in range(steps):
        x = random.standard_normal((ROWS, 64), dtype=np.float32)
        losses.append(training.step({"input.x": x, "input.y": np.tanh(x[:, :8])}).loss)
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:2])
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
