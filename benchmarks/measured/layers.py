"""Layers inside measured steps: convolutions and pooling, in the FP32 step and in the one that is all BF16.

Figures 3 and 4 of "Fine-grained exploitation of mixed precision" bin layers so. Times are those that the
runtime tells of its nodes, within a step: layouts and caches are those of the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

import onnx

from benchmarks.measured.plans import ALL_LOW, FEEDS, FP32, RUNTIME, folder_of
from benchmarks.measured.sides import THREADS
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.registry import runtime_called

Facts = dict[str, Any]

OPS = ("Conv", "ConvTranspose", "MaxPool")
"""Gradients of convolutions are Conv and ConvTranspose, too."""

_REPEATS = 20
_KERNELS = (1, 3, 5, 7)
_SIDES = (8, 16, 32, 64)


def measured_layers(names: Sequence[str], graphs: Path) -> list[Facts]:
    """Time the layers of networks in both precisions.

    Parameters
    ----------
    names
        The networks.
    graphs
        Parent of their folders.

    Returns
    -------
    list of dict
        ``op``, ``kernel`` and ``side`` (the longest of the window and of the image), ``fp32_us`` and
        ``low_us`` of each layer that both steps compute as one node.
    """
    return [layer for name in names for layer in _layers(name, graphs)]


def _layers(name: str, graphs: Path) -> Iterator[Facts]:
    folder = folder_of(name, graphs)
    view = import_model(folder / f"{FP32}.onnx").view
    fp32, low = (_node_us(folder, plan) for plan in (FP32, ALL_LOW))
    for node in view.nodes:
        if node.op.label in OPS and node.name in fp32 and node.name in low:
            signature = view.signature(node.name)
            kernel, side = _sizes(signature)
            times = {"fp32_us": fp32[node.name], "low_us": low[node.name]}
            yield {"op": node.op.label, "kernel": kernel, "side": side, **times}


def _node_us(folder: Path, plan: str) -> Mapping[str, float]:
    """Time nodes; one that is computed with others, such as its activation, has the time of all of them."""
    from safetensors.numpy import load_file

    model = onnx.load(folder / f"{plan}.onnx")
    settings = LoadSettings(spins=False, traces=True)
    program = runtime_called(RUNTIME).load(model, "cpu", threads=THREADS, folder=folder, settings=settings)
    read = {value.name for value in model.graph.input}
    feeds = {name: value for name, value in load_file(folder / FEEDS).items() if name in read}
    times = program.node_times(feeds, repeats=_REPEATS)
    return {name: one.time.median_us for one in times.nodes for name in one.nodes}


def _sizes(signature: Signature) -> tuple[int, int]:
    shapes = [operand.shape or () for operand in signature.inputs if operand is not None]
    window = signature.attributes.get("kernel_shape") or shapes[1][2:]
    return max(window), max(shapes[0][2:])


def binned(layers: Sequence[Facts]) -> list[Facts]:
    """Count by operator, window and image (Figures 3 and 4) how often BF16 is faster, and by how much."""
    timed = [one for one in layers if one["fp32_us"] and one["low_us"]]  # the runtime's clock counts whole us
    key = {id(one): (one["op"], _bin(one["kernel"], _KERNELS), _bin(one["side"], _SIDES)) for one in timed}
    ordered = sorted(timed, key=lambda one: key[id(one)])
    return [*_bins(ordered, key)]


def _bins(ordered: Sequence[Facts], key: Mapping[int, tuple[str, int, int]]) -> Iterator[Facts]:
    for (op, kernel, side), group in groupby(ordered, key=lambda one: key[id(one)]):
        members = [*group]
        yield {
            "op": op,
            "kernel": kernel,
            "side": side,
            "layers": len(members),
            "faster": sum(one["low_us"] < one["fp32_us"] for one in members),
            "speedup": median(one["fp32_us"] / one["low_us"] for one in members),
            "saved_us": fmean(one["fp32_us"] - one["low_us"] for one in members),
        }


def _bin(value: int, limits: Sequence[int]) -> int:
    """Give the least limit that is not below a value; 0 for what is larger than all."""
    return next((limit for limit in limits if value <= limit), 0)
