"""Write bert_layer.onnx: one layer of BERT-large for question answering, loss scale and gradients included.

Run ``python examples/export_bert_layer.py`` (needs torch). Weights are inputs, so the file is small.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from campo_onnx.export.torch import export_training_step

BATCH, TOKENS, WIDTH, HEADS, INNER = 8, 384, 1024, 16, 4096


class BertLayer(nn.Module):
    """Self-attention and a feed-forward part, each with dropout and normalization, then two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attention_output = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate, self.output = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.span = nn.Linear(WIDTH, 2)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Give logits of where an answer starts and ends."""

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)

        query, key, value = heads(self.query(hidden)), heads(self.key(hidden)), heads(self.value(hidden))
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        scores = scores + (1.0 - mask)[:, None, None, :] * -10000.0
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        context = (weights @ value).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
        attended = F.dropout(self.attention_output(context), 0.1, self.training)
        hidden = self.attention_norm(hidden + attended)
        grown = F.dropout(self.output(F.gelu(self.intermediate(hidden))), 0.1, self.training)
        return self.span(self.output_norm(hidden + grown))


def span_loss(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The cross entropy of start and end over all tokens."""
    return F.cross_entropy(logits, positions)


def main(path: Path = Path(__file__).parent / "bert_layer.onnx") -> None:
    """Write the file, beside this one unless told otherwise."""
    with torch.device("meta"):
        layer = BertLayer()
    hidden, mask = torch.empty(BATCH, TOKENS, WIDTH), torch.ones(BATCH, TOKENS)
    positions = torch.zeros(BATCH, 2, dtype=torch.long)
    export_training_step(layer, span_loss, (hidden, mask), positions, path=path)


if __name__ == "__main__":
    main()
