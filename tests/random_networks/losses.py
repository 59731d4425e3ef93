"""Losses, with targets of their own."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.random_networks.drawing import Dice

Loss = Callable[..., Any]
Drawn = tuple[str, Loss, Callable[[], list[Any]]]


def _reduced(reduction: str) -> Loss:
    """Give what makes a number of what a loss gives."""
    if reduction != "none":
        return lambda value: value
    return lambda value: (value * torch.linspace(0.5, 1.5, value.numel()).to(value).view(value.shape)).sum()


def loss(dice: Dice, shape: tuple[int, ...]) -> Drawn:
    """Draw a loss of an output of this shape.

    Returns
    -------
    tuple
        What it is, the function, and what makes its targets.
    """
    reduction = dice.choice(["mean", "mean", "sum", "none"])
    kind = dice.choice(["classes", "classes", "regression", "binary", "pairs", "weighted"])
    reduce = _reduced(reduction)
    if kind == "classes":
        return _classes(dice, shape, reduction, reduce)
    if kind == "regression":
        return _regression(dice, shape, reduction, reduce)
    if kind == "binary":
        return _binary(dice, shape, reduction, reduce)
    if kind == "pairs":
        return _pairs(dice, shape, reduction, reduce)
    weights = torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).view(shape)
    return "weighted sum", lambda y: (y * weights.to(y)).sum(), list


def _classes(dice: Dice, shape: tuple[int, ...], reduction: str, reduce: Loss) -> Drawn:
    classes = shape[1]
    behind = (shape[0], *shape[2:])
    ignored = dice.choice([-100, 0, classes - 1, -1])
    weight = torch.rand(classes) + 0.2 if dice.chance(0.4) else None
    smoothing = dice.choice([0.0, 0.1])

    def of(y: Any, target: Any) -> Any:
        w = None if weight is None else weight.to(y)
        ignore = -100 if target.is_floating_point() else ignored
        options = {"ignore_index": ignore, "reduction": reduction, "label_smoothing": smoothing}
        return reduce(F.cross_entropy(y, target, w, **options))

    def indices() -> list[Any]:
        target = torch.randint(0, classes, behind)
        if ignored < 0:
            target = torch.where(torch.rand(behind) < 0.3, ignored, target)
        # At least one counts: with none, the mean is not a number.
        target.view(-1)[0] = next((c for c in range(classes) if c != ignored), 0)
        return [target]

    name = f"cross entropy {reduction}, ignores {ignored}, weights {weight is not None}, smooth {smoothing}"
    if dice.chance(0.25):
        return f"{name}, probabilities", of, lambda: [torch.randn(shape).softmax(1)]
    return name, of, indices


def _regression(dice: Dice, shape: tuple[int, ...], reduction: str, reduce: Loss) -> Drawn:
    width = dice.choice([0.3, 1.0])
    table: list[tuple[str, Loss]] = [
        ("mse", lambda y, t: F.mse_loss(y, t, reduction=reduction)),
        ("l1", lambda y, t: F.l1_loss(y, t, reduction=reduction)),
        ("smooth l1", lambda y, t: F.smooth_l1_loss(y, t, reduction=reduction, beta=width)),
        ("huber", lambda y, t: F.huber_loss(y, t, reduction=reduction, delta=width)),
        (
            "poisson",
            lambda y, t: F.poisson_nll_loss(y.clamp(max=3), t.abs(), reduction=reduction, full=False),
        ),
        ("gaussian", lambda y, t: F.gaussian_nll_loss(y, t, y.abs() + 0.5, reduction=reduction)),
        ("log cosh", lambda y, t: reduce((y - t).tanh().square() + F.softplus(y - t))),
    ]
    name, of = dice.choice(table)
    if name == "log cosh":
        return name, lambda y, t: of(y, t).mean(), lambda: [torch.randn(shape)]
    return f"{name} {reduction}", lambda y, t: reduce(of(y, t)), lambda: [torch.randn(shape)]


def _binary(dice: Dice, shape: tuple[int, ...], reduction: str, reduce: Loss) -> Drawn:
    positive = torch.rand(shape[-1]) + 0.5 if dice.chance(0.5) else None

    def with_logits(y: Any, t: Any) -> Any:
        w = None if positive is None else positive.to(y)
        return reduce(F.binary_cross_entropy_with_logits(y, t, reduction=reduction, pos_weight=w))

    def bare(y: Any, t: Any) -> Any:
        return reduce(F.binary_cross_entropy(y.sigmoid() * 0.98 + 0.01, t, reduction=reduction))

    name, of = dice.choice([("bce with logits", with_logits), ("bce", bare)])
    return f"{name} {reduction}", of, lambda: [torch.rand(shape)]


def _pairs(dice: Dice, shape: tuple[int, ...], reduction: str, reduce: Loss) -> Drawn:
    log = dice.chance(0.5)

    def divergence(y: Any, t: Any) -> Any:
        kind = "batchmean" if reduction == "mean" else reduction
        return reduce(F.kl_div(y.log_softmax(-1), t.log() if log else t, reduction=kind, log_target=log))

    def signs(y: Any, t: Any) -> Any:
        return reduce(F.soft_margin_loss(y, (t - t.mean()).sign(), reduction=reduction))

    def triplet(y: Any, t: Any) -> Any:
        return reduce(F.triplet_margin_loss(y, t, y.flip(0) * 0.5 + 1, margin=2.0, reduction=reduction))

    def cosine(y: Any, t: Any) -> Any:
        flat, other = y.flatten(1), t.flatten(1)
        return reduce(F.cosine_embedding_loss(flat, other, torch.ones(len(y)).to(y), reduction=reduction))

    def ranking(y: Any, t: Any) -> Any:
        return reduce(F.margin_ranking_loss(y, t, torch.ones_like(t), margin=0.1, reduction=reduction))

    name, of = dice.choice(
        [
            ("kl", divergence),
            ("soft margin", signs),
            ("triplet", triplet),
            ("cosine", cosine),
            ("rank", ranking),
        ]
    )
    return f"{name} {reduction}", of, lambda: [torch.randn(shape).softmax(-1)]
