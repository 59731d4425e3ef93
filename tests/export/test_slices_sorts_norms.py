"""Writing to strided slices and diagonals, norms of any order, sorting: against torch in double."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import TOLERANCE, feeds_of
from torch import nn

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch import export_training_step

_LEVEL = onnxruntime.GraphOptimizationLevel
_INF = float("inf")

Case = tuple[Callable[[Any], Any], Any]


class Shifted(nn.Module):
    """Add a parameter of zeros, whose gradient is that of every element."""

    def __init__(self, function: Callable[[Any], Any], shape: Any) -> None:
        super().__init__()
        self.shift, self.function = nn.Parameter(torch.zeros(shape)), function

    def forward(self, x: Any) -> Any:
        return self.function(x + self.shift)


def weighted_mean(y: Any) -> Any:
    """A loss whose gradient differs from element to element, far from 0 itself."""
    return (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)).mean()


def drawn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def whole(*shape: int) -> Any:
    """Whole numbers from -2 to 2, many of them equal."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).float()


def assigned(places: Any) -> Callable[[Any], Any]:
    """Write to some places, so that what is written and what stays have gradients."""

    def function(x: Any) -> Any:
        y = torch.sin(x)
        y[places] = x[places] ** 2
        return y * x

    return function


def encoded(x: Any) -> Any:
    """Positions as sines and cosines by turns, as nearly every transformer has written them."""
    places = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype)
    places[:, 0::2] = torch.sin(x)
    places[:, 1::2] = torch.cos(x)
    return places


def multiplied(x: Any) -> Any:
    y = x * 1
    y[..., 1::2].mul_(x[..., 1::2])
    y[..., ::2] += x[..., 1::2]
    return y * x


def written_diagonal(function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def changed(x: Any) -> Any:
        y = x * x
        return function(y, x) * x

    return changed


def added(**places: int) -> Callable[[Any], Any]:
    return written_diagonal(lambda y, x: (y.diagonal(**places).add_(x.diagonal(**places)), y)[1])


def filled(wrap: bool = False) -> Callable[[Any], Any]:
    return written_diagonal(lambda y, x: y.fill_diagonal_(3.0, wrap))


def padded(*widths: int) -> Callable[[Any], Any]:
    return lambda x: F.pad(x, widths, mode="replicate") ** 2


def norm(order: float, **options: Any) -> Callable[[Any], Any]:
    return lambda x: torch.linalg.vector_norm(x, order, **options)


def stable(descending: bool, dim: int) -> Callable[[Any], Any]:
    """Sort equal elements, and say by their places which is which."""

    def function(x: Any) -> Any:
        values, places = torch.sort(x, dim=dim, descending=descending, stable=True)
        return values * (places + 1)

    return function


SORTED = {"rows": (1, (3, 50)), "columns": (0, (70, 3)), "long": (-1, (2000,)), "one": (1, (3, 1))}


def bucketized(**options: bool) -> Callable[[Any], Any]:
    """Search for places, several of them boundaries themselves."""
    return lambda x: x * torch.bucketize(x, torch.tensor([-1, 0, 1.5], dtype=x.dtype), **options)


STEPS = {f"step_{a}_{b}_{c}": (slice(None), slice(a, b, c)) for a, b, c in (
    *((0, None, 2), (1, None, 2), (None, None, 3), (2, -1, 3), (1, 4, 5), (-4, None, 2), (8, None, 2)),
    *((0, 1, 4), (3, 100, 20), (5, 2, 2)),
)}  # fmt: skip

CASES: dict[str, Case] = {
    **{name: (assigned(places), drawn(3, 9)) for name, places in STEPS.items()},
    "steps_on_three_axes": (
        assigned((slice(0, None, 2), slice(1, None, 3), slice(None, -1, 2))), drawn(3, 7, 5)
    ),
    "encoded": (encoded, drawn(4, 5)),
    "encoded_one": (encoded, drawn(4, 1)),
    "slice_scatter": (lambda x: torch.slice_scatter(x * x, x[:, :3], 1, 1, 8, 3), drawn(2, 9)),
    "multiplied_in_place": (multiplied, drawn(2, 3, 6)),
    "softshrink": (F.softshrink, torch.linspace(-1, 1, 21)),
    "softshrink_bounds": (lambda x: F.softshrink(x, 1.0), whole(5, 8)),
    "hardshrink_bounds": (lambda x: F.hardshrink(x, 1.0), whole(5, 8)),
    "hardshrink_of_zero": (lambda x: F.hardshrink(x, 0.0) + F.softshrink(x, 0.0), whole(5, 8)),
    "tanhshrink": (F.tanhshrink, whole(5, 8)),
    "replicated_1d": (padded(2, 1), drawn(2, 3, 5)),
    "replicated_wide": (padded(0, 9), drawn(2, 3, 2)),
    "replicated_one": (padded(4, 2), drawn(2, 3, 1)),
    "replicated_2d": (padded(2, 0, 1, 3), drawn(2, 3, 5, 4)),
    "replicated_unbatched": (padded(1, 1, 2, 2), drawn(3, 5, 4)),
    "replicated_3d": (padded(1, 2, 3, 0, 2, 2), drawn(2, 2, 3, 4, 2)),
    "replicated_and_cropped": (padded(-1, 2, 3, -2), drawn(2, 3, 6, 5)),
    "reflected": (lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect") ** 2, drawn(2, 3, 6, 5)),
    "diagonal": (lambda x: x.diagonal() ** 2, drawn(4, 5)),
    "diagonal_above": (lambda x: x.diagonal(2) ** 2, drawn(4, 5)),
    "diagonal_below": (lambda x: x.diagonal(-3) ** 2, drawn(4, 5)),
    "diagonal_of_tall": (lambda x: x.diagonal(-2) ** 2, drawn(7, 2)),
    "diagonal_of_column": (lambda x: x.diagonal(-2) ** 2 + x.diagonal() ** 2, drawn(7, 1)),
    "diagonal_of_row": (lambda x: x.diagonal(3) ** 2, drawn(1, 6)),
    "diagonal_without_elements": (lambda x: x.diagonal(9).sum() + x * x, drawn(4, 5)),
    "diagonal_in_batch": (lambda x: x.diagonal(1, -1, 0) ** 2, drawn(4, 3, 5)),
    "diagonal_scatter": (lambda x: torch.diagonal_scatter(x * x, x[0, :3], -1), drawn(4, 5)),
    "diagonal_scatter_turned": (
        lambda x: torch.diagonal_scatter(x * x, x[0, :, :3], 1, 0, 2), drawn(4, 3, 4)
    ),
    "diagonal_added_to": (added(offset=1), drawn(4, 5)),
    "diagonal_added_to_in_batch": (added(offset=-1, dim1=1, dim2=2), drawn(2, 4, 3)),
    "diagonals_embedded": (lambda x: torch.diag_embed(x, 1, 0, 2) ** 2, drawn(3, 4)),
    "diag": (lambda x: torch.diag(x, 1) ** 2 + torch.diag(x[0]).sum(), drawn(4, 4)),
    "trace": (lambda x: (x * x).trace(), drawn(4, 6)),
    "diagonal_filled": (filled(), drawn(4, 6)),
    "diagonal_of_tall_filled": (filled(), drawn(9, 3)),
    "diagonal_filled_and_wrapped": (filled(wrap=True), drawn(11, 3)),
    "diagonal_of_cube_filled": (filled(), drawn(4, 4, 4)),
    "norm_inf": (norm(_INF, dim=1), drawn(4, 6)),
    "norm_of_equal_largest": (norm(_INF, dim=1), whole(4, 9)),
    "norm_of_equal_least": (norm(-_INF, dim=0), whole(4, 9)),
    "norm_of_all": (norm(_INF), whole(4, 9)),
    "norm_of_two_axes": (norm(_INF, dim=(0, 2), keepdim=True), whole(4, 3, 5)),
    "norm_3": (norm(3, dim=1), drawn(4, 6)),
    "norm_3_of_zeros": (norm(3, dim=1), torch.cat([torch.zeros(1, 9), whole(4, 9)])),
    "norm_inf_of_zeros": (norm(_INF, dim=1), torch.zeros(2, 3)),
    "norm_2.5": (norm(2.5, dim=0, keepdim=True), whole(4, 9)),
    "norm_1.5": (norm(1.5, dim=0), whole(4, 9)),
    "norm_half": (norm(0.5, dim=1), drawn(4, 6)),
    "norm_-1": (norm(-1, dim=1), drawn(4, 6)),
    "norm_0": (lambda x: norm(0, dim=1, keepdim=True)(x) * x, whole(4, 9)),
    "norm_of_scalar": (norm(3), torch.tensor(-1.5)),
    "normalized": (lambda x: F.normalize(x, 3.0, 1) * F.normalize(x, _INF, 0), drawn(4, 6)),
    "distance": (lambda x: F.pairwise_distance(x[:2], x[2:], 3.0), drawn(4, 6)),
    "cdist_3": (lambda x: torch.cdist(x[:2], x[1:], 3.0), whole(4, 6)),
    **{
        f"stable_{name}_{way}": (stable(way == "down", dim), whole(*shape))
        for way in ("up", "down") for name, (dim, shape) in SORTED.items()
    },
    "stable_argsort": (lambda x: x * x.argsort(dim=0, stable=True), whole(9, 4)),
    "sorted_integers": (lambda x: x * x.detach().long().sort(stable=True, descending=True)[1], whole(9, 4)),
    "sorted_truths": (lambda x: x * torch.argsort(x.detach() > 0, stable=True), whole(9, 4)),
    "bucketized": (bucketized(right=False), whole(4, 9)),
    "bucketized_right": (bucketized(right=True, out_int32=True), whole(4, 9)),
    "searched": (lambda x: x * torch.searchsorted(x.sort(1)[0], x.detach(), side="right"), whole(4, 9)),
    "searched_by_order": (lambda x: x * torch.searchsorted(x, x, sorter=x.argsort(1)), whole(4, 9)),
}  # fmt: skip


@pytest.mark.parametrize(("function", "x"), CASES.values(), ids=list(CASES))
def test_loss_and_gradient_are_those_of_torch_in_double(function: Callable[[Any], Any], x: Any) -> None:
    module = Shifted(function, x.shape)
    model = export_training_step(module, weighted_mean, [x], loss_scale=False)
    feeds = feeds_of(model, module, [x])
    exact = x.double().requires_grad_()
    loss = weighted_mean(function(exact))
    loss.backward()
    expected = {"loss": loss.detach().numpy(), "grad.shift": exact.grad.numpy()}
    for level in (_LEVEL.ORT_DISABLE_ALL, _LEVEL.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 2
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for name, actual in zip(expected, session.run(list(expected), feeds), strict=True):
            assert np.isfinite(actual).all()
            largest = np.abs(expected[name]).max() or 1
            assert actual.shape == expected[name].shape
            assert np.abs(actual - expected[name]).max() / largest < TOLERANCE


def test_nan_is_behind_all_boundaries_and_is_not_shrunk() -> None:
    x = torch.tensor([0.2, float("nan"), -3.0])

    def placed(y: Any) -> Any:
        return (y.nan_to_num() + 1) * torch.bucketize(y, torch.tensor([0.0, 1.0]))

    for function in (placed, F.hardshrink, F.softshrink):
        module = Shifted(function, 3)
        model = export_training_step(module, weighted_mean, [x], loss_scale=False)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        actual = session.run(["grad.shift"], feeds_of(model, module, [x]))[0]
        weighted_mean(module(x)).backward()
        np.testing.assert_allclose(actual, module.shift.grad, rtol=TOLERANCE)


def test_distances_by_the_largest_difference_are_refused() -> None:
    # Of several largest, torch's own gradient of these gives each all of it.
    module = Shifted(lambda x: torch.cdist(x, x, _INF), (3, 4))
    with pytest.raises(UnsupportedModelError, match=r"no translation for aten\._cdist_forward"):
        export_training_step(module, weighted_mean, [torch.ones(3, 4)])


def test_uses_without_a_translation_are_refused_with_a_remedy() -> None:
    def search(x: Any) -> Any:
        return x * torch.bucketize(x, torch.arange(1 << 15).float())

    with pytest.raises(UnsupportedModelError, match=r"32,768 boundaries each\. Search before the step"):
        export_training_step(Shifted(search, (1, 1 << 12)), weighted_mean, [torch.ones(1, 1 << 12)])


class Rotated(nn.Module):
    """Have complex numbers as a parameter, a buffer or a result, and compute with them."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64 if where == "parameter" else None))
        self.register_buffer("turns", torch.ones(3, dtype=torch.complex64) if where == "buffer" else None)
        self.where = where

    def forward(self, x: Any) -> Any:
        x = x * self.weight
        if self.where == "result":
            x = torch.fft.rfft(x).sqrt()
        if self.where == "buffer":
            x = x * self.turns
        return x.abs()


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("parameter", "parameter 'weight'"),
        ("buffer", r"buf\.turns"),
        ("result", r"an operand of aten\.sqrt\.default at \S+test_slices_sorts_norms\.py:\d+"),
        ("input", r"input\.x"),
    ],
)
def test_complex_numbers_are_refused_as_such(where: str, what: str) -> None:
    x = torch.ones(2, 3, dtype=torch.complex64 if where == "input" else None)
    with pytest.raises(UnsupportedModelError, match=rf"^{what} is complex: .* real and imaginary parts"):
        export_training_step(Rotated(where), weighted_mean, [x])
