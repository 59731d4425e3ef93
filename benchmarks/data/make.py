"""Write the graphs of the accuracy experiment: training steps, and the networks alone for evaluation.

    python -m benchmarks.data.make [--out FOLDER]

Needs PyTorch. Weights are inputs of every graph, so that the files hold none and do not depend on a random
start: what is written is the same every time, to the byte. Why it is not what lies here, README.md says.
"""

from collections.abc import Callable
from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.pages import arguments
from campo_onnx.export.torch import export_training_step
from campo_onnx.ir.exporter import export_model
from campo_onnx.step import naming as step_naming

HERE = Path(__file__).parent
OPSET = 20
BATCH, HELD_OUT, PIXELS, SIDE, CLASSES = 64, 360, 64, 8, 10
SMALL = 2.0**-18

Tensors = dict[str, torch.Tensor]


class Mlp(nn.Module):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(PIXELS, 128), nn.Linear(128, 128), nn.Linear(128, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(images)))))


class Cnn(nn.Module):
    """Two convolutions, each with batch normalization and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        x = images.view(-1, 1, SIDE, SIDE)
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


class Block(nn.Module):
    """Attention and feed-forward part, each behind a normalization."""

    def __init__(self, width: int = 32, heads: int = 4, inner: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.ln2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both parts to the input."""
        batch, length, width = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Transformer(nn.Module):
    """Each row of the image is a token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pos = nn.Parameter(torch.zeros(SIDE, width))
        self.embed = nn.Linear(SIDE, width)
        self.block1, self.block2 = Block(), Block()
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        x = self.embed(images.view(-1, SIDE, SIDE)) + self.pos
        return self.head(self.ln(self.block2(self.block1(x))).mean(1))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


def with_logits(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
    """The loss, and what it is of."""
    return F.cross_entropy(logits, labels), {"logits": logits}


def batch(size: int) -> tuple[Tensors, Tensors]:
    return {"images": torch.empty(size, PIXELS)}, {"labels": torch.zeros(size, dtype=torch.long)}


def write_step(name: str, module: nn.Module, loss: Callable[..., torch.Tensor], folder: Path) -> None:
    """Export a training step with momentum and loss scaling."""
    path = folder / f"{name}_step.onnx"
    export_training_step(module, loss, *batch(BATCH), optimizer="momentum", opset=OPSET, path=path)


def write_network(name: str, module: nn.Module, folder: Path) -> None:
    """Export a network in evaluation: cut out of a step that gives its logits as well."""
    step = export_training_step(module.eval(), with_logits, *batch(HELD_OUT), loss_scale=False, opset=OPSET)
    inputs = [value.name for value in step.graph.input if not value.name.startswith("target.")]
    network = onnx.utils.Extractor(step).extract_model(inputs, [step_naming.output("logits")])
    export_model(network, folder / f"{name}_eval.onnx")


def small_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy in a unit so large that FP16 gradients vanish."""
    return F.cross_entropy(logits, labels) * SMALL


def main() -> None:
    """Write every file."""
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="where to; beside this script by default")
    folder = parser.parse_args().out
    for name, build in (("mlp", Mlp), ("cnn", Cnn), ("transformer", Transformer)):
        write_step(name, build(), cross_entropy, folder)
        write_network(name, build(), folder)
    write_step("mlp_small_loss", Mlp(), small_loss, folder)


if __name__ == "__main__":
    main()
