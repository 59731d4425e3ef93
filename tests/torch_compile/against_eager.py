"""Holding a compiled module against torch eager, in FP32 and in FP64."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from torch import nn

from campo_onnx.integrations.torch_compile import campo_onnx

STRICT = {"fallback": "error", "runtime": "onnxruntime", "plans": None}
"""Nothing is left to torch, to a measurement of this machine, or to what an earlier test kept."""


def compiled(module: Any, *, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(module, backend=campo_onnx, dynamic=dynamic, options={**STRICT, **options})


def distance(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Relative L2 distance of all tensors together: a ReLU may flip at 0."""
    differences = [(a.double() - e.double()).norm() for a, e in zip(actual, expected, strict=True)]
    sizes = [e.double().norm() for e in expected]
    return float(torch.stack(differences).norm() / torch.stack(sizes).norm())


def gradients(run: Callable[[], Any], module: Any, seed: int = 0) -> tuple[Any, list[Any]]:
    """Run forward and backward with every parameter's gradient at none before; the output and gradients.

    The loss is a weighted sum: its gradient differs from element to element.
    """
    module.zero_grad()
    torch.manual_seed(seed)
    output = run()
    weighted(output).backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
    return output.detach(), [p.grad for p in module.parameters() if p.requires_grad]


def worst_of_steps(
    module: Any, batches: Sequence[Sequence[Any]], *, dynamic: bool | None = None, **options: Any
) -> float:
    """Train a few steps; the worst distance of output, gradients and buffers from eager's in FP32.

    Both start each step from the same weights.
    """
    eager, run = copy.deepcopy(module), compiled(module, dynamic=dynamic, **options)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    worst = 0.0
    for seed, batch in enumerate(batches):
        eager.load_state_dict(module.state_dict())
        output, actual = gradients(lambda batch=batch: run(*batch), module, seed)
        true_output, expected = gradients(lambda batch=batch: eager(*batch), eager, seed)
        worst = max(worst, distance(actual, expected), distance([output], [true_output]))
        buffers = [list(m.buffers()) for m in (module, eager)]
        worst = max(worst, distance(*buffers)) if buffers[0] else worst
        optimizer.step()
    return worst


def error_against_fp64(module: Any, batch: Sequence[Any], **options: Any) -> tuple[float, float]:
    """Distance of the compiled module's output and gradients from FP64, and that of eager FP32."""
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    run = compiled(module, **options)
    wide = [x.double() if x.is_floating_point() else x for x in batch]
    output, actual = gradients(lambda: run(*batch), module)
    output32, actual32 = gradients(lambda: eager(*batch), eager)
    output64, expected = gradients(lambda: exact(*wide), exact)
    ours = max(distance([output], [output64]), distance(actual, expected))
    return ours, max(distance([output32], [output64]), distance(actual32, expected))


def weighted(y: Any) -> Any:
    return (y.flatten() * torch.linspace(-1, 1, y.numel(), dtype=y.dtype)).sum()


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x).mean(1))


class Attention(nn.Module):
    """Without dropout, the CPU picks fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(y.transpose(1, 2).flatten(2))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def perceptron(dropout: float = 0.5) -> Any:
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.GELU(), nn.Linear(8, 5)
    )  # fmt: skip
