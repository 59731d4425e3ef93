"""Full-size steps on PyTorch's own kernels: torch's ways to run them, beside our plans."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Network(NamedTuple):
    """Title of a network, and the batch that a GPU steps."""

    title: str
    batch: int


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "resnet50": Network("ResNet-50, batch 128", 128),
        "bert_large": Network("BERT-large, 32 x 384", 32),
        "gpt2": Network("GPT-2 124M, 16 x 1024", 16),
        "vgg16": Network("VGG-16, batch 64", 64),
        "alexnet": Network("AlexNet, batch 256", 256),
        "inception3": Network("Inception v3, batch 64", 64),
        "dcgan_generator": Network("DCGAN, generator, batch 256", 256),
        "dcgan_discriminator": Network("DCGAN, discriminator, batch 256", 256),
    }
)
"""In the order in which they are measured: what is worth most comes first."""

SETUP = "setup.json"
"""File beside the networks' folders: what they were prepared for."""
