"""The sides that take turns, each a process of its own.

    python -m benchmarks.on_torch.sides NETWORK FOLDER SIDE [SIDE ...]

A step is loss and gradients, without update and dropout. Torch's sides run as a user who cares would run
them: cuDNN chooses its algorithms by trial, FP32 products may be TF32, and nobody waits for a step but where
its loss is read, once in :data:`AHEAD` steps.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.measured.sides import Facts, Step, serve
from benchmarks.on_torch import NETWORKS, SETUP

MODULE = "benchmarks.on_torch.sides"

AHEAD = 10
"""Steps that are timed together."""


class Torch(NamedTuple):
    """A way in which torch runs a step.

    Parameters
    ----------
    mode
        That of torch.compile; "" for eager.
    low
        The type that autocast takes; "" for FP32.
    """

    title: str
    mode: str = ""
    low: str = ""
    is_channels_last: bool = False


class Ours(NamedTuple):
    """A graph of ours on the runtime ``torch``; `captures`: as a CUDA graph."""

    title: str
    plan: str
    captures: bool = False


_GRAPHS = "reduce-overhead"
SIDES: Mapping[str, Torch | Ours] = MappingProxyType(
    {
        "torch": Torch("torch eager"),
        "torch-bf16": Torch("autocast", low="bfloat16"),
        "torch-bf16-last": Torch("autocast, channels last", low="bfloat16", is_channels_last=True),
        "compile": Torch("compile", "default"),
        "compile-bf16": Torch("compile, autocast", "default", "bfloat16"),
        "compile-bf16-last": Torch("compile, autocast, channels last", "default", "bfloat16", True),
        "compile-bf16-graphs": Torch("compile, autocast, CUDA graphs", _GRAPHS, "bfloat16"),
        "compile-bf16-last-graphs": Torch("the same, channels last", _GRAPHS, "bfloat16", True),
        "fp32": Ours("ours, FP32", "fp32"),
        "optimal": Ours("ours, optimal", "optimal"),
        "optimal-graphs": Ours("ours, optimal, CUDA graph", "optimal", captures=True),
    }
)
OF_TORCH = tuple(name for name, side in SIDES.items() if isinstance(side, Torch))


def sides_on(device: str, network: str) -> tuple[str, ...]:
    """List the sides of a network: CUDA graphs are a GPU's, channels last are for images."""
    from benchmarks.zoo import CONVOLUTIONAL

    return tuple(
        name
        for name in SIDES
        if (device == "cuda" or "graphs" not in name) and ("last" not in name or network in CONVOLUTIONAL)
    )


def case_of(name: str, *, is_small: bool) -> tuple[Any, Callable[..., Any], Any, Any]:
    """Build a network, its loss, and a batch of drawn values, the same in every process."""
    import torch

    from benchmarks.measured.networks import without_dropout
    from benchmarks.zoo import gpt2
    from benchmarks.zoo.export import ZOO
    from benchmarks.zoo.variants import SMALL

    torch.manual_seed(0)
    batch = NETWORKS[name].batch
    loss: Callable[..., Any] = torch.nn.functional.cross_entropy if name == "gpt2" else ZOO[name].loss
    if name == "gpt2":
        size = gpt2.Size()
        drawn = gpt2.shallow() if is_small else (gpt2.Gpt2(size), *gpt2.batch(batch, 1024, size.words))
        module, inputs, targets = drawn
    elif is_small:
        build, _, make = SMALL[name]
        module, (inputs, targets) = build(), make()
    else:
        module, (inputs, targets) = ZOO[name].build(), ZOO[name].batch(batch)
    # Products of zeros run faster than others.
    inputs = tuple(torch.randn(v.shape) if v.is_floating_point() else v for v in inputs)
    return without_dropout(module.train()), loss, inputs, targets


def torch_step(name: str, side: Torch, setup: Facts) -> Step:
    """Build a step of torch's."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = setup["device"]
    module, loss, *batch = case_of(name, is_small=setup["is_small"])
    images = {"memory_format": torch.channels_last} if side.is_channels_last else {}
    module = module.to(device, **images)
    placed = [tuple(v.to(device, **(images if v.dim() == 4 else {})) for v in values) for values in batch]

    def forward(inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
        return loss(module(*inputs), *targets)

    run = torch.compile(forward, mode=side.mode) if side.mode else forward
    low = getattr(torch, side.low) if side.low else None

    def step() -> float:
        for _ in range(AHEAD):
            module.zero_grad(set_to_none=True)
            with torch.autocast(device, low, enabled=low is not None):
                value = run(*placed)
            value.backward()
        return float(value.detach())

    return step


def our_step(name: str, side: Ours, folder: Path, setup: Facts) -> Step:
    """Load a graph of ours, with the weights of torch's sides."""
    import onnx

    from campo_onnx.export.torch.state_dict import first_state
    from campo_onnx.runtime.api import LoadSettings
    from campo_onnx.runtime.registry import runtime_called

    model = onnx.load(folder / name / f"{side.plan}.onnx")
    module, _, inputs, targets = case_of(name, is_small=setup["is_small"])
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    feeds = first_state(module, model)
    feeds |= dict(zip(batch, (value.numpy() for value in (*inputs, *targets)), strict=True))
    settings = LoadSettings(captures=side.captures)
    program = runtime_called("torch").load(model, setup["device"], folder=folder / name, settings=settings)
    loss = float(program.run(feeds)["loss"])
    once = program.placed(feeds)

    def step() -> float:
        for _ in range(AHEAD):
            once()
        return loss

    return step


def main(name: str, folder: str, *sides: str) -> None:
    """Be one side, or several."""
    path = Path(folder)
    setup = json.loads((path / SETUP).read_text(encoding="utf-8"))
    serve({side: partial(_built, name, SIDES[side], path, setup) for side in sides})


def _built(name: str, side: Torch | Ours, folder: Path, setup: Facts) -> tuple[Step, Facts]:
    if isinstance(side, Torch):
        return torch_step(name, side, setup), {}
    return our_step(name, side, folder, setup), {}


if __name__ == "__main__":
    main(*sys.argv[1:])
