"""Complex numbers and Fourier transforms, exported as pairs of real tensors, and compiled, against torch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import numpy as np
from against_torch import TOLERANCE, Function, weighted_sum, worst_deviation
from torch import nn

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.complex_numbers import FOURIER, Complex
from campo_onnx.integrations.torch_compile import campo_onnx

KERNEL = torch.complex(torch.linspace(-1, 1, 9).reshape(3, 3), torch.linspace(1, 2, 9).reshape(3, 3))
WINDOW = torch.hann_window(16)


def rotated(x: Any) -> Any:
    """Turn pairs by an angle that grows, as rotary embeddings are often written."""
    turns = torch.polar(torch.ones(3, 4), torch.arange(12.0).reshape(3, 4) / 5)
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 4, 2)) * turns).flatten(2)


def filtered(x: Any) -> Any:
    """Multiply low frequencies by a kernel, as Fourier neural operators do."""
    z = torch.fft.rfft2(x, dim=(1, 2))
    low = torch.zeros(2, 8, 5, 3, dtype=torch.complex64)
    low[:, :2, :2] = torch.einsum("bxyi,io->bxyo", z[:, :2, :2], KERNEL)
    return torch.fft.irfft2(low, s=(8, 8), dim=(1, 2))


def state_space(x: Any) -> Any:
    """Have a convolution whose kernel is a sum of complex exponentials, as S4D does."""
    a = torch.complex(-torch.linspace(0.1, 0.5, 4), torch.linspace(0.0, 3.0, 4))
    steps = torch.exp(a.unsqueeze(1) * torch.arange(x.shape[-1]))
    kernel = 2 * (steps * (1 / (a + 2j)).unsqueeze(1)).sum(0).real
    size = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n=size) * torch.fft.rfft(kernel, n=size), n=size)


def divided(x: Any) -> Any:
    z = torch.complex(x, x.flip(1))
    w = z * (0.5 - 2j) + 3 / (z - 5j) - z.conj() / 2j + torch.stack([z, z * z]).sum(0) ** 2
    real = torch.ones_like(x) + torch.zeros_like(w, dtype=torch.float32)
    return (w.T @ (w / (w.abs() + real))).abs() + w.angle().sum()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rotary": (rotated, (2, 3, 8)),
    "operator": (filtered, (2, 8, 8, 3)),
    "state space": (state_space, (3, 8)),
    "arithmetic": (divided, (3, 4)),
    "padded": (lambda x: torch.fft.irfft(torch.nn.functional.pad(torch.fft.rfft(x)[:, :3], (0, 2))), (3, 8)),
    "fft2, real": (lambda x: torch.fft.fft2(x).real, (2, 3, 5)),
    "fftn": (lambda x: torch.view_as_real(torch.fft.fftn(x, norm="ortho")), (2, 3, 4)),
    "magnitudes": (lambda x: torch.fft.rfft(x).abs(), (2, 7)),
    "rfft, forward": (lambda x: torch.fft.rfft(x, dim=0, norm="forward").imag, (6, 2)),
    "odd irfft": (lambda x: torch.fft.irfft(torch.complex(x, x * x), n=9), (2, 5)),
    "hfft": (lambda x: torch.fft.hfft(torch.complex(x, x * x), n=8), (2, 5)),
    "ifft, shifted": (lambda x: torch.fft.fftshift(torch.fft.ifft(x)).abs(), (2, 8)),
    "spectrogram": (
        lambda x: torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs().log1p(),
        (2, 64),
    ),
    "long": (lambda x: torch.fft.rfft(x).abs() / 30, (2, 600)),
}


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_exported(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert worst_deviation(Function(function, *shape), weighted_sum, [torch.randn(shape)], []) < TOLERANCE


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_compiled(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = Function(function, *shape), torch.randn(shape)
    eager = copy.deepcopy(module)
    run = torch.compile(module, backend=campo_onnx, dynamic=False, options={"fallback": "error"})
    actual, expected = weighted_sum(run(x)), weighted_sum(eager(x))
    actual.backward()
    expected.backward()
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    largest = eager.weight.grad.abs().max()
    assert (module.weight.grad - eager.weight.grad).abs().max() < TOLERANCE * largest


@pytest.mark.parametrize("size", [1, 2, 5, 8, 257, 400, 512, 600, 1031])
def test_transforms_are_as_exact_as_torchs(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x, y = (torch.randn(8, size, generator=generator) for _ in range(2))
    z = FOURIER.rows_transformed(Complex(x, y), -1)
    exact = torch.fft.fft(torch.complex(x.double(), y.double()))
    ours = (torch.complex(*z) - exact).norm()
    assert ours <= 3 * max((torch.fft.fft(torch.complex(x, y)) - exact).norm(), 2**-24 * exact.norm())


def test_a_long_transform_of_prime_length_is_refused() -> None:
    module = Function(lambda x: torch.fft.rfft(x).abs(), 4099)
    with pytest.raises(UnsupportedModelError, match=r"4099 elements, a prime number.* is complex"):
        export_training_step(module, weighted_sum, [torch.randn(4099)])


class Turned(nn.Module):
    """Have a complex constant, which is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.turns = nn.Parameter(torch.randn(2, 3)), KERNEL

    def forward(self, x: Any) -> Any:
        return ((x * self.weight).to(torch.complex64) @ self.turns).abs()


def test_complex_constants() -> None:
    torch.manual_seed(0)
    assert worst_deviation(Turned(), weighted_sum, [torch.randn(2, 3)], []) < TOLERANCE


def test_complex_inputs_of_a_compiled_graph() -> None:
    torch.manual_seed(0)
    module, x = Turned(), torch.randn(2, 3)
    expected = torch.autograd.grad(weighted_sum(module(x)), module.weight)
    for turns in (KERNEL.clone(), KERNEL.T.clone().T, KERNEL.conj().clone().conj()):
        module.turns = turns
        run = torch.compile(module, backend=campo_onnx, dynamic=False, options={"fallback": "error"})
        torch.testing.assert_close(torch.autograd.grad(weighted_sum(run(x)), module.weight), expected)


def test_one_value_twice_is_not_two() -> None:
    # Traced values of one type and shape may be one object.
    x = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    module = Function(lambda x: torch.view_as_real(torch.polar(x, x.flip(0))), 2, 3)
    assert worst_deviation(module, weighted_sum, [torch.from_numpy(x)], []) < TOLERANCE
