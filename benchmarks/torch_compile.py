"""Training through torch.compile's backend beside eager: curves, two processes, and where the time goes.

    python -m benchmarks.torch_compile [--only curve.*,processes,time.*] [--limit-s S] [--quick]

Three networks learn data that scikit-learn brings along, 100 steps each, from the same weights, batches and
dropout masks: in eager FP32, through the backend planned for this CPU (FP32), through the backend planned
for a GPU with PyTorch's autocast rules (FP16, which a CPU emulates) under a GradScaler, and in eager FP64.
FP64 says how far rounding alone takes a curve from FP32's.

Then two processes of DistributedDataParallel against one process on the joint batch, and the CPU time of a
step, eager and through the backend in turns, on one thread.

Needs PyTorch and scikit-learn. Runs until it says that all is done; killed, it goes on where it was, so that
times can be taken while nothing else runs. Writes results/torch_compile.json and .md; with ``--quick`` ten
steps, to the folder of ``--work``.
"""

import copy
import importlib
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.pages import RESULTS, arguments, commit, provenance, publish
from benchmarks.small_trainings import BATCH, CASES, Case, batches, data_of
from benchmarks.steps import Records, Step, add_arguments, call_of, drive
from campo_onnx.integrations.torch_compile import campo_onnx, report
from campo_onnx.runtime.onnxruntime.addresses import AddressedSession
from campo_onnx.runtime.registry import machine

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS, SHOWN = 100, 10
DEVICE = "v100"
EAGER, FP64, BACKEND, MIXED = "eager FP32", "eager FP64", "backend FP32", "backend FP16"
STRICT = {"fallback": "error", "runtime": "onnxruntime", "plans": None}
LOW = {"device": DEVICE, "strategy": "torch-amp"}


def train(case: Case, how: str, steps: int) -> dict[str, Any]:
    """Train one network one way: its losses, its accuracy on what was held out, and what ran."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = case.network()
    model = model.double() if how == FP64 else model
    options = {BACKEND: STRICT, MIXED: {**STRICT, **LOW}}.get(how)
    run = model if options is None else torch.compile(model, backend=campo_onnx, options=options)
    optimizer = case.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=how == MIXED)
    samples, labels = data_of(case.data)
    samples = samples.double() if how == FP64 else samples
    losses = []
    for step, (x, y) in enumerate(batches(samples, labels, steps)):
        torch.manual_seed(step)  # the masks
        loss = nn.functional.cross_entropy(run(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    held_out = slice(len(labels) * 4 // 5, None)
    with torch.no_grad():
        right = (model(samples[held_out]).argmax(1) == labels[held_out]).double().mean().item()
    return {"losses": losses, "accuracy": 100 * right, **({} if options is None else ran(model))}


def ran(model: nn.Module) -> dict[str, Any]:
    """Nodes that the backend ran in low precision, and tensors that it kept for the backward pass."""
    summary = report(model)
    assert not summary.left
    steps = [graph for graph in summary.graphs if graph.kind == "training step"]
    largest = max(steps, key=lambda graph: sum(tensor.nbytes for tensor in graph.kept))
    return {
        "sizes": len(steps),
        "nodes": len(largest.plan.decisions),
        "low_nodes": len(largest.plan.low_nodes),
        "casts": len(largest.plan.casts),
        "kept_bytes": sum(tensor.nbytes for tensor in largest.kept),
        "kept_low": sum(tensor.is_low for tensor in largest.kept),
        "kept": len(largest.kept),
    }


def curves(case: Case, steps: int) -> dict[str, Any]:
    """Train all ways, and hold each against eager FP32."""
    runs = {how: train(case, how, steps) for how in (EAGER, FP64, BACKEND, MIXED)}
    eager = np.array(runs[EAGER]["losses"])
    for run in runs.values():
        run["largest_difference"] = float(np.abs(np.array(run["losses"]) - eager).max())
    return {"network": case.title, "data": case.data, "runs": runs}


def two_processes(steps: int) -> dict[str, Any]:
    """Train the example's network on two processes, and on one with the joint batch."""
    sys.path.append(str(EXAMPLES))  # also of the processes
    example = importlib.import_module("torch_compile_ddp")
    losses, weights = example.train("auto", steps)
    against = {}
    for how in (EAGER, BACKEND):
        torch._dynamo.reset()
        model = example.network()
        run = model if how == EAGER else torch.compile(model, backend=campo_onnx, options=STRICT)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        single = []
        for x in example.batches(steps):
            loss = nn.functional.mse_loss(run(x), x[:, :8].tanh())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            single.append(loss.item())
        own = model.state_dict()
        against[how] = {
            "largest_difference": max(abs(a - b) for a, b in zip(losses, single, strict=True)),
            "weights": max(float((weights[n] - w).norm() / w.norm()) for n, w in own.items()),
        }
    return {"steps": steps, "first_loss": losses[0], "last_loss": losses[-1], "against": against}


class Encoder(nn.Module):
    """Two layers of a transformer, large enough to keep a core busy."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Encode."""
        return self.layers(x)


def wide_convolutions() -> nn.Module:
    """Four convolutions with batch normalization."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


TIMED = (
    ("encoder, 2 layers of 256, 8 x 64 tokens", lambda: Encoder(0.0), (8, 64, 256)),
    ("the same with dropout", lambda: Encoder(0.1), (8, 64, 256)),
    ("4 convolutions with BatchNorm, 8 x 3 x 32 x 32", wide_convolutions, (8, 3, 32, 32)),
    (
        "MLP 64-64-64, batch 8: all overhead",
        lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)),
        (8, 64),
    ),
)


def step_time(
    title: str, network: Callable[[], nn.Module], shape: tuple[int, ...], rounds: int
) -> dict[str, Any]:
    """CPU time of forward and backward pass on one thread, eager and compiled in turns."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = network()
    eager = copy.deepcopy(model)
    run = torch.compile(model, backend=campo_onnx, dynamic=False, options=STRICT)
    x = torch.randn(shape)
    times: dict[str, list[float]] = {EAGER: [], BACKEND: [], "sessions": []}

    def step(call: Any) -> float:
        begin = time.process_time()
        call(x).sum().backward()
        return 1e3 * (time.process_time() - begin)

    for call in (run, eager, run, eager):
        step(call)
    for _ in range(rounds):
        times[EAGER].append(step(eager))
        before = AddressedSession.spent_s
        times[BACKEND].append(step(run))
        times["sessions"].append(1e3 * (AddressedSession.spent_s - before))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"network": title, "ms": medians, "tensors": len(list(model.parameters()))}


def steps_of(count: int, rounds: int) -> list[Step]:
    """Give one step for each network, to learn or to be timed."""
    asked = {"steps": count, "rounds": rounds, "commit": commit("campo_onnx")}
    learned = [
        Step(name=f"curve.{_file_name(case.title)}", work=partial(_quietly, curves, case, count), seconds=60)
        for case in CASES
    ]
    both = Step(name="processes", work=partial(_quietly, two_processes, min(count, 20)), seconds=40)
    timed = [
        Step(name=f"time.{_file_name(each[0])}", work=partial(_quietly, step_time, *each, rounds), seconds=20)
        for each in TIMED
    ]
    return [replace(step, asked=asked) for step in (*learned, both, *timed)]


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def _quietly(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    return work(*arguments[:-1])  # the last is the call of the runner


def collect(steps: list[Step], records: Records, count: int, rounds: int) -> dict[str, Any]:
    """Put together what is on record."""
    results = {step.name: records.result(step.name) for step in steps}
    here = machine("cpu", 1)
    return {
        "made": provenance("torch", "scikit-learn"),
        "commit": commit("campo_onnx"),
        "machine": f"{here.device}, one thread",
        "steps": count,
        "batch": BATCH,
        "device": DEVICE,
        "shown": [*range(0, count, SHOWN), count - 1],
        "curves": [result for name, result in results.items() if name.startswith("curve.")],
        "processes": results["processes"],
        "rounds": rounds,
        "times": [result for name, result in results.items() if name.startswith("time.")],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is left to do, and write the page."""
    parser = arguments(__doc__)
    add_arguments(parser, "torch_compile_out")
    parser.add_argument("--quick", action="store_true", help="ten steps, to see that it works")
    options = parser.parse_args(argv)
    count, rounds = (10, 3) if options.quick else (STEPS, 30)
    steps = steps_of(count, rounds)
    folder = options.work if options.quick else RESULTS

    def write(records: Records) -> tuple[Path, ...]:
        if any(records.result(step.name) is None for step in steps):
            return ()
        return publish("torch_compile", collect(steps, records, count, rounds), folder)

    return drive(steps, call_of(options), options, write)


if __name__ == "__main__":
    sys.exit(main())
