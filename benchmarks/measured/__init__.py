"""Training steps measured in BF16 on this machine's units, in turns with torch's."""

from types import MappingProxyType

from benchmarks.zoo import TITLES

RANDOM = "random/"
"""Prefix of the names of random networks."""

LEARNER = "learner/"
"""Prefix of the names of small networks that learn digits."""

NETWORKS = MappingProxyType(
    {
        "resnet18": "ResNet-18, 8 x 96 x 96",
        "encoder": "transformer encoder, 2 layers, 512 wide, 4 x 128",
        "mobilenetv3": "MobileNetV3-small, 8 x 96 x 96",
        "unet": "U-Net, 16 to 64 channels, 4 x 64 x 64",
        "bert": "BERT, 2 layers, 128 wide, 4 x 64",
        "mlp": "MLP, 1024-2048-2048-100, batch 128",
        "convnext": "ConvNeXt atto, 8 x 96 x 96",
        "gpt2": "GPT-2, 2 layers, 128 wide, 4 x 64",
        "vit": "ViT tiny, 8 x 96 x 96",
        **{name: f"{title}, small" for name, title in TITLES.items()},
    }
)
"""Titles by name, in the order in which they are measured."""

QUICK = ("resnet18", "encoder", "mobilenetv3", "unet", "bert", "mlp")
"""Those of a quick run."""

BATCHES = MappingProxyType({"resnet18": (1, 2, 4, 16, 32), "mlp": (4, 16, 32, 64, 512)})
QUICK_BATCHES = MappingProxyType({"resnet18": (1, 4), "mlp": (4, 32)})
"""Batches beside a network's own."""
