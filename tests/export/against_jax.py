"""Exported JAX steps in ONNX Runtime, beside JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from lowered_forms import lowered_forms

from campo_onnx.export.jax import export_training_step

TOLERANCE = 1e-4


def array(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32))


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, {n: np.asarray(v) for n, v in feeds.items()}), strict=True))


def worst_deviation(loss: Callable[..., Any], parameters: dict[str, Any], **inputs: Any) -> float:
    model = export_training_step(loss, parameters, inputs, loss_scale=False)
    onnx.checker.check_model(model, full_check=True)
    feeds = {f"param.{n}": v for n, v in parameters.items()} | {f"input.{n}": v for n, v in inputs.items()}
    actual, *others = (run(form, feeds) for form in (model, *lowered_forms(model)))
    value, gradients = jax.value_and_grad(loss)(parameters, **inputs)
    expected = {"loss": value} | {f"grad.{n}": g for n, g in gradients.items()}
    assert set(actual) == set(expected)
    return max(
        float(np.abs(results[n] - np.asarray(e)).max() / np.abs(np.asarray(e)).max())
        for results in (actual, *others)
        for n, e in expected.items()
    )
