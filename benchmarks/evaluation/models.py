"""The zoo's training steps: at the paper's sizes, and small enough to step on a CPU."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

ZOO = Path(__file__).parents[1] / "zoo" / "export.py"

TITLES = MappingProxyType(
    {
        "alexnet": "AlexNet",
        "vgg16": "VGG-16",
        "resnet50": "ResNet-50",
        "inception3": "Inception v3",
        "dcgan_generator": "DCGAN, generator",
        "dcgan_discriminator": "DCGAN, discriminator",
        "bert_large": "BERT-large",
    }
)
"""The paper's six models; DCGAN trains by two steps."""

FULL, FULL_2080TI, SMALL = "full", "full-rtx2080ti", "small"
VARIANTS = MappingProxyType({FULL: 1, FULL_2080TI: 0})
"""Full variants, each with the position of its batch size in the zoo's table (the paper's section 7.1)."""


def variant_for(device: str) -> str:
    """The full variant whose batch sizes fit a device: the paper's own, the V100's for any other."""
    return FULL_2080TI if device == "rtx2080ti" else FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A training step that was written to a file.

    Parameters
    ----------
    path
        The file.
    batch
        Samples per step.
    nodes
        Nodes of the graph.
    """

    path: str
    batch: int
    nodes: int


def export(name: str, variant: str, folder: Path) -> Exported | None:
    """Export a model of the zoo; needs PyTorch.

    Parameters
    ----------
    name
        Its name in the zoo.
    variant
        One of :data:`VARIANTS`, or :data:`SMALL`.
    folder
        Where the file goes.

    Returns
    -------
    Exported or None
        None where the paper did not run the model at that size.
    """
    import torch

    from campo_onnx.export.torch import export_training_step

    zoo = _load_zoo()
    entry = zoo.ZOO[name]
    if variant == SMALL:
        build, batch, (inputs, targets) = _small(name, zoo, torch)
    else:
        batch = entry.batch_sizes[VARIANTS[variant]]
        if not batch:
            return None
        build, (inputs, targets) = entry.build, entry.batch(batch)
    with torch.device("meta"):
        module = build()
    path = folder / f"{name}-{variant}.onnx"
    model = export_training_step(module, entry.loss, inputs, targets, optimizer=entry.optimizer, path=path)
    return Exported(path=str(path), batch=batch, nodes=len(model.graph.node))


def _load_zoo() -> ModuleType:
    """Load the zoo by its path: other folders have modules called the same."""
    if "campo_zoo" in sys.modules:
        return sys.modules["campo_zoo"]
    specification = importlib.util.spec_from_file_location("campo_zoo", ZOO)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def _small(name: str, zoo: Any, torch: Any) -> tuple[Callable[[], Any], int, tuple[Any, Any]]:
    """Module, batch size and batch of a variant of tens of milliseconds a step on two cores."""

    def images(count: int, size: int) -> tuple[Any, Any]:
        return (torch.empty(count, 3, size, size),), (torch.zeros(count, dtype=torch.long),)

    def noise(count: int) -> Any:
        return torch.empty(count, 32, 1, 1)

    stages = ((16, 1), (32, 1), (64, 2), (64, 2), (64, 2))
    bert = zoo.bert_large.Size(layers=2, hidden=128, heads=4, inner=512, words=1000, positions=64)
    variants: dict[str, tuple[Callable[[], Any], int, Callable[[], tuple[Any, Any]]]] = {
        "alexnet": (lambda: zoo.alexnet.alexnet(10, 16, 256), 8, lambda: images(8, 96)),
        "vgg16": (lambda: zoo.vgg16.vgg16(10, stages, 256, 1), 8, lambda: images(8, 32)),
        "resnet50": (lambda: zoo.resnet50.resnet50(10, (1, 1, 1, 1), 16), 8, lambda: images(8, 64)),
        "inception3": (zoo.inception3.Shallow, 4, lambda: images(4, 63)),
        "dcgan_generator": (lambda: zoo.dcgan.GeneratorStep(32, 12), 8, lambda: ((noise(8),), ())),
        "dcgan_discriminator": (
            lambda: zoo.dcgan.DiscriminatorStep(32, 12),
            8,
            lambda: ((torch.empty(8, 3, 64, 64), noise(8)), ()),
        ),
        "bert_large": (lambda: zoo.bert_large.Bert(bert), 8, lambda: zoo.bert_large.batch(8, 64, 1000)),
    }
    build, batch, make = variants[name]
    return build, batch, make()
