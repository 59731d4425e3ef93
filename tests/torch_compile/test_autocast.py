"""Graphs under autocast: planned as others, with results of autocast's types, and closer to FP64."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import Attention, Encoder, compiled, convolutions, distance, gradients, perceptron
from torch import nn

from campo_onnx.integrations.torch_compile import report
from campo_onnx.ops.precision import Precision

LOW = {torch.bfloat16: Precision.BF16, torch.float16: Precision.FP16}


class Within(nn.Module):
    """Autocast in forward, around a part, as accelerate writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = perceptron(0.0), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.part(x)
        return self.last(x.float())


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (lambda: perceptron(0.0), (8, 4)),
    "encoder": (Encoder, (2, 5, 32)),
    "convolutions": (convolutions, (2, 3, 8, 8)),
    "attention": (Attention, (2, 6, 16)),
    "lookup": (lambda: nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4), nn.Softmax(-1)), (3, 5)),
}


def batch_of(shape: tuple[int, ...]) -> Any:
    return torch.randn(shape) if shape != (3, 5) else torch.randint(0, 9, shape)


def held_against_fp64(module: Any, run: Any, batches: list[Any], dtype: Any) -> None:
    """Hold outputs and every gradient against FP64, and against what eager autocast is off."""
    exact = copy.deepcopy(module).double()
    for x in batches:
        wide = x.double() if x.is_floating_point() else x
        with torch.autocast("cpu", dtype=dtype):
            output, actual = gradients(lambda x=x: run(x), module)
            actual = [g.clone() for g in actual]
            theirs, rounded = gradients(lambda x=x: module(x), module)
        true_output, expected = gradients(lambda x=wide: exact(x), exact)
        assert output.dtype == theirs.dtype == dtype or theirs.dtype == torch.float32 == output.dtype
        assert distance(actual, expected) < 1.1 * distance(rounded, expected)
        assert distance([output], [true_output]) < 1.1 * distance([theirs], [true_output])
        each = zip(actual, rounded, module.parameters(), expected, strict=True)
        for ours, theirs, parameter, gradient in each:
            assert ours.dtype == parameter.dtype
            most = max(0.1, 1.1 * distance([theirs], [gradient]))  # a loss in BF16 has few values
            assert distance([ours], [gradient]) < most or gradient.norm() < 1e-6


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(("make", "shape"), MODULES.values(), ids=MODULES)
def test_around_a_model(make: Any, shape: Any, dtype: Any) -> None:
    module = make()
    held_against_fp64(module, compiled(module), [batch_of(shape) for _ in range(2)], dtype)
    (graph,) = report(module).graphs
    assert graph.kind == "training step"
    assert graph.plan.low is LOW[dtype]


def test_within_a_model() -> None:
    module, x = Within(), torch.randn(8, 4)
    exact = copy.deepcopy(module)
    exact.forward = lambda x: exact.last(exact.part(x))
    exact.double()
    output, actual = gradients(lambda: compiled(module)(x), module)
    actual = [g.clone() for g in actual]
    theirs, rounded = gradients(lambda: module(x), module)
    _, expected = gradients(lambda: exact(x.double()), exact)
    assert output.dtype == theirs.dtype == torch.float32
    assert distance(actual, expected) < distance(rounded, expected)


def test_in_batches_of_other_sizes() -> None:
    module = Encoder()
    batches = [torch.randn(n, 3 + n, 32) for n in (2, 5, 3, 4, 6, 2, 7)]
    held_against_fp64(module, compiled(module, dynamic=True), batches, torch.bfloat16)


def test_without_a_gradient() -> None:
    module, x = Encoder(), torch.randn(2, 5, 32)
    run = compiled(module)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = run(x), module(x)
    exact = module.double()(x.double())
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert distance([ours], [exact]) < 1.1 * distance([theirs], [exact])


def test_results_go_on_in_other_graphs() -> None:
    """Behind a break of the graph, an argument comes in low precision."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x)

    module = Broken()
    held_against_fp64(module, compiled(module), [torch.randn(16, 4)], torch.bfloat16)
    assert len(report(module).graphs) == 2


def wide_perceptron() -> Any:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize("name", ["perceptron", "encoder", "convolutions", "wide"])
def test_in_openvino(name: str) -> None:
    make, shape = {**MODULES, "wide": (wide_perceptron, (256, 256))}[name]
    module = make()
    # Planned for a processor on which BF16 pays, whatever this one is.
    run = compiled(module, runtime="openvino", device="zen4")
    held_against_fp64(module, run, [batch_of(shape)], torch.bfloat16)
    (graph,) = report(module).graphs
    assert graph.runtime == "openvino"
    assert graph.plan.low_nodes or name != "wide"
