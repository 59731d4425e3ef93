"""What has no translation runs in torch, with whatever torch hands around, tokens of effects among it."""

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
        found = torch.compile(module, backend=campo_onnx)(x)
    found.sum().backward()
    expected = eager(x)
    expected.sum().backward()
    assert distance([found.detach()], [expected.detach()]) < 1e-6
    assert distance([module.weight.grad], [eager.weight.grad]) < 1e-5
