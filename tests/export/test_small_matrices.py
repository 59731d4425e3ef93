"""Linear algebra on small matrices, held against FP64 as torch's own kernels are."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import feeds_of, run
from torch import nn
from torch.linalg import cholesky, solve, solve_triangular

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch import export_training_step

LIMIT, ROUNDINGS = 3, 4 * 2.0**-24


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight, x)


def positive(w: Any) -> Any:
    return w @ w.mT + torch.eye(w.shape[-1], dtype=w.dtype)


def normal(w: Any, x: Any) -> Any:
    factor = w.tril(-1) + torch.eye(w.shape[-1], dtype=w.dtype)
    return torch.distributions.MultivariateNormal(x[0], scale_tril=factor).log_prob(x)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "cholesky": (lambda w, x: cholesky(positive(w)) @ x, (2, 4, 4)),
    "cholesky_upper": (lambda w, x: cholesky(positive(w), upper=True) @ x, (4, 4)),
    "cholesky_of_a_triangle": (lambda w, x: cholesky(positive(w).tril()) @ x, (4, 4)),
    "cholesky_solve": (lambda w, x: torch.cholesky_solve(x, cholesky(positive(w))), (2, 4, 4)),
    "cholesky_solve_upper": (
        lambda w, x: x.cholesky_solve(cholesky(positive(w), upper=True), upper=True), (4, 4)
    ),
    "det": (lambda w, x: w.det()[..., None, None] * x, (2, 3, 4, 4)),
    "inv": (lambda w, x: w.inverse() @ x, (2, 4, 4)),
    "logdet": (lambda w, x: positive(w).logdet() * x, (4, 4)),
    "normal": (lambda w, x: normal(w, x.mT), (4, 4)),
    "slogdet": (lambda w, x: w.slogdet().logabsdet.sum() * x + torch.slogdet(w)[0].sum(), (2, 5, 5)),
    "slogdet_of_a_number": (lambda w, x: torch.linalg.slogdet(w)[1] * x, (1, 1)),
    "solve": (lambda w, x: solve(w, x), (2, 4, 4)),
    "solve_batch_of_one_matrix": (lambda w, x: solve(w, torch.stack([x, x * x])), (4, 4)),
    "solve_right": (lambda w, x: solve(w, x.mT, left=False), (4, 4)),
    "solve_vector": (lambda w, x: solve(w, x[:, 0]), (4, 4)),
    "triangular": (lambda w, x: solve_triangular(positive(w), x, upper=False), (2, 4, 4)),
    "triangular_right": (lambda w, x: solve_triangular(positive(w), x.mT, upper=True, left=False), (4, 4)),
    "triangular_unit": (lambda w, x: solve_triangular(w, x, upper=True, unitriangular=True), (4, 4)),
}  # fmt: skip


def trained(module: Any, x: Any) -> tuple[Any, Any]:
    module.zero_grad()
    loss = module(x).sin().sum()
    loss.backward()
    return loss.detach().double(), module.weight.grad.double()


def distance(actual: Any, expected: Any) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_small_matrices(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    module = Applied(function, *shape)
    model = export_training_step(
        module, lambda y: y.sin().sum(), torch.randn(4, 3), loss_scale=False, assume="checks"
    )
    errors = []
    for seed in range(3):
        torch.manual_seed(seed)
        module, x = Applied(function, *shape), torch.randn(4, 3)
        outputs = run(model, feeds_of(model, module, [x]))
        ours = [torch.from_numpy(outputs[name]).double() for name in ("loss", "grad.weight")]
        exact = trained(copy.deepcopy(module).double(), x.double())
        pairs = zip((*ours, *trained(module, x)), (*exact, *exact), strict=True)
        errors.append([distance(*pair) for pair in pairs])
    loss, gradient, own_loss, own_gradient = torch.tensor(errors).median(0)[0]
    assert loss <= LIMIT * max(own_loss, ROUNDINGS)
    assert gradient <= LIMIT * max(own_gradient, ROUNDINGS)


def test_the_gradient_of_a_factor_is_symmetric() -> None:
    module = Applied(lambda w, x: cholesky(w) @ x, 4, 4)
    module.weight.data.copy_(positive(module.weight.data))
    x = torch.randn(4, 3)
    model = export_training_step(module, lambda y: y.sin().sum(), x, loss_scale=False)
    gradient = torch.from_numpy(run(model, feeds_of(model, module, [x]))["grad.weight"]).double()
    assert distance(gradient, trained(module, x)[1]) < 1e-5


def test_a_large_matrix_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"no translation for aten\._linalg_slogdet"):
        export_training_step(
            Applied(lambda w, x: torch.linalg.slogdet(w)[1] * x, 40, 40), lambda y: y.sum(), torch.randn(4)
        )
