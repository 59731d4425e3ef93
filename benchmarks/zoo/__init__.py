"""The Campo paper's six models."""

from types import MappingProxyType

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
"""The six; DCGAN trains by two steps."""

NOT_ON_RTX2080TI = frozenset({"bert_large"})
"""Models that the paper did not run there."""

CONVOLUTIONAL = frozenset(TITLES) - {"bert_large"}
"""Those with convolutions, whose weight gradients come in several forms."""
