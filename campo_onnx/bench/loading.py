"""Graphs made ready to time: loaded, bound to shared buffers, run once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.bench.failure import Failure, failure_of
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.meters import MemoryMeter
from campo_onnx.errors import CampoError, UnsupportedModelError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.runtime.api import LoadSettings, Tensor
from campo_onnx.runtime.feeds import Feeds, synthesize
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load, tensor, tensor_of
from campo_onnx.runtime.timing import Step
from campo_onnx.step.interface import TensorSpec

FIRST_STEPS = 2
"""Steps after which a graph holds all the memory that it will: the second may plan its buffers anew."""


class Buffers:
    """Inputs and outputs of the step on the device, shared by all graphs.

    Steps run one after another and only read their inputs, so sharing is safe, and the device's memory is
    left to what the graphs themselves need. `feeds` has a value for every input, generated where None.
    """

    def __init__(
        self, view: GraphView, feeds: Mapping[str, NDArray[Any]] | None, machine: Machine, *, seed: int
    ) -> None:
        for name in view.inputs:
            if view.tensors[name].dtype == TensorProto.BFLOAT16:
                raise UnsupportedModelError(
                    f"the input {name!r} is bfloat16",
                    why="NumPy has no such type",
                    remedy="Export in FP32; optimizing to bf16 keeps the interface.",
                )
        values = synthesize(view, seed=seed) if feeds is None else _checked(feeds, view)
        self.inputs = {name: tensor_of(value, machine) for name, value in values.items()}
        # An output of unknown size is allocated by the runtime in every step.
        self.outputs: Mapping[str, Tensor] = {
            name: tensor(info.shape, info.dtype, machine)
            for name in view.outputs
            if (info := view.tensors[name]).shape is not None and info.dtype != TensorProto.UNDEFINED
        }
        self.nbytes = int(sum(view.tensors[name].nbytes for name in {*view.inputs, *view.outputs}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Graphs ready to run."""

    # by graph, a function that runs one step and waits for its end. A graph that fails later is removed,
    # which frees its memory.
    steps: dict[str, Step] = field(default_factory=dict)
    # by graph, memory of a step, inputs and outputs included, where it could be measured
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    # by graph, about how long a step takes: the last of the first ones
    step_s: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load_graphs(
    graphs: Sequence[Graph], buffers: Buffers, machine: Machine, memory: MemoryMeter, *, cuda_graph: bool
) -> Loaded:
    """Load every graph and run its first two steps, in which the runtime reserves its memory."""
    steps: dict[str, Step] = {}
    peak_bytes: dict[str, int] = {}
    step_s: dict[str, float] = {}
    failures: dict[str, Failure] = {}
    notes: list[str] = []
    for graph in graphs:
        before_bytes = memory.read()
        try:
            step, note = open_step(graph, buffers, machine, cuda_graph=cuda_graph)
            for _ in range(FIRST_STEPS):
                before_s = time.perf_counter()
                step()
                step_s[graph.name] = time.perf_counter() - before_s
        except (CampoError, MemoryError) as error:
            failures[graph.name] = failure_of(error)
            continue
        steps[graph.name] = step
        if (grown_bytes := memory.growth(before_bytes)) is not None:
            peak_bytes[graph.name] = buffers.nbytes + grown_bytes
        if note:
            notes.append(f"{graph.name}: {note}")
    return Loaded(steps=steps, peak_bytes=peak_bytes, step_s=step_s, failures=failures, notes=tuple(notes))


def open_step(graph: Graph, buffers: Buffers, machine: Machine, *, cuda_graph: bool) -> tuple[Step, str]:
    """Load a graph and bind it.

    Gives a function that runs one step and waits for its end, and a note on nodes assigned to another
    provider; ``""`` if there are none.
    """
    imported = graph.imported
    settings = LoadSettings(captures=cuda_graph, must_stay=cuda_graph)
    program = load(imported.model, machine, folder=imported.folder, settings=settings)
    return program.bound(buffers.inputs, buffers.outputs), program.note


def _checked(feeds: Mapping[str, NDArray[Any]], view: GraphView) -> Feeds:
    missing = [name for name in view.inputs if name not in feeds]
    unknown = [name for name in feeds if name not in view.inputs]
    if missing or unknown:
        why = [f"no value for {', '.join(missing)}"] if missing else []
        why += [f"the graph has no input {', '.join(unknown)}"] if unknown else []
        raise UsageError(
            "the given inputs do not fit the graph",
            why="; ".join(why),
            remedy="Give one array per input, under the input's name.",
        )
    checked = {}
    for name in view.inputs:
        info = view.tensors[name]
        if info.shape is None:
            raise UnsupportedModelError(
                f"the input {name!r} has no static shape", remedy="Bind its dimensions with --dim."
            )
        checked[name] = TensorSpec(name=name, dtype=info.dtype, shape=info.shape).fitted(feeds[name])
    return checked
