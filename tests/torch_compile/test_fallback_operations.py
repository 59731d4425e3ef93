"""Operations without a translation run in torch, with all that it hands around: tokens of effects, too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import distance
from torch import nn

from campo_onnx.integrations.torch_compile import campo_onnx

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": lambda w, x: torch.linalg.solve(w, x).tanh(),
    "inv": lambda w, x: torch.linalg.inv(w) @ x,
    "cholesky": lambda w, x: torch.linalg.cholesky(w @ w.mT + torch.eye(4)) @ x,
    "svd": lambda w, x: torch.linalg.svdvals(w).sum() * x.tanh(),
}


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 4) + 4 * torch.eye(4)), function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight, x)


@pytest.mark.parametrize("function", OPERATIONS.values(), ids=list(OPERATIONS))
def test_linear_algebra_runs_in_torch(function: Callable[..., Any]) -> None:
    module, x = Applied(function), torch.randn(4, 3)
    eager = copy.deepcopy(module)
    with pytest.warns(RuntimeWarning, match="leaves a part of the model to torch"):
        actual = torch.compile(module, backend=campo_onnx)(x)
    actual.sum().backward()
    expected = eager(x)
    expected.sum().backward()
    assert distance([actual.detach()], [expected.detach()]) < 1e-6
    assert distance([module.weight.grad], [eager.weight.grad]) < 1e-5


def drawn_from_what_is_computed(_: Any, x: Any) -> Any:
    """Draws of which torch makes the second, between others and independent of them."""
    first, second, third = torch.rand(3), torch.poisson(torch.full((3,), 4.0)), torch.randn(3)
    return nn.functional.dropout(x.sin() * third + x * first, 0.5) + second


def test_numbers_are_drawn_in_the_order_of_eager_though_torch_draws_some() -> None:
    module, x = Applied(drawn_from_what_is_computed), torch.randn(4, 3)
    run = torch.compile(module, backend=campo_onnx, options={"runtime": "onnxruntime"})
    torch.manual_seed(0)
    with pytest.warns(RuntimeWarning, match="aten.poisson"):
        results = [run(x)]
    results += [run(x), torch.rand(2)]
    torch.manual_seed(0)
    for ours, theirs in zip(results, [module(x), module(x), torch.rand(2)], strict=True):
        torch.testing.assert_close(ours, theirs)


class LateError(Exception):
    """Raised by a handler of a signal where the user's time is up."""


@pytest.mark.parametrize("error", [LateError, TimeoutError, KeyboardInterrupt])
def test_errors_from_outside_go_on_as_they_are(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise error("the time is up")

    monkeypatch.setattr("campo_onnx.integrations.torch_compile.joint.flatten", late)
    with pytest.raises((error, torch._dynamo.exc.BackendCompilerFailed), match="the time is up") as caught:
        torch.compile(nn.Linear(3, 2), backend=campo_onnx)(torch.randn(4, 3))
    assert error in (type(caught.value), type(getattr(caught.value, "inner_exception", None)))


@pytest.mark.parametrize("rows", [0, 3])
def test_double_and_empty_batches(rows: int) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Unflatten(1, (6, 1)), nn.GroupNorm(2, 6))
    module = module.to(torch.float64 if rows else torch.float32)
    eager, x = copy.deepcopy(module), torch.randn(rows, 4, dtype=module[0].weight.dtype)
    torch.compile(module, backend=campo_onnx, options={"fallback": "error"})(x).sin().sum().backward()
    eager(x).sin().sum().backward()
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_part_in_double_without_kernels_says_so_and_runs_in_torch() -> None:
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    module = nn.Conv2d(3, 4, 3).double()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"computes in float64.*\.float\(\)"):
        torch.compile(module, backend=campo_onnx, options={"fallback": "error"})(x)
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="computes in float64"):
        actual = torch.compile(module, backend=campo_onnx)(x)
    torch.testing.assert_close(actual, module(x))


class OfSome(nn.Module):
    """A loss of the rows that have a label, how many differs from batch to batch."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers, self.way = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)), way

    def forward(self, x: Any, y: Any) -> Any:
        out, is_labelled = self.layers(x), y != -100
        if self.way == "mask":
            return nn.functional.cross_entropy(out[is_labelled], y[is_labelled])
        if self.way == "masked_select":
            return torch.masked_select(out, is_labelled[:, None]).square().mean()
        rows = is_labelled.nonzero().squeeze(1)
        return nn.functional.nll_loss(out.index_select(0, rows).log_softmax(1), y[rows])


def assert_trains_on_some(module: nn.Module, **options: Any) -> None:
    """Steps whose batches have labels for some rows, another number in each."""
    eager = copy.deepcopy(module)
    run = torch.compile(
        module, backend=campo_onnx, options={"runtime": "onnxruntime", "plans": None, **options}
    )
    for count in (5, 3, 7, 1, 8, 4):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        y[count:] = -100
        losses = []
        for call, each in ((run, module), (eager, eager)):
            each.zero_grad()
            loss = call(x, y)
            loss.backward()
            losses.append(loss.detach())
        assert distance(losses[:1], losses[1:]) < 1e-5
        assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < 1e-5


@pytest.mark.parametrize("way", ["mask", "masked_select", "nonzero"])
def test_losses_of_another_number_of_rows_in_each_step(way: str) -> None:
    assert_trains_on_some(OfSome(way), fallback="error")


def test_sizes_that_data_decides_about_within_a_graph_run_in_torch() -> None:
    message = r"test_fallback_operations.py:\d+ decides about a size by data .*aten.index.*compiled"
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        with pytest.warns(RuntimeWarning, match=message):
            assert_trains_on_some(OfSome("mask"))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
            assert_trains_on_some(OfSome("mask"), fallback="error")
