"""Distances of a step's loss and gradients from those of FP32, on the device.

    python -m benchmarks.gpu_numbers PROVIDER GRAPH.onnx FEEDS.npz OUTPUTS.npz

runs a graph once and keeps its outputs: what the session starts, with TF32 off, for the numbers that others
are compared with. Weights are those that a model of the zoo is initialized with: gradients at made-up weights
say little about training.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.evaluation.strategies import FP32, OPTIMAL, TF_AMP, TORCH_AMP
from benchmarks.gpu_machine import Session
from benchmarks.gpu_plans import planned
from benchmarks.gpu_torch import settled, zoo_model
from benchmarks.steps import Call, StepError
from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import Feeds, synthesize
from campo_onnx.runtime.registry import load, machine, processor_for

_LIMIT_S = 120.0


def compare_numbers(graph: Path, session: Session, call: Call) -> dict[str, Any]:
    """Run FP32 without TF32, as it runs here, and mixed: losses, and how far each output is off."""
    members = planned(graph, (FP32, TF_AMP, TORCH_AMP, OPTIMAL), session)
    feeds = _feeds(graph, synthesize(members[0].imported.view))
    expected = _without_tf32(members[0].imported.model, feeds, session.provider)
    rows = {}
    for done, member in enumerate(members, start=1):
        program = load(member.imported.model, session.bench.machine, folder=member.imported.folder)
        actual = program.run(feeds)
        errors = {name: relative_l2(actual[name], expected[name]) for name in expected}
        ranked = sorted(errors, key=lambda name: -errors[name])
        rows[", ".join(member.labels)] = {
            "worst": {name: errors[name] for name in ranked[:5]},
            "median": float(np.median(list(errors.values()))),
            "outputs": len(errors),
            "loss": {"fp32": _loss(expected), "mixed": _loss(actual)},
        }
        call.deadline.tick(done, len(members))
    return rows


def _feeds(graph: Path, drawn: Feeds) -> Feeds:
    """Give a step the weights that its model begins with, where PyTorch is at hand to make them."""
    feeds = settled(drawn)
    name = zoo_model(graph)
    if name is None:
        return feeds
    try:
        import torch

        from benchmarks.zoo.export import ZOO
    except ImportError:
        return feeds
    torch.manual_seed(0)
    module = ZOO[name].build()
    named = {"param": module.named_parameters(), "buf": module.named_buffers()}
    begun = {f"{kind}.{n}": t.detach().numpy() for kind, tensors in named.items() for n, t in tensors}
    return {n: np.asarray(begun.get(n, value), value.dtype) for n, value in feeds.items()}


def _without_tf32(model: onnx.ModelProto, feeds: Feeds, provider: str) -> Mapping[str, np.ndarray]:
    """Run a graph in a process that starts CUDA with TF32 off."""
    with tempfile.TemporaryDirectory() as workshop:
        files = [Path(workshop) / name for name in ("step.onnx", "feeds.npz", "outputs.npz")]
        onnx.save(model, files[0])
        np.savez(files[1], **feeds)
        command = [sys.executable, "-m", "benchmarks.gpu_numbers", provider, *map(str, files)]
        environment = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            raise StepError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
        with np.load(files[2]) as arrays:
            return dict(arrays)


def _loss(outputs: Mapping[str, np.ndarray]) -> float | None:
    return float(outputs["loss"]) if "loss" in outputs else None


def main() -> None:
    """Run a graph once, and keep its outputs."""
    provider, graph, feeds, outputs = sys.argv[1:]
    imported = import_model(Path(graph))
    program = load(imported.model, machine(processor_for(provider)), folder=imported.folder)
    with np.load(feeds) as arrays:
        np.savez(outputs, **program.run(dict(arrays)))


if __name__ == "__main__":
    main()
