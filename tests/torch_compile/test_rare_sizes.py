"""Sizes that change with every batch are not compiled each; recurrent layers are not left without a word."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import STRICT, compiled, distance, gradients, worst_of_steps
from torch import nn

from campo_onnx.integrations.torch_compile import campo_onnx, report
from campo_onnx.integrations.torch_compile.recurrent import listen
from campo_onnx.ir.sizes.formulas import Formula, formula_of


def test_a_sum_of_sizes_is_a_formula() -> None:
    sizes = [(87, 37), (99, 31), (79, 38), (92, 32), (106, 39)]
    for wanted in (
        lambda n, e: n + e,
        lambda n, e: 3 * n + 16 * e - 7,
        lambda n, e: 1 / (n + e),
        lambda n, e: (n + 2 * e + 3) ** -0.5,
    ):
        formula = formula_of([wanted(*each) for each in sizes], sizes)
        assert isinstance(formula, Formula)
        assert formula.at((5, 6)) == pytest.approx(wanted(5, 6), rel=1e-9)
    assert formula_of([n + e for n, e in sizes[:3]], sizes[:3]) is None  # nothing is left to try it at
    assert formula_of([max(n, 3 * e) for n, e in sizes], sizes) is None


class Masked(nn.Module):
    """A mask breaks the graph; behind it sizes of nodes and edges are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Any, edges: Any) -> Any:
        edges = edges[:, edges[0] != edges[1]]
        own = torch.arange(x.shape[0])
        edges = torch.cat([edges, torch.stack([own, own])], 1)
        h = self.first(x).relu()
        h = h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return self.last(h).mean(0)


def graphs(count: int) -> list[tuple[Any, Any]]:
    sizes = [(30 + k * 7 % 13, 80 + k * 11 % 29) for k in range(count)]
    return [(torch.randn(n, 8), torch.randint(0, n, (2, e))) for n, e in sizes]


def test_a_mask_in_a_model_of_changing_sizes() -> None:
    module = Masked()
    assert worst_of_steps(module, graphs(16), fallback="torch") < 1e-5
    steps = [graph for graph in report(module).graphs if "training step" in graph.kind]
    assert any("any size" in graph.kind for graph in steps)
    assert len(steps) < 10


class Halved(nn.Module):
    """The half of a size is no formula of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        h = self.first(x).tanh()
        return self.last(h[: x.shape[0] // 2] * h[x.shape[0] // 2 : x.shape[0] // 2 * 2])


def test_what_no_formula_tells_apart_is_compiled_for_a_few_sizes() -> None:
    module = Halved()
    assert worst_of_steps(module, [(torch.randn(n, 4),) for n in range(8, 38)], dynamic=True) < 1e-5
    assert len(report(module).graphs) == 12
    run = compiled(module, dynamic=True)
    for _ in range(3):
        _, actual = gradients(lambda: run(torch.ones(50, 4)), module)
        actual = [g.clone() for g in actual]
        _, expected = gradients(lambda: module(torch.ones(50, 4)), module)
        assert distance(actual, expected) < 1e-5


def test_sizes_that_return_are_compiled() -> None:
    module = Halved()
    run = compiled(module, dynamic=True)
    with torch.no_grad():
        for n in (*range(8, 28), 40, 40):
            run(torch.randn(n, 4))
        assert len(report(module).graphs) == 8
        x = torch.randn(40, 4)
        assert distance([run(x)], [module(x)]) < 1e-6
    assert (40,) in {graph.sizes for graph in report(module).graphs}


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.encoder, self.last = kind(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.encoder(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_told_of(kind: Any) -> None:
    listen()  # torch._dynamo.reset() forgot it
    module = Recurrent(kind)
    run = torch.compile(module, backend=campo_onnx, options=STRICT)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            run(torch.randn(4, 6, 8)).sum().backward()
    told = [str(warning.message) for warning in seen if "recurrent" in str(warning.message)]
    assert len(told) == 1
    assert "allow_rnn" in told[0]
    assert f"torch runs encoder ({kind.__name__})" in str(report(module))
    assert "run a step first" not in str(report(module))


def test_no_word_of_another_backend() -> None:
    listen()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.compile(Recurrent(nn.LSTM), backend="eager")(torch.randn(4, 6, 8))
    assert not [warning for warning in seen if "recurrent" in str(warning.message)]
