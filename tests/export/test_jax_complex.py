"""Complex numbers inside JAX steps: losses and gradients against JAX."""

from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed (make test-frameworks installs it)")

import jax.numpy as jnp
from against_jax import TOLERANCE, array, run, worst_deviation
from jax import lax

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.jax import export_function


def fourier_operator(p: Any, x: Any) -> Any:
    """A layer of FNO: the lowest frequencies are multiplied by complex weights."""
    z = jnp.fft.rfft2(x)[:, :, :4, :3]
    z = jnp.einsum("bihw,iohw->bohw", z, lax.complex(p["real"], p["imaginary"]))
    z = jnp.zeros((2, 5, 8, 5), jnp.complex64).at[:, :, :4, :3].set(z)
    return (jnp.fft.irfft2(z, s=(8, 8)) * array(2, 5, 8, 8, seed=1)).sum()


def state_space(p: Any, x: Any) -> Any:
    """S4D: a kernel of complex exponentials, and a long convolution by transforms."""
    rates, step = lax.complex(-jnp.exp(p["decay"]), p["frequency"]), jnp.exp(p["step"])
    weights = p["c"] * (jnp.exp(rates * step) - 1) / rates
    kernel = 2 * (weights[..., None] * jnp.exp((rates * step)[..., None] * jnp.arange(16))).sum(1).real
    y = jnp.fft.irfft(jnp.fft.rfft(x, 32) * jnp.fft.rfft(kernel, 32), 32)[..., :16]
    return (jnp.tanh(y) * array(2, 3, 16, seed=4)).sum()


def rotations(p: Any) -> Any:
    return jnp.exp(1j * p["w"]) * 0.9


def recurrent(p: Any, x: Any) -> Any:
    def turn(state: Any, row: Any) -> Any:
        state = rotations(p) * state + row
        return state, state

    _, states = lax.scan(turn, jnp.zeros(4, jnp.complex64), x.astype(jnp.complex64))
    return (jnp.abs(states) ** 2 * array(5, 4, seed=2)).sum()


def recurrent_at_once(p: Any, x: Any) -> Any:
    def joined(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    factors = jnp.broadcast_to(rotations(p), (5, 4))
    _, states = lax.associative_scan(joined, (factors, x.astype(jnp.complex64)))
    return (states.real * array(5, 4, seed=2) + states.imag**2).sum()


def rotary(p: Any, x: Any) -> Any:
    pairs = jnp.moveaxis((x @ p["w"]).reshape(2, 3, 4, 2), -1, 0)
    turned = lax.complex(*pairs) * jnp.exp(1j * jnp.arange(12.0).reshape(3, 4) / 5)
    return (jnp.stack([turned.real, turned.imag], -1).reshape(2, 3, 8) * array(2, 3, 8, seed=5)).sum()


def chosen(p: Any, x: Any) -> Any:
    z = jnp.fft.fft(p["w"] * x)
    return jnp.abs(lax.cond(x[0] > 0, lambda z: z * 2j, lambda z: z**2, z)).sum()


def recomputed(p: Any, x: Any) -> Any:
    return jnp.abs(jax.checkpoint(lambda z: jnp.fft.fft(jnp.sin(z)))(p["w"] * x)).sum()


def functions(p: Any, x: Any) -> Any:
    z, y = jnp.fft.fft(p["w"]), jnp.fft.fft(x)
    return jnp.angle(z).sum() + jnp.log(1 + z * y.conj()).real.sum() + (1 / (2 + z * y) + z**-2).imag.sum()


def vocoder(p: Any, x: Any) -> Any:
    spectrum = jax.scipy.signal.stft(jnp.convolve(x, p["kernel"], mode="same"), nperseg=16)[2]
    return jnp.log1p(jnp.abs(spectrum)).sum()


STEPS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "FNet": (
        lambda p, x: (jnp.fft.fft2(jnp.tanh(x @ p["w"])).real * array(2, 6, 10, seed=2)).sum(),
        {"w": array(4, 10)}, {"x": array(2, 6, 4)},
    ),
    "FNO": (
        fourier_operator, {"real": array(3, 5, 4, 3), "imaginary": array(3, 5, 4, 3, seed=2)},
        {"x": array(2, 3, 8, 8)},
    ),
    "S4D": (
        state_space,
        {"decay": array(3, 4), "frequency": array(3, 4, seed=1), "step": array(3, 1) - 2,
         "c": array(3, 4, seed=5)},
        {"x": array(2, 3, 16)},
    ),
    "a linear recurrence, unrolled": (recurrent, {"w": array(4)}, {"x": array(5, 4)}),
    "a linear recurrence at once": (recurrent_at_once, {"w": array(4)}, {"x": array(5, 4)}),
    "rotary embedding": (rotary, {"w": array(8, 8)}, {"x": array(2, 3, 8)}),
    "a choice": (chosen, {"w": array(6)}, {"x": array(6)}),
    "recomputed": (recomputed, {"w": array(6)}, {"x": array(6)}),
    "angle, logarithm and quotient": (functions, {"w": array(7)}, {"x": array(7)}),
    "spectrogram": (vocoder, {"kernel": array(5)}, {"x": array(64)}),
    "product of matrices": (
        lambda p, x: (jnp.abs(jnp.fft.fft(x) @ jnp.fft.fft(p["w"])) ** 2).sum(),
        {"w": array(6, 3)}, {"x": array(4, 6)},
    ),
    "inverse, shifted and padded": (
        lambda p, x: (jnp.abs(jnp.fft.fftshift(jnp.fft.ifft(jnp.fft.ifftn(p["w"] * x), 12)))).sum(),
        {"w": array(4, 9)}, {"x": array(4, 9)},
    ),
    "a long transform": (
        lambda p, x: jnp.abs(jnp.fft.rfft(x * p["w"])).sum(), {"w": array(600)}, {"x": array(600)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "parameters", "inputs"), STEPS.values(), ids=list(STEPS))
def test_steps_with_complex_numbers_are_those_of_jax(
    loss: Callable[..., Any], parameters: dict[str, Any], inputs: dict[str, Any]
) -> None:
    assert worst_deviation(loss, parameters, **inputs) < TOLERANCE


def test_a_real_number_multiplies_each_part_once() -> None:
    def spectrum(a: Any) -> Any:
        return {"y": (jnp.fft.rfft(a["x"]) * a["w"].astype(jnp.complex64)).imag}

    model = export_function(spectrum, {"x": array(8), "w": array(5)})
    assert sum(node.op_type == "Mul" for node in model.graph.node) == 1
    assert sum(node.op_type in ("Gemm", "MatMul") for node in model.graph.node) == 1


@pytest.mark.parametrize("fill", [None, 0, 2.5])
def test_lookups_outside_fill_as_in_jax(fill: float | None) -> None:
    def looked_up(a: Any) -> Any:
        rows = jnp.fft.fft(a["x"]).at[a["i"]].get(mode="fill", fill_value=fill)
        return {"real": rows.real, "imaginary": rows.imag}

    feeds = {"x": array(4, 6), "i": jnp.asarray([1, 7])}
    ours, expected = run(export_function(looked_up, feeds), feeds), looked_up(feeds)
    for name in expected:
        assert jnp.allclose(ours[name], expected[name], atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "x", "message"),
    [
        (jnp.fft.fft, array(4), r"^'y' is complex"),
        (jnp.real, jnp.ones(4, jnp.complex64), r"^'x' is complex.* Compute with real and imaginary parts"),
        (lambda x: jnp.tanh(jnp.fft.fft(x)).real, array(4), r"^an operand of tanh \(in .*\) is complex"),
        (lambda x: jnp.fft.fft(x).real, array(4099), r"4099 elements, a prime number \(in .*\) is complex"),
    ],
)
def test_what_no_pair_of_tensors_stands_for_is_refused(function: Any, x: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        export_function(lambda a: {"y": function(a["x"])}, {"x": x})


@pytest.mark.parametrize("size", [8, 12, 600])
def test_phases_of_real_frequencies_are_those_of_jax(size: int) -> None:
    """The highest frequency of an even number of samples is real: its phase is 0 or pi, never -pi."""

    def phases(x: Any) -> Any:
        return jnp.angle(jnp.fft.rfft(x))

    x = array(6, size)
    model = export_function(lambda a: {"y": phases(a["x"])}, {"x": x})
    ours = run(model, {"x": x})["y"]
    assert (abs(ours[:, [0, -1]] - phases(x)[:, [0, -1]]) < 1e-6).all()


@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_norms_of_transforms(norm: str) -> None:
    def loss(p: Any, x: Any) -> Any:
        z = jnp.fft.rfft2(jnp.fft.fft(x * p["w"], norm=norm).real, norm=norm)
        return (jnp.abs(jnp.fft.irfft2(z, norm=norm)) * array(4, 6)).sum()

    assert worst_deviation(loss, {"w": array(4, 6)}, x=array(4, 6)) < TOLERANCE
