"""Export the paper's six models at full size as training-step graphs.

The batch sizes are the paper's (section 7): on the RTX 2080 Ti 256 for AlexNet and 64 for the
others, on the V100 10 for BERT-large and 256 for the others. Tracing needs types and shapes only,
so any size exports on any machine.

Run ``python -m benchmarks.zoo.export OUT [--models resnet50 ...] [--batch N] [--optimizer momentum]``;
``--memory 80 --together 4`` takes batches of which four graphs fit on a device of 80 GB (zoo/memory.py).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.pages import arguments
from benchmarks.zoo import alexnet, bert_large, dcgan, inception3, resnet50, vgg16
from benchmarks.zoo.memory import fitting_batch
from campo_onnx.export.torch import export_training_step

Tensors = tuple[torch.Tensor, ...]
Shallow = Callable[[], tuple[nn.Module, Tensors, Tensors]]

SQUAD_LENGTH = 384
LATENT = 100
_HALVINGS = 6  # how often a batch is halved to make it fit


def _images(size: int) -> Callable[[int], tuple[Tensors, Tensors]]:
    return lambda n: ((torch.empty(n, 3, size, size),), (torch.zeros(n, dtype=torch.long),))


_IMAGENET = _images(224)


def _noise(n: int) -> torch.Tensor:
    return torch.empty(n, LATENT, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the zoo."""

    build: Callable[[], nn.Module]
    shallow: Shallow
    loss: Callable[..., torch.Tensor] = F.cross_entropy
    batch: Callable[[int], tuple[Tensors, Tensors]] = _IMAGENET
    batch_sizes: tuple[int, int] = (64, 256)
    optimizer: str = "momentum"


ZOO = {
    "alexnet": Entry(build=alexnet.alexnet, shallow=alexnet.shallow, batch_sizes=(256, 256)),
    "vgg16": Entry(build=vgg16.vgg16, shallow=vgg16.shallow),
    "resnet50": Entry(build=resnet50.resnet50, shallow=resnet50.shallow),
    "inception3": Entry(
        build=inception3.inception3, shallow=inception3.shallow, loss=inception3.loss, batch=_images(299)
    ),
    "dcgan_generator": Entry(
        build=dcgan.GeneratorStep, shallow=dcgan.shallow_generator, loss=dcgan.generator_loss,
        batch=lambda n: ((_noise(n),), ()), optimizer="adam",
    ),
    "dcgan_discriminator": Entry(
        build=dcgan.DiscriminatorStep, shallow=dcgan.shallow_discriminator, loss=dcgan.discriminator_loss,
        batch=lambda n: ((torch.empty(n, 3, 64, 64), _noise(n)), ()), optimizer="adam",
    ),
    "bert_large": Entry(
        build=lambda: bert_large.Bert(bert_large.Size()), shallow=bert_large.shallow, loss=bert_large.loss,
        batch=lambda n: bert_large.batch(n, SQUAD_LENGTH, bert_large.Size().words), batch_sizes=(0, 10),
        optimizer="adamw",
    ),
}  # fmt: skip
"""The paper's six; DCGAN trains by two steps."""


def export(
    name: str, batch: int, *, optimizer: str | None, path: Path | None = None, drops: bool = True,
    **options: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Export one model; its weights are never made. Further options are those of the exporter.

    Without `drops`, two runs of the step give the same numbers.
    """
    entry = ZOO[name]
    inputs, targets = entry.batch(batch)
    with torch.device("meta"):
        module = entry.build()
    if not drops:
        _without_dropout(module)
    return export_training_step(
        module, entry.loss, inputs, targets,
        optimizer=optimizer, path=path, **options,
    )  # fmt: skip


def _without_dropout(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, bert_large.Attention):
            part.dropout = 0.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for the models")
    add("--models", nargs="+", choices=[*ZOO], default=[*ZOO])
    add("--batch", type=int, help="instead of the paper's sizes")
    add("--memory", type=float, metavar="GB", help="the largest size that fits a device")
    add("--together", type=int, default=1, metavar="N", help="with so many graphs loaded")
    add("--optimizer", choices=["none", "sgd", "momentum", "adam", "adamw"])
    add("--no-dropout", action="store_true", help="for steps whose numbers are compared")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        entry = ZOO[name]
        sizes = [options.batch] if options.batch else sorted({n for n in entry.batch_sizes if n})
        if options.memory:
            halves = sorted({max(1, n >> k) for n in sizes for k in range(_HALVINGS)})
            size = fitting_batch(name, halves, memory_gb=options.memory, together=options.together)
            if size is None:
                print(f"{name}: no batch fits {options.memory:g} GB", flush=True)
            sizes = [] if size is None else [size]
        chosen = options.optimizer or entry.optimizer
        for size in sizes:
            path = options.out / f"{name}_b{size}.onnx"
            began = time.perf_counter()
            optimizer = None if chosen == "none" else chosen
            model = export(name, size, optimizer=optimizer, path=path, drops=not options.no_dropout)
            seconds = time.perf_counter() - began
            megabytes = path.stat().st_size / 1e6
            print(f"{path}: {len(model.graph.node)} nodes, {megabytes:.1f} MB, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
