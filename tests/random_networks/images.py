"""Layers of images with one, two or three spatial axes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.random_networks.drawing import Apply, Dice, Draw, functions, one_of

Shape = tuple[int, ...]


def _of(family: str, rank: int) -> Any:
    return getattr(nn, f"{family}{rank}d")


def _convolution(dice: Dice, shape: Shape) -> nn.Module:
    rank, channels = len(shape) - 2, shape[1]
    groups = dice.divisor(channels) if dice.chance(0.4) else 1
    outputs = groups * dice.randint(1, 4) if dice.chance(0.8) else groups * 16
    kernel = dice.each(rank, 1, 4) if dice.chance(0.8) else (1,) * rank
    dilation = dice.each(rank, 1, 3) if dice.chance(0.3) else 1
    stride: Any = dice.each(rank, 1, 3) if dice.chance(0.5) else 1
    padding: Any = tuple(dice.randint(0, k) for k in kernel) if dice.chance(0.6) else 0
    if stride == 1 and dice.chance(0.15):
        padding = dice.choice(["same", "valid"])
    mode = dice.choice(["reflect", "circular", "circular"]) if dice.chance(0.2) else "zeros"
    return _of("Conv", rank)(
        channels, outputs, kernel, stride, padding, dilation, groups, dice.chance(0.6), mode
    )  # fmt: skip


def _transposed(dice: Dice, shape: Shape) -> nn.Module:
    rank, channels = len(shape) - 2, shape[1]
    groups = dice.divisor(channels) if dice.chance(0.4) else 1
    kernel, stride = dice.each(rank, 1, 4), dice.each(rank, 1, 3)
    dilation = dice.each(rank, 1, 2) if dice.chance(0.3) else (1,) * rank
    padding = tuple(dice.randint(0, max(0, d * (k - 1))) for k, d in zip(kernel, dilation, strict=True))
    extra = tuple(dice.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
    return _of("ConvTranspose", rank)(
        channels, groups * dice.randint(1, 4), kernel, stride, padding, extra, groups, dice.chance(0.6),
        dilation,
    )  # fmt: skip


def _batch_norm(dice: Dice, shape: Shape) -> nn.Module:
    layer = _of("BatchNorm", len(shape) - 2)(
        shape[1], eps=dice.choice([1e-5, 1e-3, 1e-1]), momentum=dice.choice([0.1, 0.01, 1.0, 0.0, None]),
        affine=dice.chance(0.7), track_running_stats=dice.chance(0.8),
    )  # fmt: skip
    return layer.train(dice.chance(0.7))


def _instance_norm(dice: Dice, shape: Shape) -> nn.Module:
    layer = _of("InstanceNorm", len(shape) - 2)(
        shape[1], affine=dice.chance(0.6), track_running_stats=dice.chance(0.4),
        momentum=dice.choice([0.1, 0.5]),
    )  # fmt: skip
    return layer.train(dice.chance(0.7))


def _other_norm(dice: Dice, shape: Shape) -> nn.Module:
    match dice.randrange(3):
        case 0:
            return nn.GroupNorm(dice.divisor(shape[1]), shape[1], affine=dice.chance(0.6))
        case 1:
            behind = shape[dice.randrange(1, len(shape)) :]
            return nn.LayerNorm(behind, elementwise_affine=dice.chance(0.6), bias=dice.chance(0.5))
    return nn.LocalResponseNorm(dice.randint(1, 4), alpha=0.1, beta=0.75, k=1.5)


def _pool_geometry(dice: Dice, rank: int) -> tuple[Any, Any, Any]:
    kernel = dice.each(rank, 1, 4)
    stride = dice.each(rank, 1, 3) if dice.chance(0.7) else None
    return kernel, stride, tuple(dice.randint(0, k // 2) for k in kernel) if dice.chance(0.5) else 0


def _max_pool(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    kernel, stride, padding = _pool_geometry(dice, rank)
    dilation = dice.each(rank, 1, 2) if dice.chance(0.4) else 1
    layer = _of("MaxPool", rank)
    if dice.chance(0.2):
        indexed = layer(kernel, stride, padding, dilation, True, dice.chance(0.5))
        return Apply(f"sum of maximum and place, {indexed}", lambda x: _with_places(*indexed(x)))
    return layer(kernel, stride, padding, dilation, False, dice.chance(0.5))


def _with_places(y: Any, index: Any) -> Any:
    return y + 0.01 * index.to(y.dtype)


def _unpooled(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    pool, back = _of("MaxPool", rank)(2, return_indices=True), _of("MaxUnpool", rank)(2)

    def there_and_back(x: Any) -> Any:
        y, index = pool(x)
        return back(y * 2, index, output_size=x.shape)

    return Apply("max unpool", there_and_back)


def _avg_pool(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    kernel, stride, padding = _pool_geometry(dice, rank)
    options = {"ceil_mode": dice.chance(0.5), "count_include_pad": dice.chance(0.5)}
    if rank == 1:
        return nn.AvgPool1d(kernel, stride, padding, **options)
    divisor = dice.randint(1, 5) if dice.chance(0.3) else None
    return _of("AvgPool", rank)(kernel, stride, padding, divisor_override=divisor, **options)


def _other_pool(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    sizes = tuple(dice.randint(1, n + 1) if dice.chance(0.8) else None for n in shape[2:])
    kinds = ["AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool"]
    match dice.choice(kinds):
        case "LPPool":
            # Of values above zero: the root has no gradient at zero.
            pool = _of("LPPool", rank)(
                dice.choice([1.0, 2.0, 3.0]), dice.randint(1, 3), ceil_mode=dice.chance(0.5)
            )
            return Apply(f"{pool} of softplus", lambda x: pool(F.softplus(x)))
        case kind:
            return _of(kind, rank)(sizes if rank > 1 else (sizes[0] or 2))


def _padded(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    widths = dice.each(2 * rank, 0, 2)
    match dice.choice(["constant", "crop", "crop", "reflect", "circular"]):
        case "crop":
            widths = dice.each(2 * rank, -1, 2)
            return Apply(f"pad {widths}", lambda x: F.pad(x, widths, value=0.5))
        case mode:
            return Apply(f"pad {widths} {mode}", lambda x: F.pad(x, widths, mode=mode))


def _resampled(dice: Dice, shape: Shape) -> nn.Module:
    rank = len(shape) - 2
    modes = {1: ["nearest", "linear"], 2: ["nearest", "bilinear", "bicubic"], 3: ["nearest", "trilinear"]}
    mode = dice.choice(modes[rank])
    options: dict[str, Any] = {"mode": mode}
    if mode != "nearest":
        options["align_corners"] = dice.chance(0.5)
    if dice.chance(0.5):
        options["size"] = tuple(dice.randint(1, 2 * n) for n in shape[2:])
    else:
        options["scale_factor"] = dice.choice([0.5, 1.5, 2.0, 3.0, 1.7])
        options["recompute_scale_factor"] = dice.choice([None, True])
    return Apply(f"interpolate {options}", lambda x: F.interpolate(x, **options))


def _rearranged(dice: Dice, shape: Shape) -> nn.Module:
    axis, other = dice.randrange(len(shape)), dice.randrange(2, len(shape))
    shift, step, channels = dice.randint(-3, 3), dice.randint(1, 3), shape[1]
    table: list[Any] = [
        ("shuffle", lambda x: F.channel_shuffle(x, channels // 2 or 1)),
        (f"flip {other}", lambda x: x.flip(other)),
        (f"roll {axis}", lambda x: x.roll(shift, axis)),
        (f"transpose {other}", lambda x: x.transpose(2, other)),
        (f"step {other}", lambda x: x[(slice(None),) * other + (slice(None, None, step),)]),
        (f"cat {axis}", lambda x: torch.cat([x, x * 0.5], axis if axis else 1)),
        ("halves", lambda x: torch.add(*x.chunk(2, 1))),
        ("unbind", lambda x: torch.stack(x.unbind(1)[::-1], 1)),
        (f"narrow {other}", lambda x: x.narrow(other, x.shape[other] // 3, max(1, x.shape[other] // 2))),
        ("repeat", lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2))),
        ("repeat_interleave", lambda x: x.repeat_interleave(2, other)),
        ("unfold", lambda x: x.unfold(other, 2, step).mean(-1)),
        ("cumsum", lambda x: x.cumsum(other) / 4),
        ("largest", lambda x: x + x.amax(other, keepdim=True) - x.max(1, keepdim=True)[0]),
        ("sorted", lambda x: x.sort(other, descending=step == 2)[0]),
        ("top", lambda x: x.topk(max(1, x.shape[other] // 2), other)[0]),
        ("deviation", lambda x: x / (x.std(other, keepdim=True, unbiased=step == 1) + 1)),
        ("norm", lambda x: F.normalize(x, dim=1, eps=1e-3)),
        ("glu", lambda x: F.glu(x, 1)),
    ]
    if len(shape) == 4:
        table += [
            ("pixels", lambda x: F.pixel_unshuffle(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2)),
            ("pixel_shuffle", lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)),
            ("im2col", lambda x: F.fold(F.unfold(x, 2, padding=1, stride=1), x.shape[2:], 2, padding=1)),
        ]
    return Apply(*dice.choice(table))


_ACTIVATIONS: list[tuple[str, Any]] = [
    ("relu", F.relu), ("leaky_relu", lambda x: F.leaky_relu(x, 0.2)), ("elu", lambda x: F.elu(x, 0.7)),
    ("gelu", F.gelu), ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu),
    ("softplus", lambda x: F.softplus(x, 2.0, 1.5)), ("hardswish", F.hardswish), ("mish", F.mish),
    ("softmax", lambda x: x.softmax(1)), ("log_softmax", lambda x: x.log_softmax(-1)),
    ("logsigmoid", F.logsigmoid), ("softsign", F.softsign), ("tanhshrink", F.tanhshrink),
    ("hardtanh", lambda x: F.hardtanh(x, -0.4, 0.9)), ("relu6", F.relu6), ("celu", lambda x: F.celu(x, 0.8)),
    ("selu", F.selu), ("threshold", lambda x: F.threshold(x, 0.1, -0.3)), ("softshrink", F.softshrink),
    ("hardshrink", F.hardshrink), ("hardsigmoid", F.hardsigmoid), ("sigmoid", torch.sigmoid),
    ("tanh", torch.tanh), ("sin", torch.sin), ("exp", lambda x: (x.clamp(max=2.0)).exp()),
    ("square", lambda x: x.square() * 0.3), ("root", lambda x: (x.abs() + 0.1).sqrt()),
    ("rsqrt", lambda x: (x * x + 0.5).rsqrt()), ("pow", lambda x: (x.abs() + 0.2) ** 1.7),
    ("erf", torch.erf), ("log1p", lambda x: x.abs().log1p()),
    ("where", lambda x: torch.where(x > 0.2, x * 2, x.sin())),
    ("minimum", lambda x: torch.minimum(x, x.flip(1))),
    ("lerp", lambda x: torch.lerp(x, x.tanh(), 0.3)), ("clamp", lambda x: x.clamp(-0.7, 0.8)),
    ("logsumexp", lambda x: x - x.logsumexp(1, keepdim=True)),
    ("prod", lambda x: x + x.tanh().prod(-1, True)),
    ("var", lambda x: x - x.var(1, keepdim=True, correction=0)), ("rounded", lambda x: x + (x * 4).round()),
    ("dropout", lambda x: F.dropout(x, 0.3)), ("dropout all but one", lambda x: F.dropout(x, 0.9)),
    ("no dropout", lambda x: F.dropout(x, 0.0)),
]  # fmt: skip

activation: Draw = functions(_ACTIVATIONS)


def _prelu(dice: Dice, shape: Shape) -> nn.Module:
    return nn.PReLU(shape[1] if dice.chance(0.5) else 1)


LAYERS: Draw = one_of(
    *[_convolution] * 7, *[_transposed] * 4, *[_batch_norm] * 3, _instance_norm, _other_norm,
    *[_max_pool] * 2, *[_avg_pool] * 2, *[_other_pool] * 2, _unpooled, _padded, _resampled,
    *[_rearranged] * 2, *[activation] * 4, _prelu,
)  # fmt: skip
