"""Modules as people write them by hand, each around operations that the libraries use less."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.models.case import Case


class _Lambda(nn.Module):
    """Layers and a function of them and the input."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _classes(module: nn.Module, x: torch.Tensor, count: int = 5, **options: Any) -> Case:
    target = torch.arange(len(x)) % count
    return Case(
        module=module.train(),
        inputs={"x": x},
        loss=F.cross_entropy,
        targets={"target": target},
        options=options,
    )


def _rows(function: Callable[..., Any], x: torch.Tensor, **layers: nn.Module) -> Case:
    return _classes(_Lambda(function, **layers), x)


def _perceptron() -> Case:
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    return _rows(lambda s, x: s.all(x), torch.randn(8, 3, 4, 4), all=module)


def _recurrent(kind: type[nn.Module]) -> Case:
    return _rows(
        lambda s, x: s.out(s.rnn(s.words(x))[0][:, -1]),
        torch.randint(0, 40, (6, 9)),
        words=nn.Embedding(40, 16),
        rnn=kind(16, 12, 2, batch_first=True, bidirectional=True),
        out=nn.Linear(24, 5),
    )


def _volume() -> Case:
    layers = nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 8, 3),
        nn.ReLU6(),
        nn.AvgPool3d(2),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return _rows(lambda s, x: s.all(x), torch.randn(3, 2, 12, 12, 12), all=layers)


def _bag() -> Case:
    return _rows(
        lambda s, x: s.out(torch.cat([s.mean(x), s.top(x)], 1)),
        torch.randint(0, 40, (6, 9)),
        mean=nn.EmbeddingBag(40, 16, mode="mean"),
        top=nn.EmbeddingBag(40, 16, mode="sum"),
        out=nn.Linear(32, 5),
    )


def _temporal() -> Case:
    norm = torch.nn.utils.parametrizations.weight_norm
    layers = nn.Sequential(
        norm(nn.Conv1d(4, 16, 3, padding=2, dilation=2)),
        nn.ReLU(),
        norm(nn.Conv1d(16, 16, 3)),
        nn.Hardswish(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    return _rows(lambda s, x: s.all(x), torch.randn(5, 4, 20), all=layers)


def _transformed(s: Any, x: torch.Tensor) -> Any:
    theta = s.where(x.flatten(1)).view(-1, 2, 3)
    y = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
    return s.out(y.flatten(1))


def _spatial() -> Case:
    return _rows(_transformed, torch.randn(4, 2, 8, 8), where=nn.Linear(128, 6), out=nn.Linear(128, 5))


def _graph(s: Any, x: torch.Tensor) -> Any:
    source, target = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    for layer in (s.first, s.second):
        messages = layer(x)[:, source]
        index = target[None, :, None].expand_as(messages)
        least = torch.zeros_like(x).scatter_reduce(1, index, messages, "amin", include_self=False)
        largest = torch.zeros_like(x).scatter_reduce(1, index, messages, "amax", include_self=False)
        mean = torch.zeros_like(x).scatter_reduce(1, index, messages, "mean", include_self=False)
        x = torch.tanh(x + least + largest + mean)
    return s.out(x.mean(1))


def _graph_network() -> Case:
    return _rows(
        _graph, torch.randn(5, 6, 16), first=nn.Linear(16, 16), second=nn.Linear(16, 16), out=nn.Linear(16, 5)
    )


def _experts(s: Any, x: torch.Tensor) -> Any:
    weight, chosen = s.gate(x).softmax(-1).topk(2)
    picked = F.one_hot(chosen, 4).to(x.dtype) * weight[..., None]
    return torch.einsum("bke,beo->bo", picked, torch.stack([expert(x) for expert in s.experts], 1))


def _prototypes(s: Any, x: torch.Tensor) -> Any:
    distance = torch.cdist(s.embed(x), s.centers.weight)
    return -distance - distance.median(1, keepdim=True).values + (distance + 1).prod(1, keepdim=True).log()


def _autoencoder(s: Any, x: torch.Tensor) -> Any:
    mean, scale = s.encode(x).chunk(2, -1)
    normal = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3)
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    return s.decode(normal.mean) - torch.distributions.kl_divergence(normal, prior).sum(-1, keepdim=True)


def _variational() -> Case:
    module = _Lambda(_autoencoder, encode=nn.Linear(16, 8), decode=nn.Linear(4, 5))
    return _classes(module, torch.randn(6, 16), assume="checks")


def _rounded(s: Any, x: torch.Tensor) -> Any:
    y = s.embed(x)
    kept = torch.remainder(torch.arange(y.shape[1]), 3) // 2
    rows, columns = torch.tril_indices(8, 8, -1)
    pairs = (y[:, :8, None] * y[:, None, 8:16])[:, rows, columns]
    step = y + (y * 4).trunc().div(4).sub(y).detach()
    return s.out(torch.cat([pairs, step * kept], 1)) + y.argmin(1, keepdim=True) * 0.01


def _checkpointed(s: Any, x: torch.Tensor) -> Any:
    return s.out(torch.utils.checkpoint.checkpoint(s.block, x, use_reentrant=False))


def _segmented(s: Any, x: torch.Tensor) -> Any:
    down = F.relu(s.down(x))
    up = F.interpolate(s.up(F.max_pool2d(down, 2)), scale_factor=4, mode="bilinear")
    return s.out(torch.cat([up, F.interpolate(down, scale_factor=2)], 1))


def _segmentation() -> Case:
    module = _Lambda(
        _segmented,
        down=nn.Conv2d(3, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 8, 3, padding=1),
        out=nn.Conv2d(16, 5, 1),
    )
    target = {"target": torch.randint(0, 5, (2, 16, 16))}
    return Case(module=module, inputs={"x": torch.randn(2, 3, 16, 16)}, loss=F.cross_entropy, targets=target)


def _torchs_transformer() -> Case:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
    return _rows(
        lambda s, x: s.out(s.encoder(x).mean(1)),
        torch.randn(4, 9, 16),
        encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        out=nn.Linear(16, 5),
    )


def _decided() -> Case:
    return _rows(
        lambda s, x: s.out(x) if x.mean() > 0 else -s.out(x), torch.randn(6, 16), out=nn.Linear(16, 5)
    )


def _quantized() -> Case:
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )
    return _rows(lambda s, x: s.out(s.conv(x)), torch.randn(6, 3, 9, 9), conv=conv, out=nn.Linear(8, 5))


CASES: Mapping[str, Callable[[], Case]] = {
    "perceptron": _perceptron,
    "lstm": lambda: _recurrent(nn.LSTM),
    "gru": lambda: _recurrent(nn.GRU),
    "volumes": _volume,
    "embedding_bags": _bag,
    "temporal_weight_norm": _temporal,
    "spatial_transformer": _spatial,
    "graph_network": _graph_network,
    "mixture_of_experts": lambda: _rows(
        _experts,
        torch.randn(6, 16),
        gate=nn.Linear(16, 4),
        experts=nn.ModuleList(nn.Linear(16, 5) for _ in range(4)),
    ),
    "prototypes": lambda: _rows(
        _prototypes, torch.randn(6, 16), embed=nn.Linear(16, 8), centers=nn.Embedding(5, 8)
    ),
    "variational": _variational,
    "pairs_and_rounding": lambda: _rows(
        _rounded, torch.randn(6, 16), embed=nn.Linear(16, 18), out=nn.Linear(46, 5)
    ),
    "checkpointed": lambda: _rows(
        _checkpointed,
        torch.randn(6, 16),
        out=nn.Linear(16, 5),
        block=nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)),
    ),
    "segmentation": _segmentation,
    "torchs_transformer": _torchs_transformer,
    "relu6_and_max": _quantized,
    "decides_by_data": _decided,
}
