"""A PyTorch module, trained in cost-aware mixed precision on plain ONNX Runtime, with loss scaling.

    python examples/train_pytorch.py [DEVICE]

Needs ``pip install "campo-onnx[torch]"``; PyTorch is not needed for the training itself. DEVICE is what
to plan for (``campo-onnx devices``). Without a GPU the rounding to FP16 is emulated, which is slow.
"""

import sys

import numpy as np
import torch

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.export.torch import Adam, export_training_step
from campo_onnx.runtime.registry import processor_for
from campo_onnx.training.session import TrainingSession

ROWS = 1024


def network(width: int = 1024) -> torch.nn.Module:
    """Three layers, wide enough to gain from tensor cores."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(64, width), torch.nn.GELU()),
        *(torch.nn.Linear(width, width), torch.nn.GELU()),
        torch.nn.Linear(width, 8),
    )


def train(plan_for: str = "v100", steps: int = 20) -> list[float]:
    """Export one step, optimize it, run it again and again, and return the losses."""
    torch.manual_seed(0)
    module = network()
    step = export_training_step(
        module,
        torch.nn.functional.mse_loss,
        torch.empty(ROWS, 64),  # types and shapes count, values do not
        torch.empty(ROWS, 8),
        optimizer=Adam(),
        loss_scale=True,  # FP16 gradients need it
    )
    mixed = optimize_model(step, Options(target=target(plan_for), lists=oplists("campo")))
    print(f"{len(mixed.plan.low_nodes)} of {len(mixed.plan.decisions)} nodes in {mixed.plan.low.value}")
    print(f"predicted for {plan_for}: {mixed.plan.speedup:.2f}x")

    provider = processor_for("auto")
    training = TrainingSession(
        mixed.model if provider == "cuda" else emulate(mixed.model),
        {f"param.{name}": value.detach().numpy() for name, value in module.named_parameters()},
        settings={"lr": 1e-3},
        provider=provider,
    )
    random, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x = random.standard_normal((ROWS, 64), dtype=np.float32)
        result = training.step({"input.input": x, "target.target": np.tanh(x[:, :8])})
        if result.skipped:
            print(f"step {result.step}: a gradient overflowed at loss scale {result.loss_scale:.0f}")
        losses.append(result.loss)
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:2])
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
