"""The sides that take turns: each a process of its own that runs steps when it is asked, and else sleeps.

    python -m benchmarks.measured.sides SIDE NETWORK GRAPHS

A step is loss and gradients, without the update of the weights.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from signal import SIGKILL
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from campo_onnx.runtime.machine import cores

MODULE = "benchmarks.measured.sides"
"""What a process of a side runs."""

THREADS = cores()
WARMUP = 3
_TINY = 1e-3

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
        "ort": Ours("ONNX Runtime, FP32, as exported", "onnxruntime", "exported"),
        "fp32": Ours("OpenVINO, FP32", "openvino", "fp32"),
        "all-low": Ours("all BF16", "openvino", "all-low"),
        "tf-amp": Ours("op list (tf-amp)", "openvino", "tf-amp"),
        "fine-grained": Ours("fine-grained", "openvino", "fine-grained"),
        "campo": Ours("campo", "openvino", "campo"),
        "optimal": Ours("optimal", "openvino", "optimal"),
    }
)
IN_FP32 = ("compile", "ort", "fp32")
"""Sides that must compute torch's loss."""

BESIDE_TORCH = tuple(side for side in SIDES if side != "fine-grained")
SWEPT = ("fp32", "all-low", "tf-amp", "campo", "optimal")
DRAWN = ("fp32", "all-low", "tf-amp", "fine-grained", "campo", "optimal")


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


def our_step(network: str, side: Ours, graphs: Path) -> tuple[Step, dict[str, float]]:
    """Load a step of ours, and say how far its gradients are from those of ONNX Runtime in FP32.

    Its memory is bound once. Torch is not imported: its threads would disturb.
    """
    import onnx
    from safetensors.numpy import load_file

    from benchmarks.measured.plans import FEEDS, GRADIENTS, folder_of
    from campo_onnx.runtime.api import LoadSettings
    from campo_onnx.runtime.registry import runtime_called

    folder = folder_of(network, graphs)
    model = onnx.load(folder / f"{side.plan}.onnx")
    program = runtime_called(side.runtime).load(
        model, "cpu", threads=THREADS, folder=folder, settings=LoadSettings(spins=False)
    )
    read = {value.name for value in model.graph.input}
    feeds = {name: value for name, value in load_file(folder / FEEDS).items() if name in read}
    outputs = program.run(feeds)
    loss, far = float(outputs["loss"]), farthest_gradient(outputs, load_file(folder / GRADIENTS))
    run = program.placed(feeds)

    def step() -> float:
        run()
        return loss

    return step, {"gradient_error": far}


def farthest_gradient(outputs: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Give the largest distance of a gradient from the expected one, over the norm of that one.

    Gradients that are tiny beside the largest are left out: they are zeros but for rounding.
    """
    norms = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    least = _TINY * max(norms.values(), default=0.0)
    return max(
        (
            float(np.linalg.norm(np.asarray(outputs[name], np.float64) - expected[name])) / norm
            for name, norm in norms.items()
            if norm > least
        ),
        default=0.0,
    )


class Worker:
    """A side in a process of its own."""

    def __init__(self, side: str, network: str, graphs: Path, module: str = MODULE) -> None:
        command = [sys.executable, "-m", module, side, network, str(graphs)]
        # Threads of torch's that wait for the next step must not take the others' cores.
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._is_ended = False
        self.facts: dict[str, Any] = {}

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait until it has warmed up; ``facts`` hold its loss.

        Raises
        ------
        RuntimeError
            If it fails, with the message of its error, or takes longer.
        """
        answers, _, _ = select([self._process.stdout], [], [], max(limit_s, 0.0))
        if not answers:
            raise RuntimeError("not ready in time")
        self.facts = self._answer()
        if failure := self.facts.get("failure"):
            raise RuntimeError(failure)

    def times_ms(self, steps: int) -> list[float]:
        """Time some steps behind one that does not count: the first behind a pause is slower."""
        assert self._process.stdin is not None  # it was asked for
        self._process.stdin.write(f"{steps + 1}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer()["times_ms"]
        return times[1:]

    def end(self) -> None:
        """End it, with the compilers that it started."""
        if self._is_ended:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.communicate()
        self._is_ended = True

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # it was asked for
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"its process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve(build: Callable[[], tuple[Step, dict[str, float]]]) -> None:
    """Run steps as often as the parent asks, and say how long each took.

    Parameters
    ----------
    build
        Makes the step, and what is to be told of it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        step, facts = build()
        losses = [step() for _ in range(WARMUP)]
    except Exception as error:  # of one side: the others are measured, and this one is told
        print(json.dumps({"failure": f"{type(error).__name__}: {error}"[:500]}), file=answers, flush=True)
        return
    print(json.dumps({"loss": losses[0], **facts}), file=answers, flush=True)
    for line in sys.stdin:
        times_ms = []
        for _ in range(int(line)):
            began = time.perf_counter()
            step()
            times_ms.append((time.perf_counter() - began) * 1e3)
        print(json.dumps({"times_ms": times_ms}), file=answers, flush=True)


def main(side: str, network: str, graphs: str) -> None:
    """Be a side."""
    kind = SIDES[side]
    if isinstance(kind, Torch):
        serve(lambda: (torch_step(network, kind), {}))
    else:
        serve(lambda: our_step(network, kind, Path(graphs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
