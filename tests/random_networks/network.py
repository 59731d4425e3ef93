"""Random networks: layers that fit each other, what is around them, a loss, and batches."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.random_networks import images, losses, sequences
from tests.random_networks.around import around
from tests.random_networks.drawing import Apply, Dice

MOST_ELEMENTS = 20_000
"""Elements of an output; the same check of many small networks finds more than that of few large ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of a seed.

    Parameters
    ----------
    seed
        Of everything drawn.
    module, loss
        What is trained, and its loss.
    batch
        Makes inputs and targets, other ones with each call.
    loss_name
        What the loss is.
    """

    seed: int
    module: nn.Module
    loss: Callable[..., Any]
    batch: Callable[[], tuple[list[Any], list[Any]]]
    loss_name: str


class Tied(nn.Module):
    """A table of words that is also the last layer's weight."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.body = table, nn.Identity()
        self.last = nn.Linear(table.embedding_dim, table.num_embeddings)
        self.last.weight = table.weight

    def forward(self, words: Any) -> Any:
        """Look up, compute, and compare with every word."""
        return self.last(self.body(self.table(words))).transpose(1, 2)


def network(seed: int) -> Network:
    """Draw the network of a seed."""
    dice = Dice(seed)
    torch.manual_seed(seed)
    make_input: Callable[[], Any]
    layers: list[nn.Module] = []
    is_tied = False
    if dice.chance(0.6):
        rank = dice.choice([1, 2, 2, 2, 3])
        most = {1: 40, 2: 14, 3: 7}[rank]
        shape = (dice.randint(1, 4), dice.choice([1, 2, 3, 4, 6, 8, 16]), *dice.each(rank, 1, most))
        scale, shift = dice.choice([(1.0, 0.0), (1.0, 0.0), (2.0, 5.0), (0.1, 0.0)])
        make_input = lambda: torch.randn(shape) * scale + shift  # noqa: E731
        draw, x = images.LAYERS, make_input()
    else:
        words, width = dice.randint(3, 30), dice.randint(2, 16)
        tokens = (dice.randint(1, 4), dice.randint(1, 12))
        draw = sequences.LAYERS
        if dice.chance(0.5):
            make_input = lambda: torch.randint(0, words, tokens)  # noqa: E731
            layers.append(sequences.embedding(dice, words, width))
            is_tied = dice.chance(0.3)
            x = torch.randn(*tokens, width)
        else:
            make_input = lambda: torch.randn(*tokens, width)  # noqa: E731
            x = make_input()
    shape = tuple(x.shape)
    for _ in range(dice.randint(1, 5)):
        layer, x = _next_layer(dice, draw, x)
        layers.append(layer)
    if is_tied and x.shape == shape:
        tied = Tied(layers[0])  # type: ignore[arg-type]  # the embedding drawn above
        tied.body = nn.Sequential(*layers[1:])
        module: nn.Module = tied
        shown = torch.zeros(x.shape[0], tied.table.num_embeddings, x.shape[1])
    else:
        if not any(True for layer in layers for _ in layer.parameters()):
            layers.insert(len(layers) if layers and isinstance(layers[0], nn.Embedding) else 0, Scale())
        module, shown = nn.Sequential(*layers), x
    _freeze(dice, module)
    name, loss, targets = losses.loss(dice, tuple(shown.shape))
    return Network(
        seed=seed, module=module, loss=loss, batch=lambda: ([make_input()], targets()), loss_name=name
    )


class Scale(nn.Module):
    """A single parameter, for networks that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), 1.3))

    def forward(self, x: Any) -> Any:
        """Multiply."""
        return self.weight * x


def _next_layer(dice: Dice, draw: Any, x: Any) -> tuple[nn.Module, Any]:
    """Draw layers until one fits."""
    for _ in range(100):
        try:
            layer = draw(dice, tuple(x.shape))
            if dice.chance(0.25):
                layer = around(dice, layer)
            y = copy.deepcopy(layer)(x.detach().clone().requires_grad_() * 1)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError):
            continue
        fits = y.dim() == x.dim() and 0 < y.numel() <= MOST_ELEMENTS and torch.isfinite(y).all()
        if fits and y.abs().max() < 1e3:
            return layer, y.detach()
    return Apply("nothing", lambda x: x * 1), x


def _freeze(dice: Dice, module: nn.Module) -> None:
    """Freeze some parameters, and add one that nothing reads."""
    parameters = list(module.parameters())
    if dice.chance(0.25):
        for parameter in parameters[1:]:
            if dice.chance(0.4):
                parameter.requires_grad_(False)
    if dice.chance(0.15):
        module.register_parameter("unread", nn.Parameter(torch.zeros(2)))
