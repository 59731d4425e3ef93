"""A step in a process of its own, so that its threads and those of other steps do not share one pool.

The process is this module as a program. It reads one request, answers when the step is loaded, and then
runs steps as often as it is asked; between two requests it sleeps.
"""

import json
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from campo_onnx.bench.failure import failure_of
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.loading import FIRST_STEPS, Buffers, open_step
from campo_onnx.errors import CampoError, ModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Step, time_behind_another

RESULTS = "results.npz"
"""Outputs of the first step, in the worker's folder."""


class WorkerStep:
    """One step of a graph, run by another process; dropping it ends the process."""

    def __init__(self, model: Path, batch: Path, folder: Path, machine: Machine) -> None:
        command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._end = weakref.finalize(self, _ended, self._process)
        self._folder = folder
        request: dict[str, Any] = {"model": str(model), "batch": str(batch), "folder": str(folder)}
        request |= {"runtime": machine.runtime, "processor": machine.provider, "threads": machine.threads}
        self.note = str(self._answer(request)["note"])

    def __call__(self) -> float:
        """Run a step twice; return the microseconds of the second."""
        return float(self._answer({})["step_us"])

    def results(self) -> dict[str, NDArray[Any]]:
        """Read the outputs of the first step, by name."""
        with np.load(self._folder / RESULTS) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        line = ""
        if stdin is not None and stdout is not None:
            try:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                pass
        if not line:
            raise ModelError("the process that runs the step ended", why=f"exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ModelError(answer["error"])
        return answer


def _ended(process: "subprocess.Popen[str]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # what it was asked last, it did not read
                stream.close()
    process.wait()


def _loaded(request: dict[str, Any]) -> tuple[Step, str]:
    """Load a step, run it as often as it takes to hold all its memory, and write its first outputs."""
    here = machine(request["processor"], request["threads"], request["runtime"])
    graph = Graph(name="step", imported=import_model(request["model"]))
    with np.load(request["batch"]) as arrays:
        buffers = Buffers(graph.imported.view, dict(arrays), here, seed=0)
    step, note = open_step(graph, buffers, here, cuda_graph=False)
    step()
    first = {name: tensor.read() for name, tensor in buffers.outputs.items()}
    np.savez(Path(request["folder"]) / RESULTS, allow_pickle=False, **first)
    for _ in range(FIRST_STEPS - 1):
        step()
    return step, note


def _serve(requests: TextIO, answers: TextIO) -> None:
    def answer(facts: dict[str, Any]) -> None:
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    try:
        step, note = _loaded(json.loads(requests.readline()))
        answer({"note": note})
        for _ in requests:
            answer({"step_us": time_behind_another(step)})
    except (CampoError, MemoryError) as error:
        answer({"error": failure_of(error).text})


if __name__ == "__main__":
    # What libraries print goes to stderr: stdout is for answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        _serve(sys.stdin, answers)
