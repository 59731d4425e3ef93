"""Functions with kinks, against torch on inputs that lie on them: equal maxima, zeros, bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import against_torch
import torch.nn.functional as F
from against_torch import TOLERANCE, feeds_of, run, worst_deviation
from torch import nn

from campo_onnx.export.torch import export_training_step

_LEVEL = onnxruntime.GraphOptimizationLevel
IMAGE = (2, 3, 12, 8)


class Shifted(nn.Module):
    """Add a parameter of zeros, whose gradient is that of every element."""

    def __init__(self, function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shift, self.function = nn.Parameter(torch.zeros(shape)), function

    def forward(self, x: Any) -> Any:
        return self.function(x + self.shift)


def two_pools(x: Any) -> Any:
    y = F.relu(x)
    return F.max_pool2d(y, 2) * F.max_pool2d(y, 3, 2, 1) * F.avg_pool2d(y, 2)


def mean(y: Any) -> Any:
    """A loss whose gradient differs from element to element, far from 0 itself."""
    return (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).mean()


PICTURE = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
GRID = (2, 3, 4, 2)


def sampled(**options: Any) -> Callable[[Any], Any]:
    """Sample a picture where a third of the places are whole, or on the border."""
    return lambda grid: F.grid_sample(PICTURE, grid / 2, **options)


def in_bags(words: list[Any], *rest: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda table: F.embedding_bag(torch.tensor(words), table, *rest, mode="max", **options)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "tiles": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "rectified_tiles": (lambda x: F.max_pool2d(F.relu(x), 2), IMAGE),
    "large_tiles": (lambda x: F.max_pool2d(F.relu(x), (3, 4)), IMAGE),
    "many_tiles": (lambda x: F.max_pool2d(F.relu(x), 2), (4, 8, 64, 64)),
    "rest": (lambda x: F.max_pool2d(F.relu(x), 2), (2, 3, 7, 9)),
    "overlapping": (lambda x: F.max_pool2d(F.relu(x), 3, 2, 1), IMAGE),
    "dilated": (lambda x: F.max_pool2d(F.relu(x), 2, dilation=2), IMAGE),
    "half_windows": (lambda x: F.max_pool2d(F.relu(x), 2, 2, 1), IMAGE),
    "two_pools": (two_pools, IMAGE),
    "one_axis": (lambda x: F.max_pool1d(F.relu(x), 2), (2, 3, 10)),
    "three_axes": (lambda x: F.max_pool3d(F.relu(x), 2), (2, 3, 4, 6, 2)),
    "hard_swish": (lambda x: F.hardswish(x), (40, 50)),
    "hard_sigmoid": (lambda x: F.hardsigmoid(x), (8, 30, 1, 1)),
    "relu6": (lambda x: F.relu6(x * 2), (8, 30, 1, 1)),
    "whole_places": (sampled(align_corners=True), GRID),
    "halves": (sampled(align_corners=False), GRID),
    "border": (sampled(padding_mode="border", align_corners=True), GRID),
    "halves_on_border": (sampled(padding_mode="border", align_corners=False), GRID),
    "bags": (in_bags([[0, 1, 2], [3, 3, 1]]), (4, 6)),
    "padded_bags": (in_bags([[0, 1, 2], [1, 1, 1]], padding_idx=1), (4, 6)),
    "bags_by_offset": (in_bags([0, 1, 2, 3, 1], torch.tensor([0, 0, 2, 5])), (4, 6)),
}


@pytest.mark.parametrize("target", [None, "cpu"], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_on_kinks(name: str, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shape = FUNCTIONS[name]
    x = torch.randint(-3, 4, shape).float()
    for level in (_LEVEL.ORT_DISABLE_ALL, _LEVEL.ORT_ENABLE_ALL):
        monkeypatch.setattr(against_torch, "session", lambda model, level=level: session(model, level))
        assert worst_deviation(Shifted(function, shape), mean, [x], [], target=target) < TOLERANCE


def session(model: Any, level: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 2
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def test_bounds_are_hit_to_the_last_bit() -> None:
    below, above = (float(np.nextafter(np.float32(3), np.float32(end))) for end in (0, 9))
    x = torch.tensor([[-above, -3.0, -below, 0.0, below, 3.0, above]])
    for function in (F.hardswish, F.hardsigmoid):
        assert worst_deviation(Shifted(function, x.shape), mean, [x], []) < TOLERANCE


def test_hard_swish_of_infinity() -> None:
    x = torch.tensor([[np.inf, 1.0, -4.0]])
    module = Shifted(lambda x: F.hardswish(x).clamp(max=9), x.shape)
    model = export_training_step(module, mean, x, loss_scale=False)
    mean(module(x)).backward()
    gradient = run(model, feeds_of(model, module, [x]))["grad.shift"]
    np.testing.assert_allclose(gradient, module.shift.grad, rtol=TOLERANCE)


FINITE = (0.0, -0.0, 0.5, -0.5, 0.1, -3.7, 5.0, -7.0, 2.0, 1e-25, -1e-25, 1.5e-25)
NUMBERS = [*FINITE, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("function", [torch.floor_divide, torch.remainder, torch.fmod])
def test_quotients_and_remainders_of_zero_infinity_and_small_numbers(function: Callable[..., Any]) -> None:
    a, b = torch.cartesian_prod(*[torch.tensor(NUMBERS)] * 2).T
    module = Shifted(lambda x: x, ())

    def loss(one: Any, a: Any, b: Any) -> Any:
        return one, {"whole": function(a, b), "by_number": function(a, 0.1), "by_negative": function(a, -3.0)}

    model = export_training_step(module, loss, [torch.ones(())], [a, b], loss_scale=False)
    outputs = run(model, feeds_of(model, module, [torch.ones(()), a, b]))
    expected = loss(None, a, b)[1]
    for name, values in expected.items():
        np.testing.assert_allclose(outputs[f"output.{name}"], values, rtol=TOLERANCE)


def test_a_rectifier_in_front_of_a_pool_is_told_from_the_maxima() -> None:
    module = Shifted(lambda x: F.max_pool2d(F.relu(x), 3, 2, 1), IMAGE)
    model = export_training_step(module, mean, torch.zeros(IMAGE), loss_scale=False)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    masks = [shapes[n.output[0]] for n in model.graph.node if n.op_type == "Where"]
    assert masks == [[2, 3, 6, 4]]


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_the_grid_of_nearest_places_has_a_gradient_of_zero_that_updates_see(padding: str) -> None:
    """Without one, the weights behind the grid would not decay."""
    module = Shifted(sampled(mode="nearest", padding_mode=padding, align_corners=False), GRID)
    model = export_training_step(module, mean, torch.zeros(GRID), loss_scale=False)
    outputs = against_torch.run(model, against_torch.feeds_of(model, module, [torch.zeros(GRID)]))
    assert outputs["grad.shift"].shape == GRID
    assert not outputs["grad.shift"].any()


class Headless(nn.Module):
    """Add the sum of no rows, whose gradient is that of no row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Any) -> Any:
        return (self.table[:0].sum(0) + self.table.sum(0)) * x


def test_a_sum_of_no_rows() -> None:
    assert worst_deviation(Headless(), mean, [torch.randn(6)], []) < TOLERANCE
