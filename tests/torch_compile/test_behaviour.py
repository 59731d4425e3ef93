"""Users of torch.compile expect more of a backend than right numbers."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_eager import compiled, convolutions, distance, gradients, perceptron, worst_of_steps
from torch import nn
from torch.utils.checkpoint import checkpoint

from campo_onnx.integrations.torch_compile import campo_onnx, report

ROUNDING = 2e-6


class Applied(nn.Module):
    """A function of a weight and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4)), function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.weight, *inputs)


def test_evaluation_and_training_are_graphs_of_their_own() -> None:
    module, x = convolutions(), torch.randn(4, 3, 12, 12)
    run = compiled(module)
    run(x).sum().backward()
    module.eval()
    with torch.no_grad():
        assert distance([run(x)], [module(x)]) < ROUNDING
    actual, expected = (gradients(lambda f=f: f(x), module) for f in (run, module))
    assert distance(actual[1], expected[1]) < ROUNDING
    assert [graph.kind for graph in report(module).graphs] == [
        "training step",
        "forward pass",
        "training step",
    ]


def test_frozen_parameters_get_no_gradient() -> None:
    module = perceptron(0.0)
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    assert worst_of_steps(module, [[torch.randn(8, 4)]]) < ROUNDING
    assert module[0].weight.grad is None


def test_hooks_run_as_in_eager() -> None:
    module, seen = perceptron(0.0), []
    module[0].register_forward_hook(lambda *_: seen.append("forward"))
    module[4].register_full_backward_hook(lambda *_: seen.append("backward"))
    gradients(lambda: compiled(module)(torch.randn(3, 4)), module)
    assert seen == ["forward", "backward"]


def test_a_graph_break_makes_two_graphs() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            return self.second(x)

    module = Broken()
    assert worst_of_steps(module, [[torch.randn(3, 4)]]) < ROUNDING
    assert len(report(module).graphs) == 2


def test_sessions_of_sizes_not_used_for_longest_go() -> None:
    module = perceptron()
    batches = [[torch.randn(size, 4)] for size in (3, 4, 5, 3, 4)]
    with pytest.warns(RuntimeWarning, match=r"pad_to_multiple_of.*sessions") as caught:
        assert worst_of_steps(module, batches, dynamic=True, sessions=2) < ROUNDING
    assert len(caught) == 1
    assert [graph.sizes for graph in report(module).graphs] == [(3,), (4,)]


@pytest.mark.filterwarnings("ignore:campo-onnx has compiled a graph for more than")
def test_a_backward_pass_outlives_its_session() -> None:
    """Sizes that were forgotten since the forward pass are made again."""
    module, batches = perceptron(), [torch.randn(size, 4) for size in (3, 4, 5)]
    eager, run = copy.deepcopy(module), compiled(module, dynamic=True, sessions=1)
    for side in (run, eager):
        torch.manual_seed(1)
        outputs = [side(x) for x in batches]
        sum(y.sin().sum() for y in outputs).backward()
    assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < ROUNDING


def test_gradients_accumulate_and_graphs_run_twice() -> None:
    module, x = perceptron(0.0), torch.randn(3, 4)
    run = compiled(module)
    run(x).sum().backward()
    module.zero_grad()
    loss = run(x).sin().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in module.parameters()]
    loss.backward()
    assert distance([p.grad for p in module.parameters()], [2 * g for g in once]) == 0.0


def test_results_may_be_inputs_views_none_and_numbers() -> None:
    module = Applied(lambda w, x: (x, w * x, (w * x).view(2, -1), x.t(), w, None, 3, (w * x).detach()))
    x = torch.randn(3, 4)
    actual, expected = compiled(module)(x), module(x)
    assert actual[0] is x
    assert actual[4] is module.weight
    assert actual[5:7] == (None, 3)
    for ours, theirs in zip(actual, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
            assert ours.requires_grad == theirs.requires_grad


@pytest.mark.parametrize(
    "inputs",
    [
        [torch.randn(4, 3).t()],
        [torch.randn(1, 4).expand(3, 4)],
        [torch.randn(6, 8)[::2, ::2]],
        [torch.randn(0, 4)],
    ],
    ids=["transposed", "expanded", "with gaps", "empty"],
)
def test_inputs_lie_as_they_like(inputs: Any) -> None:
    module = Applied(lambda w, x: (w * x).exp().sum(0))
    assert worst_of_steps(module, [inputs, inputs], dynamic=False) < ROUNDING


def test_outputs_lie_as_eagers_do() -> None:
    module = Applied(lambda w, x: ((w * x).t().exp(), (w * x).mean().expand(3, 4), (w * x).exp()[:, ::2]))
    x = torch.randn(3, 4)
    actual, expected = compiled(module)(x), module(x)
    assert [y.stride() for y in actual] == [y.stride() for y in expected]
    assert distance(actual, expected) < ROUNDING


DRAWN = {
    "dropout": lambda w, x: F.dropout(w * x, 0.3),
    "dropout of a transposed tensor": lambda w, x: F.dropout((w * x).t(), 0.3),
    "dropout of all": lambda w, x: F.dropout(w * x, 1.0),
    "channels": lambda w, x: F.dropout1d(w * x, 0.3),
    "checkpointed": lambda w, x: checkpoint(lambda y: F.dropout(y * w, 0.3).sin(), x, use_reentrant=False),
    "others": lambda w, x: (
        w * x * torch.rand(3, 4) + torch.randn_like(x) + torch.empty_like(x).uniform_()
        + torch.bernoulli(torch.full_like(x, 0.3)) + torch.randint(0, 5, (3, 4))
        + torch.zeros_like(x).normal_()
    )[torch.randperm(3)],
}  # fmt: skip


@pytest.mark.parametrize("function", DRAWN.values(), ids=DRAWN)
def test_random_numbers_are_eagers(function: Any) -> None:
    assert worst_of_steps(Applied(function), [[torch.randn(3, 4)]] * 2) < ROUNDING


@dataclass
class Found:
    loss: Any
    logits: Any


def test_arguments_may_change_and_hold_what_is_no_tensor() -> None:
    def both(w: Any, x: Any, more: Any = None, double: bool = False, factor: float = 1.0) -> Any:
        y = w * x * factor + (0 if more is None else more["by"][0].loss)
        return Found(loss=None if more is None else y.sum(), logits=y * 2 if double else y)

    module, x = Applied(both), torch.randn(3, 4)
    run = compiled(module)
    more = {"by": [Found(torch.randn(4), None)]}
    calls = [(x, None), (x, more, True), *((x, more, False, factor) for factor in (0.5, 0.25, 0.125))]
    for call in calls:
        actual, expected = run(*call), module(*call)
        assert (actual.loss is None) == (expected.loss is None)
        assert distance([actual.logits], [expected.logits]) < ROUNDING
        gradients = [torch.autograd.grad(each.logits.sum(), module.weight) for each in (actual, expected)]
        assert distance(*gradients) < ROUNDING


def test_buffers_and_inputs_change_in_place() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Any) -> Any:
            self.seen += x.mean(0).detach()
            self.seen.mul_(0.9)
            x.mul_(2)
            return self.weight * x + self.seen

    module = Counting()
    eager, run = copy.deepcopy(module), compiled(module)
    for _ in range(2):
        ours = torch.randn(3, 4)
        theirs = ours.clone()
        address = module.seen.data_ptr()
        assert torch.allclose(run(ours), eager(theirs))
        assert distance([ours, module.seen], [theirs, eager.seen]) < ROUNDING
        assert module.seen.data_ptr() == address


def test_what_a_model_copies_may_change_before_the_backward_pass() -> None:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("queue", torch.randn(3, 5))

        def forward(self, x: Any) -> Any:
            return self.layer(x) @ self.queue.clone().detach()

    module = Queue()
    eager, run = copy.deepcopy(module), compiled(module)
    for _ in range(2):
        x = torch.randn(2, 4)
        for call, each in ((run, module), (eager, eager)):
            each.zero_grad()
            y = call(x)
            each.queue[:, 1:3] = x.T[:3]
            y.square().sum().backward()
        assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < 1e-5


def test_a_matrix_is_multiplied_with_a_vector_as_written() -> None:
    """ONNX Runtime's own fusion of a transposed matrix with a vector is wrong."""
    module = Applied(lambda w, x: (x.t() @ (x @ w)) * w)
    assert worst_of_steps(module, [[torch.randn(4, 4)]]) < ROUNDING


def untranslatable(w: Any, x: Any) -> Any:
    return F.dropout(torch.special.bessel_j0((w * x).sin()) + (w * x).exp() @ torch.ones(4, 4))


def test_what_cannot_be_translated_runs_in_torch_with_one_warning() -> None:
    module = Applied(untranslatable)
    batches = [[torch.randn(size, 4)] for size in (3, 5, 6)]
    with pytest.warns(RuntimeWarning, match="special_bessel_j0") as warned:
        assert worst_of_steps(module, batches, fallback="torch") < ROUNDING
    assert len(warned) == 1
    summary = report(module)
    assert summary.left == ("aten.special_bessel_j0.default",)
    assert {"piece", "half of a training step"} == {graph.kind for graph in summary.graphs}


def test_an_error_in_place_of_the_fallback_names_the_operation() -> None:
    with pytest.raises(Exception, match=r"no translation for aten\.special_bessel_j0"):
        compiled(Applied(untranslatable), fallback="error")(torch.randn(3, 4))


def test_a_use_without_translation_is_found_and_left_to_torch() -> None:
    """Running products have a translation up to some length only."""
    module = Applied(lambda w, x: (1 + 1e-3 * (w * x).tanh()).flatten().cumprod(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert worst_of_steps(module, [[torch.randn(200, 4)]], fallback="torch") < 10 * ROUNDING
    assert "aten.cumprod.default" in report(module).left


def test_a_module_of_low_precision_has_chosen_already() -> None:
    module, x = perceptron(0.0).bfloat16(), torch.randn(8, 4).bfloat16()
    run = compiled(copy.deepcopy(module), fallback="torch")
    with pytest.warns(RuntimeWarning, match="bfloat16"):
        ours, theirs = run(x), module(x)
    assert ours.dtype == torch.bfloat16
    assert distance([ours], [theirs]) < 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divice": "h200"}, "unknown option 'divice'.*Did you mean 'device'"),
        ({"device": "h20"}, "h200"),
        ({"strategy": "optimum"}, "Did you mean 'optimal'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"fallback": "eager"}, "unknown fallback 'eager'"),
        ({"sessions": 0}, "at least one"),
        ({"keep_fp32": "Gemm"}, "list of regular expressions"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked(options: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        torch.compile(nn.Linear(4, 2), backend=campo_onnx, options=options)(torch.randn(3, 4))


def test_installing_us_is_enough() -> None:
    (entry,) = entry_points(group="torch_dynamo_backends", name="campo_onnx")
    assert entry.load() is campo_onnx
    assert "campo_onnx" in torch.compiler.list_backends()
    assert torch.compile(nn.Linear(4, 2), backend="campo_onnx")(torch.randn(3, 4)).shape == (3, 2)


MARKED: dict[str, Callable[[Any], Any]] = {
    "negative": torch._neg_view,
    "conjugate": lambda x: torch.complex(x, x).conj().imag,
    "zeros": lambda x: torch._efficientzerotensor(x.shape),
}
"""Tensors that torch only marks as negated or zero: their memory holds something else, or there is none."""


@pytest.mark.parametrize("marked", MARKED.values(), ids=list(MARKED))
def test_tensors_whose_memory_does_not_hold_their_elements(marked: Callable[[Any], Any]) -> None:
    module = nn.Linear(4, 3)
    x, tangent = marked(torch.randn(5, 4)), marked(torch.randn(5, 3))
    both = [
        (out, *torch.autograd.grad(out, list(module.parameters()), tangent))
        for out in (compiled(module)(x), module(x))
    ]
    torch.testing.assert_close(*both)


class Curved(nn.Module):
    """A sum of second derivatives: torch.func.hessian hands tensors around that are only marked as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))

    def forward(self, x: Any) -> Any:
        def value(point: Any) -> Any:
            return self.layers(point[None]).squeeze()

        curvature = torch.func.vmap(lambda point: torch.func.hessian(value)(point).diagonal().sum())(x)
        return (curvature + x.sin().sum(1)).square().mean().reshape(1)


def test_second_derivatives_in_forward() -> None:
    assert worst_of_steps(Curved(), [[torch.rand(4, 2)], [torch.rand(4, 2)]]) < ROUNDING
