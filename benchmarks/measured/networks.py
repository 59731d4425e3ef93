"""The networks whose steps are measured: each with a loss and a batch, the same numbers in every process.

A name is that of a network (``resnet18``), of one with another batch (``resnet18@4``), the number of a
random one (``random/7``), or a small one that learns digits (``learner/vgg16``). Dropout is off in all of
them, so that every side computes the same loss from the same weights. Besides torch they need transformers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measured import LEARNER, RANDOM
from benchmarks.measured.mobilenetv3 import MobileNetV3
from benchmarks.population.networks import small_network


class Case(NamedTuple):
    """A network with a loss and a batch."""

    module: nn.Module
    loss: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]


_WORDS, _CLASSES, _PIXELS = 1000, 100, 96


def case_of(name: str, *, keeps_dropout: bool = False) -> Case:
    """Build a network with its loss and a batch; the same numbers in every process."""
    base, _, batch = name.partition("@")
    torch.manual_seed(0)
    if base.startswith(LEARNER):
        from benchmarks.measured.learners import learner_case

        case = learner_case(base.removeprefix(LEARNER))
    elif base.startswith(RANDOM):
        drawn = small_network(int(base.removeprefix(RANDOM)))
        case = Case(drawn.module, drawn.loss, drawn.inputs, drawn.targets)
    elif base in _BUILDERS:
        case = _BUILDERS[base]()
    else:
        case = _of_the_zoo(base)
    case.module.train()
    if not keeps_dropout:
        without_dropout(case.module)
    return _with_batch(case, int(batch)) if batch else case


def _with_batch(case: Case, batch: int) -> Case:
    """Repeat or cut the batch; targets may have several rows for each row of the inputs."""
    size = len(case.inputs[0])

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        rows = len(tensor) * batch // size
        times = -(-rows // len(tensor))
        return tensor.repeat(times, *[1] * (tensor.ndim - 1))[:rows].contiguous()

    inputs, targets = (tuple(map(resized, tensors)) for tensors in (case.inputs, case.targets))
    return case._replace(inputs=inputs, targets=targets)


def without_dropout(module: nn.Module) -> nn.Module:
    """Switch dropout off, also where the module trains."""
    for part in module.modules():
        if isinstance(part, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):  # of attention, as a function
            part.dropout = 0.0
    return module


class UNet(nn.Module):
    """Two levels of halved images, each joined to what comes back up."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first, self.second = _block(3, channels), _block(channels, 2 * channels)
        self.bottom = _block(2 * channels, 4 * channels)
        self.pool = nn.MaxPool2d(2)
        self.up_second = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, 2)
        self.back_second = _block(4 * channels, 2 * channels)
        self.up_first = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.back_first = _block(2 * channels, channels)
        self.head = nn.Conv2d(channels, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Give the scores of four classes for each pixel."""
        first = self.first(image)
        second = self.second(self.pool(first))
        bottom = self.bottom(self.pool(second))
        second = self.back_second(torch.cat([self.up_second(bottom), second], 1))
        return self.head(self.back_first(torch.cat([self.up_first(second), first], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((inputs, outputs), (outputs, outputs)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class Scores(nn.Module):
    """A model of transformers that gives one row of scores for each token or image."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Give the scores of words or classes."""
        scores = self.model(batch).logits
        return scores.flatten(0, -2)


def _bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=_WORDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _language(BertForMaskedLM(config))


def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=128,
        n_layer=2,
        n_head=4,
        vocab_size=_WORDS,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return _language(GPT2LMHeadModel(config))


def _language(model: nn.Module) -> Case:
    tokens, words = torch.randint(0, _WORDS, (4, 64)), torch.randint(0, _WORDS, (4 * 64,))
    return Case(Scores(model), F.cross_entropy, (tokens,), (words,))


def _images(model: nn.Module) -> Case:
    batch = (torch.randn(8, 3, _PIXELS, _PIXELS),), (torch.randint(0, _CLASSES, (8,)),)
    return Case(Scores(model), F.cross_entropy, *batch)


def _resnet18() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=_CLASSES,
    )
    return _images(ResNetForImageClassification(config))


def _mobilenetv3() -> Case:
    batch = (torch.randn(8, 3, _PIXELS, _PIXELS),), (torch.randint(0, _CLASSES, (8,)),)
    return Case(MobileNetV3(_CLASSES), F.cross_entropy, *batch)


def _mlp() -> Case:
    sizes = ((1024, 2048), (2048, 2048))
    layers = [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]
    batch = (torch.randn(128, 1024),), (torch.randint(0, _CLASSES, (128,)),)
    return Case(nn.Sequential(*layers, nn.Linear(2048, _CLASSES)), F.cross_entropy, *batch)


def _convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2], image_size=_PIXELS, num_labels=_CLASSES
    )
    return _images(ConvNextForImageClassification(config))


def _vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=_PIXELS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=_CLASSES,
    )
    return _images(ViTForImageClassification(config))


def _of_the_zoo(name: str) -> Case:
    from benchmarks.zoo.export import ZOO
    from benchmarks.zoo.variants import SMALL

    build, _, make = SMALL[name]
    inputs, targets = make()
    drawn = tuple(torch.randn(v.shape) if v.is_floating_point() else v for v in inputs)
    return Case(build(), ZOO[name].loss, drawn, targets)


def _encoder() -> Case:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Case(encoder, F.mse_loss, (torch.randn(4, 128, 512),), (torch.randn(4, 128, 512),))


def _unet() -> Case:
    batch = (torch.randn(4, 3, 64, 64),), (torch.randint(0, 4, (4, 64, 64)),)
    return Case(UNet(), F.cross_entropy, *batch)


_BUILDERS: dict[str, Callable[[], Case]] = {
    "encoder": _encoder,
    "resnet18": _resnet18,
    "mobilenetv3": _mobilenetv3,
    "unet": _unet,
    "convnext": _convnext,
    "vit": _vit,
    "bert": _bert,
    "gpt2": _gpt2,
    "mlp": _mlp,
}
