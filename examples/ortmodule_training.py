"""Train with ORTModule in cost-aware mixed precision: one line more, and a loss scaler.

    python examples/ortmodule_training.py [DEVICE]

Needs onnxruntime-training 1.19.2 and PyTorch. DEVICE is what to plan for (``campo-onnx devices``);
without one it is this machine's GPU.
"""

import sys

import torch
from onnxruntime.training.ortmodule import ORTModule

from campo_onnx.integrations.ortmodule import attach


def network(width: int = 1024) -> torch.nn.Module:
    """Three layers, wide enough to gain from tensor cores."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(64, width), torch.nn.GELU()),
        *(torch.nn.Linear(width, width), torch.nn.GELU()),
        torch.nn.Linear(width, 8),
    )


def train(plan_for: str, steps: int = 10) -> list[float]:
    """Train a few steps and return the losses."""
    torch.manual_seed(0)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    model = ORTModule(network().to(here))
    attached = attach(model, device=plan_for)  # the one line

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Gradients of activations are FP16 where the activations are, and small ones would become zero.
    scaler = torch.amp.GradScaler(here, init_scale=2.0**16)
    x = torch.randn(1024, 64, device=here)
    target = torch.tanh(x[:, :8])
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # unscales; leaves a step out whose gradients overflow
        scaler.update()
        losses.append(loss.item())
    print(attached)
    return losses


if __name__ == "__main__":
    losses = train(sys.argv[1] if len(sys.argv) > 1 else "auto")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
