"""The zoo's training steps: at the paper's sizes, and small enough to step on a CPU. Needs PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import alexnet, bert_large, dcgan, inception3, resnet50, vgg16
from benchmarks.zoo.export import ZOO, Tensors
from campo_onnx.export.torch import export_training_step

_STAGES = ((16, 1), (32, 1), (64, 2), (64, 2), (64, 2))
_BERT = bert_large.Size(layers=2, hidden=128, heads=4, inner=512, words=1000, positions=64)
_LATENT = 32


Batch = Callable[[], tuple[Tensors, Tensors]]


def _batch(count: int, *shapes: tuple[int, ...], labels: bool = True) -> Batch:
    inputs = tuple(torch.empty(count, *shape) for shape in shapes)
    return lambda: (inputs, (torch.zeros(count, dtype=torch.long),) if labels else ())


SMALL: dict[str, tuple[Callable[[], nn.Module], int, Batch]] = {
    "alexnet": (lambda: alexnet.alexnet(10, 16, 256), 8, _batch(8, (3, 96, 96))),
    "vgg16": (lambda: vgg16.vgg16(10, _STAGES, 256, 1), 8, _batch(8, (3, 32, 32))),
    "resnet50": (lambda: resnet50.resnet50(10, (1, 1, 1, 1), 16), 8, _batch(8, (3, 64, 64))),
    "inception3": (inception3.one_of_each, 4, _batch(4, (3, 63, 63))),
    "dcgan_generator": (
        *(lambda: dcgan.GeneratorStep(_LATENT, 12), 8),
        _batch(8, (_LATENT, 1, 1), labels=False),
    ),
    "dcgan_discriminator": (
        *(lambda: dcgan.DiscriminatorStep(_LATENT, 12), 8),
        _batch(8, (3, 64, 64), (_LATENT, 1, 1), labels=False),
    ),
    "bert_large": (lambda: bert_large.Bert(_BERT), 8, lambda: bert_large.batch(8, 64, 1000)),
}
"""Module, batch size and batch of variants that take tens of milliseconds a step on two cores."""

_POSITIONS = {"full": 1, "full-rtx2080ti": 0}


def export_variant(name: str, variant: str, path: Path) -> dict[str, Any]:
    """Export a variant of a model (``full``, ``full-rtx2080ti``, ``small``); its batch size and nodes."""
    entry = ZOO[name]
    if variant == "small":
        build, batch, make = SMALL[name]
        inputs, targets = make()
    else:
        batch = entry.batch_sizes[_POSITIONS[variant]]
        build, (inputs, targets) = entry.build, entry.batch(batch)
    with torch.device("meta"):
        module = build()
    model = export_training_step(module, entry.loss, inputs, targets, optimizer=entry.optimizer, path=path)
    return {"batch": batch, "nodes": len(model.graph.node)}
