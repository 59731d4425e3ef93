"""From AOTAutograd's joint graph to a pair of graphs of one opaque call each."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import onnx
import torch

from campo_onnx.export.torch.complex_numbers import without_complex
from campo_onnx.integrations.torch_compile.concrete import (
    Symbols,
    are_polynomials,
    concrete_graph,
    drop_oldest,
    interface_of,
)
from campo_onnx.integrations.torch_compile.cut import Cut
from campo_onnx.integrations.torch_compile.flat import (
    FlatGraph,
    Output,
    flatten,
    provider_of,
    refuse_untranslatable,
    shapes_interface,
)
from campo_onnx.integrations.torch_compile.in_torch import JointInTorch, RareSizes
from campo_onnx.integrations.torch_compile.learner import Learner
from campo_onnx.integrations.torch_compile.planning import Planned, plan_any_size, plan_graph
from campo_onnx.integrations.torch_compile.runtimes import RuntimeChoice
from campo_onnx.integrations.torch_compile.settings import Settings
from campo_onnx.integrations.torch_compile.step import Saved, TrainingStep
from campo_onnx.integrations.torch_compile.tracing import decompositions
from campo_onnx.ir.sizes.any_size import AnySize, Example
from campo_onnx.ir.sizes.formulas import Sizes
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import AUTO, runtime_called

_IN_TORCH = -2
_FIRST_COMPILED = 12

_MOST_RESIZED = 512
"""Of a graph that runs at any size; another set of sizes takes milliseconds, and a hundred kilobytes."""


class JointGraph:
    """A joint graph, and the training steps made of it.

    The first sets of sizes have a graph each, the latest ones kept, until one of any sizes is learned.
    `weights` are positions of arguments that live as long as the model.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        *,
        primals: int,
        forward_results: int,
        weights: frozenset[int],
        names: Mapping[int, str],
        settings: Settings,
    ) -> None:
        self._gm = gm
        self._primals, self._forward_results = primals, forward_results
        self._weights, self._names, self._settings = weights, names, settings
        self._placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._symbols = Symbols.of(self._placeholders[:primals])
        self._copied = {
            position
            for position, node in enumerate(self._placeholders)
            if any(user.target is torch.ops.aten.clone.default for user in node.users)
        }
        """Arguments that may change before the backward pass, since the model copies them."""
        self._kept: Saved | None = None
        self._runtimes = RuntimeChoice(settings)
        self._learner = Learner(self._planned_for_any_size, is_smooth=are_polynomials(gm))
        self._rare = RareSizes(_FIRST_COMPILED)
        self.steps: OrderedDict[Sizes, TrainingStep] = OrderedDict()
        self.resized: dict[int, OrderedDict[Sizes, TrainingStep]] = {}

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes differ from call to call."""
        return bool(self._symbols.names)

    def step(self, sizes: Sizes) -> tuple[TrainingStep | None, int]:
        """Give a step of some sizes, and the number of the graph of any sizes that it runs.

        -1 stands for a graph of these sizes only, -2 for torch, which runs what is not worth compiling.
        """
        newest = len(self._learner.planned) - 1
        for number in dict.fromkeys((newest, -1)):
            if sizes in self._made(number):
                return self.step_again(sizes, number), number
        model = cache(lambda: self._flat(sizes).model(sizes_change=self.is_dynamic))
        holds = not self._runtimes.wants_trial(sizes) and self._learner.holds_at(sizes, model)
        if holds and (step := self._resized(sizes, newest)) is not None:
            return self._added(step, sizes, newest), newest
        if self.is_dynamic and self._rare.are_rare(sizes):
            return None, _IN_TORCH
        step = self._compiled(sizes, model)
        takes_any_size = runtime_called(step.planned.runtime).capabilities.takes_any_size
        if self.is_dynamic and (self._settings.runtime == AUTO or takes_any_size):
            self._learner.learn(Example(sizes, model()))
        return self._added(step, sizes, -1), -1

    def step_again(self, sizes: Sizes, number: int) -> TrainingStep:
        """Give the step that a forward pass ran; it is made again if that was long ago."""
        steps = self._made(number)
        if sizes in steps:
            steps.move_to_end(sizes)
            return steps[sizes]
        step = self._resized(sizes, number) if number >= 0 else None
        if step is None:
            step = self._compiled(sizes, lambda: self._flat(sizes).model(sizes_change=self.is_dynamic))
        return self._added(step, sizes, number)

    def _made(self, number: int) -> OrderedDict[Sizes, TrainingStep]:
        return self.steps if number < 0 else self.resized.setdefault(number, OrderedDict())

    def _added(self, step: TrainingStep, sizes: Sizes, number: int) -> TrainingStep:
        steps = self._made(number)
        steps[sizes] = step
        if number < 0:
            drop_oldest(steps, self._settings.sessions)
        elif len(steps) > _MOST_RESIZED:
            steps.popitem(last=False)
        return step

    def _flat(self, sizes: Sizes) -> FlatGraph:
        gm = without_complex(concrete_graph(self._gm, self._symbols, sizes), decompositions())
        refuse_untranslatable(gm)
        return flatten(gm, len(self._placeholders), self._names)

    @cached_property
    def _in_torch(self) -> JointInTorch:
        return JointInTorch(self._gm, primals=self._primals, forward_results=self._forward_results)

    @cached_property
    def _interface(self) -> torch.fx.GraphModule:
        return interface_of(self._gm, shapes_interface)

    def _compiled(self, sizes: Sizes, model: Callable[[], onnx.ModelProto]) -> TrainingStep:
        """Make a step of some sizes, whose graph in ONNX Runtime is `model`."""
        flat = self._flat(sizes)
        tangents, processor = self._tangents(flat), provider_of(flat.device)

        def planned(runtime: str) -> TrainingStep:
            graph = model() if runtime == DEFAULT else flat.model(runtime=runtime)
            return self._step(flat, plan_graph(graph, tangents, self._settings, processor, runtime))

        step = self._runtimes.candidate(sizes, processor, planned, model)
        self._kept = step.kept
        return step

    def _resized(self, sizes: Sizes, number: int) -> TrainingStep | None:
        """Give a step of a graph that runs at any size; None where tensors lie otherwise at these."""
        base: TrainingStep = self._learner.planned[number]
        gm = concrete_graph(self._interface, self._symbols, sizes)
        flat = flatten(gm, len(self._placeholders), self._names)
        return self._step(flat, base.planned.at(sizes), base.cut) if flat.is_like(base.flat) else None

    def _planned_for_any_size(self, graph: AnySize, sizes: Sizes) -> TrainingStep:
        flat = self._flat(sizes)
        planned = plan_any_size(graph, self._tangents(flat), self._settings, provider_of(flat.device))
        step = self._step(flat, planned.at(sizes))
        step.open()
        return step

    def _step(self, flat: FlatGraph, planned: Planned, parts: Cut | None = None) -> TrainingStep:
        return TrainingStep(
            flat.interface,
            planned,
            primals=self._primals,
            forward_results=self._forward_results,
            weights=self._weights,
            saved=self._kept,
            parts=parts,
        )

    def _tangents(self, flat: Any) -> dict[str, str]:
        """Say which output each tangent is the gradient of, where the session computes that output."""
        descriptions = self._gm.graph.output_node().meta.get("desc") or ()
        output_of = {}
        for tensor, position in zip(flat.inputs, flat.positions, strict=True):
            if not self._primals <= position < flat.arguments:
                continue
            description = self._placeholders[position].meta.get("desc")
            output = getattr(description, "output", None)
            place = next((i for i, d in enumerate(descriptions) if d == output and d is not None), None)
            if place is None or not isinstance(flat.results[place], Output):
                continue
            result = flat.outputs[flat.results[place].place]
            if result.layout.stored_shape == tensor.layout.stored_shape:  # autograd may want another order
                output_of[tensor.name] = result.name
        return output_of

    def forward(self, arguments: list[Any]) -> list[Any]:
        """Run a forward pass: its results, then what autograd keeps."""
        tensors = list(arguments)
        arguments.clear()
        sizes = self._symbols.read(tensors)
        step, number = self.step(sizes)
        if step is None:
            return self._forward_in_torch(tensors, sizes)
        results, saved = step.forward(tensors)
        for place, position in enumerate(step.kept.arguments):
            saved[place] = saved[place].clone() if position in self._copied else saved[place]
        if self.is_dynamic:
            saved.insert(0, torch.tensor((*sizes, number)))
        return [*results, *saved]

    def _forward_in_torch(self, tensors: Sequence[Any], sizes: Sizes) -> list[Any]:
        """Run a forward pass in torch; what it computed stays with the first tensor that autograd keeps."""
        assert self._kept is not None
        own = [t.clone() if p in self._copied else t for p, t in enumerate(tensors)]
        results, computed = self._in_torch.forward(own)
        first = torch.tensor((*sizes, _IN_TORCH))
        first.computed = computed
        nothing = [torch.empty(0)] * (len(self._kept.results) + 1)
        return [*results, first, *(tensors[position] for position in self._kept.arguments), *nothing]

    def backward(self, arguments: list[Any]) -> list[Any]:
        """Run a backward pass on what autograd kept, and gradients."""
        assert self._kept is not None
        tensors = list(arguments)
        arguments.clear()
        saved = len(self._kept.arguments) + len(self._kept.results) + 1
        first: Any = tensors.pop(0) if self.is_dynamic else None
        *sizes, number = (-1,) if first is None else first.tolist()
        if number == _IN_TORCH:
            return self._in_torch.backward(first.computed, tensors[saved:])
        step = self.step_again(tuple(sizes), number)
        return step.backward(tensors[:saved], tensors[saved:])

    def halves(self) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        """Write both passes as graphs of one call, as AOTAutograd wants them."""
        step, _ = self.step(self._symbols.traced_at(self._placeholders))
        assert step is not None  # the first is compiled
        assert self._kept is not None
        step.open()
        results = list(self._gm.graph.output_node().args[0])
        primals = self._placeholders[: self._primals]
        tangents = self._placeholders[self._primals :]
        mode = next(
            n.meta["val"].fake_mode for n in self._placeholders if isinstance(n.meta["val"], torch.Tensor)
        )
        with mode:
            buffer = torch.empty(step.buffer_bytes, dtype=torch.uint8, device=step.flat.device)
            sizes = [torch.empty(len(self._symbols.names) + 1, dtype=torch.int64)] if self.is_dynamic else []
        own = [primals[p].meta["val"] for p in self._kept.arguments]
        index_of = {r.place: i for i, r in enumerate(step.flat.results) if isinstance(r, Output)}
        own += [results[index_of[place]].meta["val"] for place in self._kept.results]
        saved = [*sizes, *own, buffer]
        forward = _one_call(self.forward, primals, results[: self._forward_results], saved)
        names = [f"kept_{i}" for i in range(len(saved))]
        backward = _one_call(
            self.backward, [*zip(names, saved, strict=True), *tangents], results[self._forward_results :], []
        )
        return forward, backward


class Opaque(torch.nn.Module):
    """The one call of a half: AOTAutograd carries it around, and we find it again."""

    def __init__(self, call: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__()
        self.call = call

    def __deepcopy__(self, memo: Any) -> "Opaque":
        return self

    def forward(self, *arguments: Any) -> list[Any]:
        """Run it."""
        return self.call(list(arguments))


_NAME = "campo_onnx"


def _one_call(
    call: Callable[[list[Any]], list[Any]], inputs: Sequence[Any], results: Sequence[Any], more: Sequence[Any]
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[Any, torch.fx.Node] = {}
    for each in inputs:
        if isinstance(each, torch.fx.Node):
            copies[each] = graph.placeholder(each.name)
            copies[each].meta = dict(each.meta)
        else:
            name, meta = each
            copies[name] = graph.placeholder(name)
            copies[name].meta = {"val": meta}
    root = torch.nn.Module()
    root.add_module(_NAME, Opaque(call))
    node = graph.call_module(_NAME, tuple(copies.values()))
    outputs: list[Any] = []
    for i, result in enumerate([*results, *more]):
        if i < len(results) and not isinstance(result, torch.fx.Node):
            outputs.append(result)
        elif i < len(results) and result in copies:
            outputs.append(copies[result])
        else:
            item = graph.call_function(operator.getitem, (node, i))
            item.meta = {"val": result.meta["val"] if i < len(results) else result}
            outputs.append(item)
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(root, graph)


def opaque_call(gm: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]] | None:
    """Find the call that a half consists of; None in a graph that is not ours."""
    opaque = getattr(gm, _NAME, None)
    return opaque.call if isinstance(opaque, Opaque) else None
