"""Random training networks: number N is always the same one. Needs PyTorch.

The AlexNet-like ones are the paper's ("Fine-grained exploitation of mixed precision", section III): five
convolutions, three max-pooling and three fully connected layers, with seven rectifiers, four normalizations
and two dropouts among them, 24 layers beside data and loss. Drawn are the 23 figures that it varies: kernels,
kernel sizes and strides of the convolutions, kernel sizes and strides of the pooling, and two widths. Kernels
are a multiple of 4, widths a multiple of 8. The ranges are ours, the paper gives none, and so is the batch.
ResNet-like networks and transformers are drawn in the same way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from benchmarks.population import FAMILIES

SEED = 20181217
ACTIVATIONS_BYTES = 5e9
"""Limit for activations of the forward pass: with their gradients the step fits on 11 GB."""

_DRAWS = 1000
_IMAGE = 224

Draw = np.random.Generator
Figures = dict[str, Any]


class _TooSmallError(Exception):
    """The image is used up before the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network with its loss and a batch, all on torch's meta device."""

    number: int
    family: str
    figures: Figures
    module: nn.Module
    loss: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]


def network(number: int) -> Network:
    """Draw a network; what cannot be computed, or does not fit, is drawn again."""
    draw, family = np.random.default_rng((SEED, number)), FAMILIES[number % len(FAMILIES)]
    for _ in range(_DRAWS):
        figures = _FIGURES[family](draw)
        try:
            with torch.device("meta"):
                candidate = Network(number=number, family=family, figures=figures, **_PARTS[family](figures))
                activations = activation_bytes(candidate)
        except _TooSmallError:
            continue
        if activations <= ACTIVATIONS_BYTES:
            return candidate
    raise AssertionError(f"no network of the family {family} in {_DRAWS} draws")


def small_network(number: int) -> Network:
    """Draw a network as :func:`network` does, some tens of times smaller, with weights and a batch."""
    draw, family = np.random.default_rng((SEED, number)), FAMILIES[number % len(FAMILIES)]
    for _ in range(_DRAWS):
        figures = _SHRUNK[family](_FIGURES[family](draw))
        try:
            parts = _PARTS[family](figures)
        except _TooSmallError:
            continue
        torch.manual_seed(number)
        limit = figures["words"] if family == "transformer" else figures["classes"]
        filled = {
            key: tuple(
                torch.randn(v.shape) if v.is_floating_point() else torch.randint(0, limit, v.shape)
                for v in parts[key]
            )
            for key in ("inputs", "targets")
        }
        return Network(number=number, family=family, figures=figures, **parts | filled)
    raise AssertionError(f"no network of the family {family} in {_DRAWS} draws")


def activation_bytes(candidate: Network) -> int:
    """Bytes of what the layers of the forward pass give."""
    total = 0

    def count(_: nn.Module, __: Any, result: Any) -> None:
        nonlocal total
        total += sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))

    hooks = [m.register_forward_hook(count) for m in candidate.module.modules() if not [*m.children()]]
    with torch.no_grad():
        candidate.module(*candidate.inputs)
    for hook in hooks:
        hook.remove()
    return total


def _multiple(draw: Draw, low: int, high: int, of: int) -> int:
    """Draw a multiple, each octave as likely as the next."""
    drawn = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(of, round(drawn / of) * of)


def _images(figures: Figures) -> dict[str, Any]:
    n, size = figures["batch"], figures["image"]
    return {
        "loss": F.cross_entropy,
        "inputs": (torch.empty(n, 3, size, size),),
        "targets": (torch.empty(n, dtype=torch.long),),
    }


def _alexnet_figures(draw: Draw) -> Figures:
    sizes = ((3, 11), (1, 7), (1, 5), (1, 5), (1, 5))
    strides = ((1, 4), (1, 2), (1, 2), (1, 2), (1, 2))
    return {
        "batch": 2 ** int(draw.integers(4, 10)),
        "image": _IMAGE,
        "classes": 1000,
        "kernels": [_multiple(draw, 16, 512, 4) for _ in range(5)],
        "kernel_sizes": [int(draw.integers(low, high + 1)) for low, high in sizes],
        "strides": [int(draw.integers(low, high + 1)) for low, high in strides],
        "pool_sizes": [int(draw.integers(2, 6)) for _ in range(3)],
        "pool_strides": [int(draw.integers(1, 4)) for _ in range(3)],
        "widths": [_multiple(draw, 64, 4096, 8) for _ in range(2)],
    }


def _alexnet(f: Figures) -> dict[str, Any]:
    layers: list[nn.Module] = []
    channels, size, pools = 3, f["image"], iter(zip(f["pool_sizes"], f["pool_strides"], strict=True))
    for i, (out, kernel, stride) in enumerate(
        zip(f["kernels"], f["kernel_sizes"], f["strides"], strict=True)
    ):
        layers.append(nn.Conv2d(channels, out, kernel, stride, kernel // 2))
        size, channels = (size + 2 * (kernel // 2) - kernel) // stride + 1, out
        if i < 4:
            layers.append(nn.BatchNorm2d(out))
        layers.append(nn.ReLU())
        if i in (0, 1, 4):  # where AlexNet pools
            kernel, stride = next(pools)
            if size < kernel:
                raise _TooSmallError
            layers.append(nn.MaxPool2d(kernel, stride))
            size = (size - kernel) // stride + 1
    first, second = f["widths"]
    layers += [
        nn.Flatten(),
        nn.Linear(channels * size * size, first), nn.ReLU(), nn.Dropout(),
        nn.Linear(first, second), nn.ReLU(), nn.Dropout(),
        nn.Linear(second, f["classes"]),
    ]  # fmt: skip
    return {"module": nn.Sequential(*layers), **_images(f)}


def _resnet_figures(draw: Draw) -> Figures:
    return {
        "batch": 2 ** int(draw.integers(4, 9)),
        "image": int(draw.choice([32, 64, 128, 224])),
        "classes": int(draw.choice([10, 100, 1000])),
        "width": _multiple(draw, 16, 128, 4),
        "blocks": [int(draw.integers(1, 4)) for _ in range(int(draw.integers(2, 5)))],
        "bottleneck": bool(draw.integers(0, 2)),
        "stem_size": int(draw.choice([3, 5, 7])),
        "stem_stride": int(draw.integers(1, 3)),
        "kernel_size": int(draw.choice([3, 5])),
    }


class _Block(nn.Module):
    def __init__(
        self, channels: int, width: int, out: int, kernel: int, stride: int, bottleneck: bool
    ) -> None:
        super().__init__()
        sizes = ((channels, width, 1, 1), (width, width, kernel, stride), (width, out, 1, 1))
        if not bottleneck:
            sizes = ((channels, width, kernel, stride), (width, out, kernel, 1))
        parts = [nn.Sequential(*_normalized(*size), nn.ReLU()) for size in sizes[:-1]]
        self.branch = nn.Sequential(*parts, *_normalized(*sizes[-1]))
        is_same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*_normalized(channels, out, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.branch(x) + self.shortcut(x)).relu()


def _normalized(channels: int, out: int, kernel: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)


def _resnet(f: Figures) -> dict[str, Any]:
    layers: list[nn.Module] = [*_normalized(3, f["width"], f["stem_size"], f["stem_stride"]), nn.ReLU()]
    channels, expansion = f["width"], 4 if f["bottleneck"] else 1
    for stage, blocks in enumerate(f["blocks"]):
        width = f["width"] * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(
                _Block(channels, width, expansion * width, f["kernel_size"], stride, f["bottleneck"])
            )
            channels = expansion * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, f["classes"])]
    return {"module": nn.Sequential(*layers), **_images(f)}


def _transformer_figures(draw: Draw) -> Figures:
    heads = int(draw.choice([2, 4, 8, 12, 16]))
    hidden = heads * int(draw.choice([32, 48, 64]))
    return {
        "batch": 2 ** int(draw.integers(1, 7)),
        "length": int(draw.choice([32, 64, 128, 256, 384, 512])),
        "words": int(draw.integers(1000, 40000)),
        "layers": int(draw.integers(1, 7)),
        "heads": heads,
        "hidden": hidden,
        "inner": hidden * int(draw.integers(1, 5)),
        "dropout": float(draw.choice([0.0, 0.1])),
    }


class _Transformer(nn.Module):
    def __init__(self, f: Figures) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(f["words"], f["hidden"]),
            nn.Embedding(f["length"], f["hidden"]),
        )
        self.layers = nn.ModuleList(_Layer(f) for _ in range(f["layers"]))
        self.norm, self.head = nn.LayerNorm(f["hidden"]), nn.Linear(f["hidden"], f["words"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).flatten(0, 1)


class _Layer(nn.Module):
    def __init__(self, f: Figures) -> None:
        super().__init__()
        hidden = f["hidden"]
        self.heads, self.dropout = f["heads"], nn.Dropout(f["dropout"])
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.inner, self.outer = nn.Linear(hidden, f["inner"]), nn.Linear(f["inner"], hidden)
        self.scores = nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        batch, length, hidden = y.shape
        q, k, v = (
            part(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = self.dropout(self.scores(q @ k.transpose(-1, -2) * (hidden // self.heads) ** -0.5))
        x = x + self.dropout(self.out((weights @ v).transpose(1, 2).reshape(batch, length, hidden)))
        return x + self.dropout(self.outer(F.gelu(self.inner(self.second(x)))))


def _transformer(f: Figures) -> dict[str, Any]:
    tokens = torch.empty(f["batch"], f["length"], dtype=torch.long)
    return {
        "module": _Transformer(f),
        "loss": lambda logits, wanted: F.cross_entropy(logits, wanted.flatten()),
        "inputs": (tokens,),
        "targets": (tokens,),
    }


_FIGURES = {"alexnet": _alexnet_figures, "resnet": _resnet_figures, "transformer": _transformer_figures}
_PARTS = {"alexnet": _alexnet, "resnet": _resnet, "transformer": _transformer}


def _smaller_alexnet(f: Figures) -> Figures:
    kernels = [max(4, size // 16 * 4) for size in f["kernels"]]
    widths = [max(8, size // 32 * 8) for size in f["widths"]]
    smaller = {"batch": max(1, f["batch"] // 32), "image": 112, "classes": 100}
    return f | smaller | {"kernels": kernels, "widths": widths}


def _smaller_resnet(f: Figures) -> Figures:
    smaller = {
        "batch": max(1, f["batch"] // 32),
        "image": min(f["image"], 64),
        "width": max(8, f["width"] // 8 * 4),
    }
    return f | smaller | {"classes": min(f["classes"], 100)}


def _smaller_transformer(f: Figures) -> Figures:
    smaller = {
        "batch": max(1, f["batch"] // 8),
        "length": min(f["length"], 128),
        "layers": min(f["layers"], 2),
    }
    return f | smaller | {"words": f["words"] // 20}


_SHRUNK = {"alexnet": _smaller_alexnet, "resnet": _smaller_resnet, "transformer": _smaller_transformer}
