"""Write attention_step.onnx, with the forms that only ONNX Runtime's CUDA provider has kernels for.

    python tests/cuda/data/make.py

Needs PyTorch; the committed file was made by 2.13.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from campo_onnx.export.torch import export_training_step

SHARE = 0.1


class Layer(nn.Module):
    """One layer of a transformer that normalizes behind its residual sums, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.inner, self.outer, self.head = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 8)
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)

    def forward(self, x: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            f(x).view(batch, length, 2, -1).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        weights = F.dropout((q / 8 @ k.transpose(-1, -2) + mask).softmax(-1), SHARE)
        y = self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = self.first(x + F.dropout(y, SHARE))
        x = self.second(x + F.dropout(self.outer(F.gelu(self.inner(x))), SHARE))
        return self.head(x).flatten(0, 1)


class Step(nn.Module):
    """Words, one layer, and the class of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.layer = nn.Embedding(50, 64), nn.LayerNorm(64), Layer()

    def forward(self, words: Any, mask: Any) -> Any:
        return self.layer(self.norm(self.words(words)), mask)


if __name__ == "__main__":
    with torch.device("meta"):
        step = Step()
    export_training_step(
        step,
        F.cross_entropy,
        (torch.zeros(2, 16, dtype=torch.long), torch.zeros(2, 1, 1, 16)),
        (torch.zeros(32, dtype=torch.long),),
        unscale=False,
        target="v100",
        path=Path(__file__).with_name("attention_step.onnx"),
    )
