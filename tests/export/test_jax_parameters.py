"""Parameters of JAX's primitives that change what they compute: losses and gradients against JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from against_jax import TOLERANCE, array, run, worst_deviation
from jax import lax

from campo_onnx.export.jax import export_function


def grouped(p: Any, x: Any) -> Any:
    z = lax.conv_general_dilated(
        x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )
    return (jnp.tanh(z) * array(*z.shape, seed=3)).sum()


PARAMETERS_THAT_MATTER: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "reshape in Fortran's order": (
        lambda p, x: (jnp.reshape(jnp.tanh(p["w"]), (6, 2), order="F") * x).sum(),
        {"w": array(3, 4)}, {"x": array(6, 2)},
    ),
    "ravel in Fortran's order": (
        lambda p, x: (jnp.ravel(jnp.tanh(p["w"]), order="F") * x).sum(),
        {"w": array(3, 4)}, {"x": array(12)},
    ),
    "input gradient of a grouped convolution": (
        lambda p, x: grouped({"k": x}, p["image"]), {"image": array(2, 5, 5, 4)}, {"x": array(3, 3, 2, 4)},
    ),
    "weight gradient of a grouped convolution": (grouped, {"k": array(3, 3, 2, 6)}, {"x": array(2, 5, 5, 4)}),
    "lookup by columns": (
        lambda p, i: (jnp.tanh(p["w"][:, i]) * array(4, 4, seed=5)).sum(),
        {"w": array(4, 4)}, {"i": jnp.asarray([0, 3, 3, 1])},
    ),
    "lookup that clips": (
        lambda p, i: (jnp.take(p["w"], i, axis=0, mode="clip") * array(4, 3, seed=6)).sum(),
        {"w": array(4, 3)}, {"i": jnp.asarray([0, 7, -9, 3])},
    ),
    "lookup that fills": (
        lambda p, i: (p["w"].at[i].get(mode="fill", fill_value=2.5) * array(4, 3, seed=6)).sum(),
        {"w": array(4, 3)}, {"i": jnp.asarray([0, 7, -9, 3])},
    ),
    "pick that fills": (
        lambda p, i: (jnp.take_along_axis(p["w"], i, 1, mode="fill", fill_value=0.5) * array(4, 2)).sum(),
        {"w": array(4, 3)}, {"i": jnp.asarray([[0, 7], [-9, -1], [2, 1], [3, -4]])},
    ),
    "addition that drops": (
        lambda p, i: (jnp.zeros((3, 2)).at[i].add(p["w"], mode="drop") * array(3, 2, seed=6)).sum(),
        {"w": array(4, 2)}, {"i": jnp.asarray([0, 7, -9, 2])},
    ),
    "product of integers in a wider type": (
        lambda p, i: lax.dot(i, i.T, preferred_element_type=jnp.float32)[0, 1] * jnp.tanh(p["w"]).sum(),
        {"w": array(2)}, {"i": jnp.asarray([[1, 2], [3, 4]], jnp.int32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "parameters", "inputs"), PARAMETERS_THAT_MATTER.values(), ids=list(PARAMETERS_THAT_MATTER)
)
def test_parameters_of_primitives_are_read(
    loss: Callable[..., Any], parameters: dict[str, Any], inputs: dict[str, Any]
) -> None:
    assert worst_deviation(loss, parameters, **inputs) < TOLERANCE


def test_a_lookup_outside_gives_nan_as_in_jax() -> None:
    def loss(p: Any, i: Any) -> Any:
        return {"rows": jnp.take(p["w"], i, axis=0), "codes": jnp.take(p["n"], i, axis=0)}

    parameters = {"w": array(4, 3), "n": jnp.arange(4, dtype=jnp.int32)}
    i = jnp.asarray([0, 4, -4, -5])
    model = export_function(lambda a: loss(a["p"], a["i"]), {"p": parameters, "i": i})
    actual = run(model, {"p.w": parameters["w"], "p.n": parameters["n"], "i": i})
    for name, expected in loss(parameters, i).items():
        assert np.array_equal(actual[name], np.asarray(expected), equal_nan=name == "rows")


OUTSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "a number in each row": lambda y, i: y[jnp.arange(5), i],
    "counted from the end": lambda y, i: y[jnp.arange(5), i - 9],
    "columns": lambda y, i: y[:, i],
    "of each row alone": lambda y, i: jax.vmap(lambda row, k: row[k])(y, i),
    "written": lambda y, i: y.at[jnp.arange(5), i].set(1.0),
    "added": lambda y, i: y.at[jnp.arange(5), i].add(y[0, :5]),
}


@pytest.mark.parametrize("function", OUTSIDE.values(), ids=list(OUTSIDE))
def test_an_index_outside_does_not_reach_the_next_row(function: Callable[[Any, Any], Any]) -> None:
    def loss(p: Any, x: Any, i: Any) -> Any:
        return jnp.sin(function(x @ p["w"], i)).sum()

    i = jnp.asarray([0, 6, 9, 3, 40])
    assert worst_deviation(loss, {"w": array(4, 6)}, x=array(5, 4, seed=1), i=i) < TOLERANCE


METHODS = ("set", "max", "multiply")


def test_an_assignment_outside_is_dropped_as_in_jax() -> None:
    def assigned(a: Any) -> Any:
        return {
            how: getattr(a["x"].at[a["i"]], how)(a["w"], mode="drop") for how in ("set", "max", "multiply")
        }

    arguments = {"x": array(3, 2), "w": array(4, 2, seed=1), "i": jnp.asarray([0, 7, -9, 2])}
    actual = run(export_function(assigned, arguments), arguments)
    for name, expected in assigned(arguments).items():
        assert np.array_equal(actual[name], np.asarray(expected))


def decided(p: Any, x: Any) -> Any:
    y = jnp.tanh(x @ p["w"])
    y = lax.cond(y.sum() > 0, lambda y: jnp.sin(y), lambda y: y * y, y)
    return lax.switch(jnp.argmax(y[0]), [jnp.sum, lambda y: (y**3).sum(), lambda y: jnp.exp(y).sum()], y)


FURTHER: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    **{f"branches of {s}": (decided, {"w": array(4, 3, seed=s)}, {"x": array(5, 4)}) for s in range(4)},
    "sort": (
        lambda p, x: (jnp.sort(p["w"] * x, 0) * x).sum(), {"w": array(5, 3)}, {"x": array(5, 3, seed=1)},
    ),
    "argsort": (
        lambda p, x: (jnp.tanh(p["w"])[jnp.argsort(x)] * x[:, None]).sum(),
        {"w": array(6, 3)}, {"x": array(6)},
    ),
    "top_k": (
        lambda p, x: (lax.top_k(p["w"] * x, 2)[0] * array(5, 2)).sum(),
        {"w": array(5, 4)}, {"x": array(5, 4, seed=1)},
    ),
    "round": (
        lambda p, x: (p["w"] * (jnp.round(x) + lax.round(x) * 3)).sum(),
        {"w": array(8)}, {"x": jnp.asarray([-2.5, -1.5, -0.5, 0.49, 0.5, 1.5, 2.5, 1e7])},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "parameters", "inputs"), FURTHER.values(), ids=list(FURTHER))
def test_branches_order_and_rounding(
    loss: Callable[..., Any], parameters: dict[str, Any], inputs: dict[str, Any]
) -> None:
    assert worst_deviation(loss, parameters, **inputs) < TOLERANCE
