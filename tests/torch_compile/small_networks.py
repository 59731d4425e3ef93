"""Six small networks, and what runs a step of one within torch's compiler without generating code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn

from campo_onnx.integrations.inductor.graph_pass import PrecisionPass
from campo_onnx.integrations.inductor.library import LIBRARY
from campo_onnx.integrations.inductor.options import inductor_pass
from campo_onnx.integrations.inductor.times import Pair


class MadeUpTimes:
    """Every kernel takes 100 us in FP32 and 40 us low unless told otherwise; casts cost next to nothing."""

    def __init__(self, low_us: dict[Any, float] | None = None, element_us: float = 1e-6) -> None:
        self.low_us, self.element_us = low_us or {}, element_us
        self.asked: list[tuple[Any, bool]] = []

    @property
    def identity(self) -> str:
        return f"{self.low_us} {self.element_us}"

    @contextmanager
    def opened(self) -> Iterator["MadeUpTimes"]:
        yield self

    def kernel(self, node: Any, dtype: Any, *, channels_last: bool) -> Pair:
        self.asked.append((node.target, channels_last))
        return Pair(100.0, self.low_us.get(node.target, 40.0))

    def cast_us(self, elements: int, device: Any, dtype: Any) -> float:
        return elements * self.element_us


class Block(nn.Module):
    """Attention in one piece and two layers behind it, normalized before (GPT-2) or behind (BERT)."""

    def __init__(self, width: int, *, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.is_causal = is_causal

    def attention(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, -1)
        q, k, v = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def mlp(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Any) -> Any:
        first, second = self.norms
        if self.is_causal:
            x = x + self.attention(first(x))
            return x + self.mlp(second(x))
        x = first(x + self.attention(x))
        return second(x + self.mlp(x))


class Language(nn.Module):
    def __init__(self, *, is_causal: bool, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, width), nn.Linear(width, 9)
        self.blocks = nn.Sequential(*(Block(width, is_causal=is_causal) for _ in range(2)))

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.embedding(x)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def _classifier(*layers: Any) -> Any:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def convolutions() -> Any:
    return _classifier(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    )


def depthwise() -> Any:
    return _classifier(
        *(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.Hardswish()),
        *(
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.BatchNorm2d(16),
            nn.Hardswish(),
            nn.Conv2d(16, 16, 1),
        ),
    )


def words(batch: int = 3) -> Any:
    return torch.randint(0, 9, (batch, 6))


def images(batch: int = 3) -> Any:
    return torch.randn(batch, 3, 8, 8)


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "encoder": (Encoder, lambda: torch.randn(3, 6, 16)),
    "bert": (lambda: Language(is_causal=False), words),
    "gpt2": (lambda: Language(is_causal=True), words),
    "cnn": (convolutions, images),
    "depthwise": (depthwise, images),
    "convnext": (lambda: _classifier(nn.Conv2d(3, 16, 2, 2), ConvNeXtBlock(16)), images),
}


def loss_of(module: Any, x: Any) -> Any:
    scores = module(x).flatten(0, -2)
    return F.cross_entropy(scores.float(), torch.arange(len(scores)) % scores.shape[-1])


class Interpreted:
    """A backend: torch's compiler up to both passes, which are then run as they are.

    `kernels` has the types of what library kernels read, by the name of the kernel.
    """

    def __init__(self, plan: PrecisionPass) -> None:
        self.plan = plan
        self.kernels: dict[str, set[Any]] = {}
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx  # warns when it is imported

        patches = {"joint_custom_pre_pass": self.plan}
        return compile_fx(gm, inputs, inner_compile=self._run, config_patches=patches)

    def _run(self, gm: Any, inputs: Sequence[Any], **_: Any) -> Any:
        self.graphs.append(gm)
        for node in gm.graph.nodes:
            if node.target in LIBRARY:
                read = [n.meta["val"] for n in node.all_input_nodes]
                self.kernels[node.name] = {v.dtype for v in read if isinstance(v, torch.Tensor)}

        def run(arguments: list[Any]) -> Any:
            return gm(*arguments)

        run._boxed_call = True
        return run


def planned_step(
    module: Any, *batches: Any, times: Any = None, **options: Any
) -> tuple[Interpreted, list[Any]]:
    """Run steps of a module and its loss under a plan of made-up times; the backend, and the last
    gradients."""
    backend = Interpreted(inductor_pass(clock=times or MadeUpTimes(), **options))
    step = torch.compile(loss_of, backend=backend, dynamic=False)
    for batch in batches:
        module.zero_grad()
        step(module, batch).backward()
    return backend, [p.grad for p in module.parameters()]
