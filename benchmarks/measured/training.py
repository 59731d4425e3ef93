"""Sides that train: each step with its update, written as the README and docs/torch-compile.md write it.

    python -m benchmarks.measured.training NETWORK GRAPHS SIDE [SIDE ...]

Dropout stays on, as users train. A fused update is what torch's documentation recommends for speed; on a CPU
the default goes through the parameters one by one.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.measured.plans import FEEDS, folder_of
from benchmarks.measured.sides import Facts, Step, serve

MODULE = "benchmarks.measured.training"
GIVEN, MIXED = "step", "mixed"
"""Graphs in a network's folder: as exported, and as ``campo-onnx optimize --runtime openvino`` wrote it."""

FACTS = "facts.json"
"""File of everything else that a session needs."""

LR = 1e-3
_OPTIMIZERS = {"resnet18": "momentum", "mobilenetv3": "momentum"}


class Torch(NamedTuple):
    """A loop of torch's; `backend` is that of torch.compile, "" for eager."""

    title: str
    backend: str
    autocasts: bool
    fuses_update: bool = False


class Session(NamedTuple):
    """A training session of ours on a graph."""

    title: str
    runtime: str
    graph: str


SIDES: Mapping[str, Torch | Session] = MappingProxyType(
    {
        "eager": Torch("torch eager", "", False),
        "eager-bf16": Torch("torch autocast", "", True),
        "inductor": Torch("torch.compile", "inductor", False),
        "inductor-bf16": Torch("torch.compile, autocast", "inductor", True),
        "inductor-bf16-fused": Torch("torch.compile, autocast, fused update", "inductor", True, True),
        "ort": Session("ours, FP32, ONNX Runtime", "onnxruntime", GIVEN),
        "fp32": Session("ours, FP32, OpenVINO", "openvino", GIVEN),
        "bf16": Session("ours, BF16, OpenVINO", "openvino", MIXED),
        "in-the-loop": Torch('torch.compile, backend="campo_onnx"', "campo_onnx", False),
        "in-the-loop-fused": Torch('backend="campo_onnx", fused update', "campo_onnx", False, True),
    }
)
OF_TORCH = tuple(
    name for name, side in SIDES.items() if isinstance(side, Torch) and side.backend != "campo_onnx"
)


def optimizer_of(name: str) -> str:
    """Name the optimizer that a network is usually trained with."""
    from benchmarks.zoo import TITLES

    if name in TITLES:
        from benchmarks.zoo.export import ZOO

        return ZOO[name].optimizer
    return _OPTIMIZERS.get(name, "adamw")


def torch_step(name: str, side: Torch) -> tuple[Step, Facts]:
    """Give a step of torch's loop, and count its threads."""
    import torch

    from benchmarks.measured.networks import case_of

    module, loss, *batch = case_of(name, keeps_dropout=True)
    how = {"fused": True} if side.fuses_update else {}
    optimizers: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
        "momentum": partial(torch.optim.SGD, momentum=0.9),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    update = optimizers[optimizer_of(name)](module.parameters(), LR, **how)

    def forward(inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
        return loss(module(*inputs), *targets)

    run = torch.compile(forward, backend=side.backend) if side.backend else forward

    def step() -> float:
        update.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=side.autocasts):
            value = run(*batch)
        value.backward()
        update.step()
        return float(value.detach())

    return step, {"threads": torch.get_num_threads()}


def our_step(name: str, side: Session, graphs: Path) -> Step:
    """Give a step of a session."""
    import json

    from safetensors.numpy import load_file

    from campo_onnx.export.optimizers import BY_NAME
    from campo_onnx.step.naming import LEARNING_RATE
    from campo_onnx.training.session import TrainingSession
    from campo_onnx.training.weight_update import WeightUpdate

    folder = folder_of(name, graphs)
    feeds = load_file(folder / FEEDS)
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    batch = {key: feeds.pop(key) for key in facts["batch"]}
    session = TrainingSession(
        folder / f"{side.graph}.onnx",
        feeds,
        update=WeightUpdate(optimizer=BY_NAME[facts["optimizer"]]),
        settings={LEARNING_RATE: LR},
        provider="cpu",
        runtime=side.runtime,
    )
    return lambda: session.step(batch).loss


def main(name: str, graphs: str, *sides: str) -> None:
    """Be one side, or several."""
    serve({side: partial(_built, name, SIDES[side], Path(graphs)) for side in sides})


def _built(name: str, side: Torch | Session, graphs: Path) -> tuple[Step, Facts]:
    return torch_step(name, side) if isinstance(side, Torch) else (our_step(name, side, graphs), {})


if __name__ == "__main__":
    main(*sys.argv[1:])
