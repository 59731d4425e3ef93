"""The sides that take turns: processes that run steps when they are asked, and are stopped else.

    python -m benchmarks.measured.sides NETWORK GRAPHS SIDE [SIDE ...]

A step is loss and gradients, without the update of the weights. Every side runs as its users run it: in the
environment that the benchmark was started in, with its own defaults, alone on the machine.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from types import MappingProxyType
from typing import Any, NamedTuple

from campo_onnx.runtime.machine import cores

MODULE = "benchmarks.measured.sides"
"""The module that a process of a side runs."""

THREADS = cores()
"""Threads of every side: the default of ours, and of torch where no core has two threads."""

WARMUP = 3

Facts = dict[str, Any]

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
        Name of a file ``PLAN.onnx`` in the folder of the network.
    """

    title: str
    runtime: str
    plan: str


SIDES: Mapping[str, Torch | Ours] = MappingProxyType(
    {
        "torch": Torch("torch eager", False, False),
        "torch-bf16": Torch("torch autocast", False, True),
        "compile": Torch("torch.compile", True, False),
        "compile-bf16": Torch("torch.compile, autocast", True, True),
        "ort": Ours("ONNX Runtime, FP32", "onnxruntime", "onnxruntime"),
        "fp32": Ours("OpenVINO, FP32", "openvino", "fp32"),
        "all-low": Ours("all BF16", "openvino", "all-low"),
        "tf-amp": Ours("op list (tf-amp)", "openvino", "tf-amp"),
        "fine-grained": Ours("fine-grained", "openvino", "fine-grained"),
        "campo": Ours("campo", "openvino", "campo"),
        "optimal": Ours("optimal", "openvino", "optimal"),
    }
)
OF_TORCH = tuple(name for name, side in SIDES.items() if isinstance(side, Torch))

IN_FP32 = ("compile", "ort", "fp32")
"""Sides that must compute torch's loss."""

BESIDE_TORCH = tuple(side for side in SIDES if side != "fine-grained")
SWEPT = ("fp32", "all-low", "tf-amp", "campo", "optimal")
DRAWN = ("fp32", "all-low", "tf-amp", "fine-grained", "campo", "optimal")


def torch_step(network: str, side: Torch) -> tuple[Step, Facts]:
    """Build torch's step, and count its threads."""
    import torch

    from benchmarks.measured.networks import case_of

    module, loss, *batch = case_of(network)

    def forward(inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
        return loss(module(*inputs), *targets)

    run = torch.compile(forward) if side.compiles else forward

    def step() -> float:
        module.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=side.autocasts):
            value = run(*batch)
        value.backward()
        return float(value.detach())

    return step, {"threads": torch.get_num_threads()}


def our_step(network: str, side: Ours, graphs: Path) -> tuple[Step, Facts]:
    """Load a step of ours, and say how far off its gradients are. Its memory is bound once."""
    import onnx
    from safetensors.numpy import load_file

    from benchmarks.measured.gradients import errors_in
    from benchmarks.measured.plans import FEEDS, folder_of
    from campo_onnx.runtime.registry import runtime_called

    folder = folder_of(network, graphs)
    model = onnx.load(folder / f"{side.plan}.onnx")
    program = runtime_called(side.runtime).load(model, "cpu", folder=folder)
    read = {value.name for value in model.graph.input}
    feeds = {name: value for name, value in load_file(folder / FEEDS).items() if name in read}
    outputs = program.run(feeds)
    loss, errors = float(outputs["loss"]), errors_in(folder, side.plan, outputs)
    run = program.placed(feeds)

    def step() -> float:
        run()
        return loss

    return step, errors


class Worker:
    """Sides of one network in a process of their own, which is stopped except while one of them is timed.

    A process that only waits would take cores from the side that is timed: threads of OpenMP, which torch and
    the kernels that it compiles run on, spin behind each parallel region. Making them passive instead costs
    torch up to 2.5 times its speed.

    Parameters
    ----------
    sides
        Names from :data:`SIDES`. More than one only where one runtime runs them: threads of two would
        wait busily for each other.
    network, graphs
        The network, prepared below `graphs`.
    module
        What the process runs.
    """

    def __init__(self, sides: Sequence[str], network: str, graphs: Path, module: str = MODULE) -> None:
        command = [sys.executable, "-m", module, network, str(graphs), *sides]
        self.sides = sides
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._is_ended = False

    def wait_until_ready(self, limit_s: float) -> Mapping[str, Mapping[str, Any]]:
        """Wait until its sides have warmed up, and stop it; give the loss of each, or its ``failure``.

        Raises
        ------
        RuntimeError
            If its process ends, or takes longer.
        """
        answers, _, _ = select([self._process.stdout], [], [], max(limit_s, 0.0))
        if not answers:
            raise RuntimeError("not ready in time")
        answer = self._answer()
        self._send(SIGSTOP)
        return answer

    def times_ms(self, side: str, steps: int) -> list[float]:
        """Time some steps of a side behind one that does not count: the first behind a pause is slower."""
        assert self._process.stdin is not None  # it was asked for
        self._send(SIGCONT)
        self._process.stdin.write(f"{side} {steps + 1}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer()["times_ms"]
        self._send(SIGSTOP)
        return times[1:]

    def end(self) -> None:
        """End it, with the compilers that it started."""
        if self._is_ended:
            return
        self._send(SIGKILL)
        self._process.communicate()
        self._is_ended = True

    def _send(self, signal: Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # it was asked for
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"its process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve(builders: Mapping[str, Callable[[], tuple[Step, Facts]]]) -> None:
    """Run steps as often as the parent asks, and say how long each took.

    Parameters
    ----------
    builders
        By side, what makes its step, and what is to be told of it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    steps: dict[str, Step] = {}
    told: dict[str, Facts] = {}
    for name, build in builders.items():
        try:
            step, facts = build()
            first, *_ = [step() for _ in range(WARMUP)]
            told[name] = {"loss": first, **facts}
            steps[name] = step
        except Exception as error:  # of one side: the others are measured, and this one is told
            told[name] = {"failure": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(told), file=answers, flush=True)
    for line in sys.stdin:
        name, count = line.split()
        step = steps[name]
        times_ms = []
        for _ in range(int(count)):
            began = time.perf_counter()
            step()
            times_ms.append((time.perf_counter() - began) * 1e3)
        print(json.dumps({"times_ms": times_ms}), file=answers, flush=True)


def main(network: str, graphs: str, *names: str) -> None:
    """Be one side, or several."""
    serve({name: partial(_built, network, SIDES[name], Path(graphs)) for name in names})


def _built(network: str, side: Torch | Ours, graphs: Path) -> tuple[Step, Facts]:
    return torch_step(network, side) if isinstance(side, Torch) else our_step(network, side, graphs)


if __name__ == "__main__":
    main(*sys.argv[1:])
