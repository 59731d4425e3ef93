"""Primitives of JAX that ONNX lacks: losses and gradients, against JAX in FP64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
import jax.scipy as jsp
from against_jax import run
from jax import lax

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.jax import export_training_step

AT_MOST = 1e-6
EDGES, SOME = jnp.asarray([0.2, 0.5, 0.7, 1.1]), jnp.arange(6.0)


def definite(w: Any) -> Any:
    return w @ w.T + 2 * jnp.eye(len(w))


def many(w: Any) -> Any:
    return jnp.stack([definite(w), definite(w * 2)])


def lower(w: Any) -> Any:
    return jnp.tril(definite(w))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "lgamma": lambda w: jsp.special.gammaln(w - 1) + jsp.special.gammaln(w * 9),
    "digamma": lambda w: jsp.special.digamma(w - 1.3) + jsp.special.digamma(w * 9),
    "bessel": lambda w: jsp.special.i0e(w * 9) * jsp.special.i1(w - 1),
    "atan2": lambda w: jnp.arctan2(w - 1, w[::-1] - 1),
    "cbrt": lambda w: jnp.cbrt(w - 1),
    "cholesky": lambda w: jnp.linalg.cholesky(definite(w)),
    "cholesky of many": lambda w: jnp.linalg.cholesky(many(w)),
    "solve by factor": lambda w: jsp.linalg.cho_solve((jnp.linalg.cholesky(definite(w)), True), w),
    "triangular": lambda w: jsp.linalg.solve_triangular(lower(w), w, lower=True),
    "triangular, turned": lambda w: jsp.linalg.solve_triangular(lower(w), w, trans=1, lower=True),
    "triangular, upper, ones": lambda w: jsp.linalg.solve_triangular(lower(w).T / 4, w, unit_diagonal=True),
    "triangular, from the right": lambda w: lax.linalg.triangular_solve(lower(w), w.T, lower=True),
    "a diagonal": lambda w: jnp.diagonal(definite(w)) - jnp.trace(w[:, :4]),
    "running products": lambda w: lax.cumprod(w, 1) + lax.cumprod(w - 1, 0, reverse=True),
    "running extremes": lambda w: lax.cummax(w, 1) * lax.cummin(w - 1, 0, reverse=True),
    "running logarithms of sums": lambda w: lax.cumlogsumexp(w * 9, 1) - lax.cumlogsumexp(w, reverse=True),
    "solve": lambda w: jnp.linalg.solve(definite(w)[::-1] - 2, w),
    "inverses of many": lambda w: jnp.linalg.inv(many(w)[:, ::-1]),
    "exponential of a matrix": lambda w: jsp.linalg.expm(w[:, :4] / 4),
    "two keys": lambda w: lax.sort((jnp.round(w * 3), w, w**2), dimension=1, num_keys=2)[2] * SOME,
    "smallest of windows": lambda w: lax.reduce_window(w, jnp.inf, lax.min, (2, 3), (1, 2), "SAME"),
    "bins": lambda w: w * jnp.searchsorted(EDGES, lax.stop_gradient(w)) + jnp.interp(w, EDGES, SOME[:4]),
    "Student's t": lambda w: jsp.stats.t.logpdf(w - 1, w + 2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_values_and_gradients(function: Callable[[Any], Any]) -> None:
    weights = np.random.default_rng().uniform(0.3, 1.7, (4, 6))

    def loss(p: Any, factor: Any) -> Any:
        y = function(p["w"] * factor)
        return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))).sum()

    single = {"w": weights.astype(np.float32)}, {"factor": np.ones((), np.float32)}
    model = export_training_step(loss, *single, loss_scale=False)
    outputs = run(model, {"param.w": single[0]["w"], "input.factor": np.ones((), np.float32)})
    own = jax.value_and_grad(loss)(single[0], **single[1])
    with jax.enable_x64(True):
        exact = jax.value_and_grad(loss)({"w": single[0]["w"].astype(np.float64)}, np.float64(1))
        terms = np.abs(function(single[0]["w"].astype(np.float64))).sum()  # which may cancel
    for name, of in (("loss", lambda result: result[0]), ("grad.w", lambda result: result[1]["w"])):
        expected = np.asarray(of(exact))
        size = terms if name == "loss" else np.linalg.norm(expected)
        ours, jaxs = (np.linalg.norm(y - expected) for y in (outputs[name], np.asarray(of(own))))
        assert ours <= max(3 * jaxs, AT_MOST * max(1.0, size)), name


def test_large_matrices_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no translation for cholesky"):
        export_training_step(
            lambda p, x: jnp.linalg.cholesky(definite(p["w"]) + x).sum(),
            {"w": np.ones((40, 2), np.float32)},
            {"x": np.zeros((), np.float32)},
        )
