"""A PyTorch loop as it always was, with torch.compile's backend set to campo_onnx.

    python examples/torch_compile_training.py [DEVICE]

Needs ``pip install "campo-onnx[torch]"``. DEVICE is what to plan for (``campo-onnx devices``); ``auto``
is the GPU that the tensors are on. Without a GPU the rounding to FP16 is emulated, which is slow.
"""

import sys

import torch
from torch import nn

from campo_onnx.integrations.torch_compile import report

ROWS = 512


def network(width: int = 1024) -> nn.Module:
    """Three layers, wide enough to gain from tensor cores."""
    return nn.Sequential(
        *(nn.Linear(64, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1)),
        *(nn.Linear(width, width), nn.GELU()),
        nn.Linear(width, 8),
    )


def train(plan_for: str = "v100", steps: int = 20) -> list[float]:
    """Train with AdamW, a schedule, clipping and a loss scaler, and return the losses."""
    torch.manual_seed(0)
    model = network()
    compiled = torch.compile(model, backend="campo_onnx", options={"device": plan_for})  # the changed line
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(steps):
        x = torch.randn(ROWS, 64)
        loss = nn.functional.mse_loss(compiled(x), x[:, :8].tanh())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(report(model))
    return losses


if __name__ == "__main__":
    losses = train(*sys.argv[1:2])
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
