"""Training through torch.compile's backend beside eager: curves, two processes, and where the time goes.

    python -m benchmarks.torch_compile [--quick]

Three networks learn data that scikit-learn brings along, 100 steps each, from the same weights, batches and
dropout masks: in eager FP32, through the backend planned for this CPU (FP32), through the backend planned
for a GPU with PyTorch's autocast rules (FP16, which a CPU emulates) under a GradScaler, and in eager FP64.
FP64 says how far rounding alone takes a curve from FP32's.

Then two processes of DistributedDataParallel against one process on the joint batch, and the CPU time of a
step, eager and through the backend in turns, on one thread.

Needs PyTorch and scikit-learn. Writes results/torch_compile.json and .md; with ``--quick`` it takes ten steps
and writes to ``--out``.
"""

import argparse
import copy
import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.pages import RESULTS, made, publish
from campo_onnx.integrations.torch_compile import campo_onnx, report
from campo_onnx.runtime.addresses import AddressedSession

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS, BATCH, SHOWN = 100, 64, 10
DEVICE = "v100"
EAGER, FP64, BACKEND, MIXED = "eager FP32", "eager FP64", "backend FP32", "backend FP16"
LOW = {"device": DEVICE, "strategy": "torch-amp"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its data and its optimizer."""

    title: str
    data: str
    network: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]


class Transformer(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.zeros(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify images of 8 x 8."""
        return self.head(self.layers(self.embed(x.view(-1, 8, 8)) + self.place).mean(1))


def perceptron() -> nn.Module:
    """Two hidden layers with dropout, for the 30 figures of a cell."""
    return nn.Sequential(
        *(nn.Linear(30, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2)),
        *(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)),
    )


def convolutions() -> nn.Module:
    """Two convolutions with batch normalization."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


CASES = (
    Case(
        title="MLP with dropout",
        data="breast cancer",
        network=perceptron,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    ),
    Case(
        title="CNN with BatchNorm",
        data="digits",
        network=convolutions,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    ),
    Case(
        title="Transformer with dropout",
        data="digits",
        network=Transformer,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-3),
    ),
)


def data_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and labels, standardized and in one random order."""
    from sklearn.datasets import load_breast_cancer, load_digits

    samples, labels = {"breast cancer": load_breast_cancer, "digits": load_digits}[name](return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    samples = (samples - samples.mean(0)) / (samples.std(0) + 1e-6)
    return torch.from_numpy(samples[order].astype(np.float32)), torch.from_numpy(
        labels[order].astype(np.int64)
    )


def batches(samples: torch.Tensor, labels: torch.Tensor, steps: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of whole epochs, the last one of an epoch smaller; the last fifth is held out."""
    train = len(labels) * 4 // 5
    generator = torch.Generator().manual_seed(0)
    done = 0
    while done < steps:
        order = torch.randperm(train, generator=generator)
        for rows in order.split(BATCH)[: steps - done]:
            yield samples[rows], labels[rows]
            done += 1


def train(case: Case, how: str, steps: int) -> dict[str, Any]:
    """Train one network one way: its losses, its accuracy on what was held out, and what ran."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = case.network()
    model = model.double() if how == FP64 else model
    options = {BACKEND: {"fallback": "error"}, MIXED: {"fallback": "error", **LOW}}.get(how)
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
    """What the backend ran: nodes in low precision, and what was kept for the backward pass."""
    found = report(model)
    assert not found.left
    steps = [graph for graph in found.graphs if graph.kind == "training step"]
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
    for found in runs.values():
        found["largest_difference"] = float(np.abs(np.array(found["losses"]) - eager).max())
    return {"network": case.title, "data": case.data, "runs": runs}


def two_processes(steps: int) -> dict[str, Any]:
    """Train the example's network on two processes, and on one with the joint batch."""
    sys.path.append(str(EXAMPLES))  # also of the processes
    example = importlib.import_module("torch_compile_ddp")
    losses, weights = example.train("auto", steps)
    found = {}
    for how in (EAGER, BACKEND):
        torch._dynamo.reset()
        model = example.network()
        run = model if how == EAGER else torch.compile(model, backend=campo_onnx)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        single = []
        for x in example.batches(steps):
            loss = nn.functional.mse_loss(run(x), x[:, :8].tanh())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            single.append(loss.item())
        own = model.state_dict()
        found[how] = {
            "largest_difference": max(abs(a - b) for a, b in zip(losses, single, strict=True)),
            "weights": max(float((weights[n] - w).norm() / w.norm()) for n, w in own.items()),
        }
    return {"steps": steps, "first_loss": losses[0], "last_loss": losses[-1], "against": found}


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
    run = torch.compile(model, backend=campo_onnx, dynamic=False, options={"fallback": "error"})
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


def results(steps: int, rounds: int) -> dict[str, Any]:
    """Measure everything."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    return {
        "made": made("torch", "scikit-learn"),
        "steps": steps,
        "batch": BATCH,
        "device": DEVICE,
        "shown": [*range(0, steps, SHOWN), steps - 1],
        "curves": [curves(case, steps) for case in CASES],
        "processes": two_processes(min(steps, 20)),
        "rounds": rounds,
        "times": [step_time(*timed, rounds) for timed in TIMED],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="ten steps, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("torch_compile_out"), help="folder of --quick")
    arguments = parser.parse_args()
    quick = arguments.quick
    data = results(10 if quick else STEPS, 3 if quick else 30)
    print(*publish("torch_compile", data, arguments.out if quick else RESULTS))


if __name__ == "__main__":
    main()
