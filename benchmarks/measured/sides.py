"""The sides that take turns: each a process of its own that runs steps when it is asked, and else sleeps.

    python -m benchmarks.measured.sides SIDE NETWORK FOLDER

A step is loss and gradients, without the update of the weights.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

THREADS = 2
WARMUP = 3

Step = Callable[[], float]
"""Runs a step, and gives the loss where that costs nothing."""


class Torch(NamedTuple):
    """How torch runs a step."""

    title: str
    compiles: bool
    autocasts: bool


class Ours(NamedTuple):
    """A plan of ours, and the runtime that runs it.

    Parameters
    ----------
    plan
        Name of a file ``NETWORK.PLAN.onnx``.
    """

    title: str
    runtime: str
    plan: str


SIDES: Mapping[str, Torch | Ours] = {
    "torch": Torch("torch eager", False, False),
    "torch-bf16": Torch("torch autocast", False, True),
    "compile": Torch("torch.compile", True, False),
    "compile-bf16": Torch("torch.compile, autocast", True, True),
    "ort": Ours("ONNX Runtime, FP32", "onnxruntime", "fp32"),
    "fp32": Ours("OpenVINO, FP32", "openvino", "fp32"),
    "list": Ours("op list (tf-amp)", "openvino", "tf-amp"),
    "campo": Ours("campo", "openvino", "campo"),
    "optimal": Ours("optimal", "openvino", "optimal"),
}
PLANS = ("tf-amp", "campo", "optimal")


def torch_step(network: str, side: Torch) -> Step:
    """Build torch's step."""
    import torch

    from benchmarks.measured.networks import case_of

    torch.set_num_threads(THREADS)
    module, loss, inputs, targets = case_of(network)
    forward = torch.compile(module) if side.compiles else module

    def step() -> float:
        module.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=side.autocasts):
            value = loss(forward(*inputs), *targets)
        value.backward()
        return float(value.detach())

    return step


def our_step(network: str, side: Ours, folder: Path) -> Step:
    """Load a step of ours; its memory is bound once."""
    import onnx

    from campo_onnx.runtime.api import LoadSettings
    from campo_onnx.runtime.registry import runtime_called

    model = onnx.load(folder / f"{network}.{side.plan}.onnx")
    program = runtime_called(side.runtime).load(
        model, "cpu", threads=THREADS, folder=folder, settings=LoadSettings(spins=False)
    )
    feeds = feeds_of(network, model)
    loss = float(program.run(feeds)["loss"])
    run = program.placed(feeds)

    def step() -> float:
        run()
        return loss

    return step


def feeds_of(network: str, model: Any) -> dict[str, Any]:
    """Give a value for every input of a step: torch's weights and its batch."""
    from benchmarks.measured.networks import case_of
    from campo_onnx.export.torch.state_dict import first_state

    module, _, inputs, targets = case_of(network)
    state = first_state(module, model)
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    values = (value.numpy() for value in (*inputs, *targets))
    return state | dict(zip(batch, values, strict=True))


class Worker:
    """A side in a process of its own."""

    def __init__(self, side: str, network: str, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.measured.sides", side, network, str(folder)]
        # Threads of torch's that wait for the next step must not take the others' cores.
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.facts: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        """Wait until it has warmed up; ``facts`` hold its loss and how long it took to get there."""
        self.facts = self._answer()

    def times_ms(self, steps: int) -> list[float]:
        """Time some steps behind one that does not count: the first behind a pause is slower."""
        assert self._process.stdin is not None  # it was asked for
        self._process.stdin.write(f"{steps + 1}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer()["times_ms"]
        return times[1:]

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # it was asked for
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"a worker ended with {self._process.wait()}")


def main(side: str, network: str, folder: str) -> None:
    """Run steps as often as the parent asks, and say how long each took."""
    began = time.perf_counter()
    kind = SIDES[side]
    step = torch_step(network, kind) if isinstance(kind, Torch) else our_step(network, kind, Path(folder))
    losses = [step() for _ in range(WARMUP)]
    print(json.dumps({"loss": losses[0], "ready_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        times_ms = []
        for _ in range(int(line)):
            began = time.perf_counter()
            step()
            times_ms.append((time.perf_counter() - began) * 1e3)
        print(json.dumps({"times_ms": times_ms}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
