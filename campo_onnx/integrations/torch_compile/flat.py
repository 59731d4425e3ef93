"""A traced graph as a session can run it: tensors in, tensors out, nothing random.

Results that are not tensors, or an argument as it is, never reach ONNX; they are handed through here.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import onnx
import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.indices import reads_index
from campo_onnx.export.torch.operands import DTYPES
from campo_onnx.export.torch.origin import Origin, mark, origin_of
from campo_onnx.export.torch.translate import TRANSLATIONS, translate
from campo_onnx.integrations.torch_compile.autocast import LOW
from campo_onnx.integrations.torch_compile.checks import CHECKS, Check, IndexGuard, guard_indices, lift_checks
from campo_onnx.integrations.torch_compile.concrete import listed
from campo_onnx.integrations.torch_compile.layout import Layout
from campo_onnx.integrations.torch_compile.random_inputs import Draw, is_lifted, is_random, lift_random
from campo_onnx.integrations.torch_compile.tracing import OPSET
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.portable import mark_portable
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.runtime.machine import CPU, CUDA, DEFAULT
from campo_onnx.runtime.registry import machine


def provider_of(device: torch.device) -> str:
    """Say which execution provider works where tensors are."""
    return CUDA if device.type == CUDA else CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that goes into a graph or comes out of it."""

    name: str
    dtype: torch.dtype
    device: torch.device
    layout: Layout

    @property
    def onnx_dtype(self) -> int:
        """ONNX's type."""
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return torch.Size(self.layout.stored_shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A result that is known: None, or a number."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A result that is an argument as it is, by position; what was drawn comes after the arguments."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A result that the graph computes, by its place among the graph's outputs."""

    place: int


Result = Constant | Argument | Output


def result_of(result: Result, argument: Any, output: Any) -> Any:
    """Give a result of a call."""
    if isinstance(result, Constant):
        return result.value
    return argument[result.position] if isinstance(result, Argument) else output[result.place]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """The interface of a graph of static sizes.

    `checks` are what it computes for torch to check, before anything else is done with the results.
    """

    inputs: tuple[Tensor, ...]
    positions: tuple[int, ...]  # where each is among the arguments; what is drawn comes after them
    draws: tuple[Draw, ...]
    arguments: int
    outputs: tuple[Tensor, ...]
    results: tuple[Result, ...]
    checks: tuple[Check, ...] = ()
    indices: IndexGuard = field(default_factory=IndexGuard)
    device: torch.device  # of what it computes

    def is_like(self, other: "Interface") -> bool:
        """Whether another differs in sizes only."""
        return self._form == other._form

    @property
    def _form(self) -> Any:
        tensors = [
            (t.name, t.dtype, t.layout.repeated, t.layout.order, t.layout.gaps is None)
            for t in (*self.inputs, *self.outputs)
        ]
        checks = [(check.result, check.message) for check in self.checks]
        return tensors, self.positions, len(self.draws), self.arguments, self.results, checks


@dataclass(frozen=True, kw_only=True)
class FlatGraph(Interface):
    """A graph of static sizes."""

    gm: torch.fx.GraphModule  # ATen operations on tensors; placeholders and results lie as ONNX has them

    @property
    def interface(self) -> Interface:
        """The interface alone, without the graph: kilobytes instead of a traced graph."""
        return Interface(**{field.name: getattr(self, field.name) for field in fields(Interface)})

    def model(self, *, sizes_change: bool = False, runtime: str = DEFAULT) -> onnx.ModelProto:
        """Translate it."""
        inputs, outputs = ([t.name for t in tensors] for tensors in (self.inputs, self.outputs))
        model = translate(self.gm, inputs, outputs, TRANSLATIONS, opset=OPSET, sizes_change=sizes_change)
        self._restore_types(model.graph)
        mark_portable(model)
        here = machine(provider_of(self.device), runtime=runtime)
        place = replace(Place.on(here), sizes_change=sizes_change)
        return as_it_runs(import_model(model, any_type=True), place).model

    def _restore_types(self, graph: onnx.GraphProto) -> None:
        """Give results in BF16, which is translated as FP32 that is rounded."""
        for value, tensor in zip(graph.output, self.outputs, strict=True):
            if value.type.tensor_type.elem_type == tensor.onnx_dtype:
                continue
            wide = f"{value.name}.wide"
            for node in graph.node:
                for names in (node.input, node.output):
                    names[:] = [wide if name == value.name else name for name in names]
            graph.node.append(onnx.helper.make_node("Cast", [wide], [value.name], wide, to=tensor.onnx_dtype))
            value.type.tensor_type.elem_type = tensor.onnx_dtype


def flatten(gm: torch.fx.GraphModule, arguments: int, names: Mapping[int, str]) -> FlatGraph:
    """Take a graph's interface apart.

    The graph is of static sizes, and changed. `names` are those of the inputs of the graph that torch.compile
    captured, by position.
    """
    draws = lift_random(gm)
    graph = gm.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    position = {n: _position(n, arguments) for n in placeholders}
    called = {n: _input_name(n, names) for n in placeholders}
    indices = guard_indices(graph, position, called, lambda node: _origin(node).label)
    messages = lift_checks(graph)
    results, outputs = _take_results_apart(graph, position)
    results, checked = results[: len(results) - len(messages)], results[len(results) - len(messages) :]
    inputs = [_as_stored(graph, n, called[n]) for n in placeholders]
    graph.eliminate_dead_code()
    for node in graph.nodes:
        mark(node, _origin(node))
    return FlatGraph(
        gm=gm,
        inputs=tuple(inputs),
        positions=tuple(position[n] for n in placeholders),
        draws=tuple(draws),
        arguments=arguments,
        outputs=tuple(outputs),
        results=tuple(results),
        checks=tuple(Check(result, *said) for result, said in zip(checked, messages, strict=True)),
        indices=indices,
        device=_device(graph),
    )


def _device(graph: torch.fx.Graph) -> torch.device:
    """Device of a graph's tensors; the CPU where there are none."""
    placed = [n.meta["val"] for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return next((t.device for t in placed if t.device.type != "cpu"), torch.device("cpu"))


def shapes_interface(node: torch.fx.Node) -> bool:
    """Whether an operation can matter to what :func:`flatten` finds out, besides its type."""
    values = listed(node.meta.get("val"))
    whole = any(not isinstance(v, torch.Tensor) or not v.is_floating_point() for v in values)
    return whole or is_random(node) or node.target in CHECKS or reads_index(node)


def _position(node: torch.fx.Node, arguments: int) -> int:
    position: int = arguments + node.meta["drawn"] if "drawn" in node.meta else node.meta["position"]
    return position


def _take_results_apart(
    graph: torch.fx.Graph, position: Mapping[torch.fx.Node, int]
) -> tuple[list[Result], list[Tensor]]:
    output = graph.output_node()
    results: list[Result] = []
    computed: dict[torch.fx.Node, int] = {}
    for value in listed(output.args[0]):
        if not isinstance(value, torch.fx.Node):
            results.append(Constant(value=value))
        elif value in position:
            results.append(Argument(position=position[value]))
        else:
            results.append(Output(place=computed.setdefault(value, len(computed))))
    outputs: list[Tensor] = []
    stored = []
    for node, place in computed.items():
        meta = node.meta["val"]
        layout = Layout.of(meta)
        outputs.append(Tensor(name=f"result.{place}", dtype=meta.dtype, device=meta.device, layout=layout))
        with graph.inserting_before(output):
            stored.append(layout.add_stored(graph, node))
    output.args = (tuple(stored),)
    return results, outputs


def _as_stored(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> Tensor:
    """Let a placeholder stand for what lies in memory."""
    meta = node.meta["val"]
    layout = Layout.of(meta)
    if not layout.is_plain:
        node.meta["val"] = layout.stored(meta)
        users = list(node.users)
        with graph.inserting_after(node):
            restored = layout.add_restored(graph, node)
        for user in users:
            user.replace_input_with(node, restored)
    return Tensor(name=name, dtype=meta.dtype, device=meta.device, layout=layout)


def _input_name(node: torch.fx.Node, names: Mapping[int, str]) -> str:
    """Call an input as the user does, where it is one that torch.compile captured."""
    captured = getattr(node.meta.get("desc"), "idx", None)
    return node.name if captured is None else names.get(captured, node.name)


_OUTERMOST = re.compile(r"^L\['[^']*'\]\.?")


def _origin(node: torch.fx.Node) -> Origin:
    stack, in_fp32 = node.meta.get("nn_module_stack"), origin_of(node).in_fp32
    is_gradient = node.meta.get("partitioner_tag") == "is_backward"
    if is_gradient:
        stack = node.meta.get("fwd_nn_module_stack") or stack
    if not stack:
        return Origin("", is_gradient, in_fp32=in_fp32)
    return Origin(module_path(list(stack.values())[-1]), is_gradient, in_fp32=in_fp32)


def module_path(entry: Sequence[Any]) -> str:
    """Give the path of a module by its entry in a traced node's stack of modules."""
    return _OUTERMOST.sub("", str(entry[0]))


def is_translatable(node: torch.fx.Node) -> bool:
    """Whether a session can run a node, as far as its operation and types tell."""
    if is_random(node):
        return is_lifted(node)
    if node.target is not operator.getitem and node.target not in TRANSLATIONS:
        return False
    is_cast = node.target is torch.ops.aten._to_copy.default
    return all(
        t in DTYPES and (is_cast or t not in LOW)
        for value in (node, *node.all_input_nodes)
        for t in _types(value)
    )


def _types(node: torch.fx.Node) -> list[Any]:
    """Types of a node's tensors; None for what is none, or is sparse."""
    return [
        t.dtype if isinstance(t, torch.Tensor) and t.layout is torch.strided else None
        for t in listed(node.meta.get("val"))
        if t is not None
    ]


def refuse_untranslatable(gm: torch.fx.GraphModule) -> None:
    """Refuse a graph that has nodes which no session can run, all in one message."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target not in CHECKS]
    nodes = [n for n in calls if not is_translatable(n)]
    targets = sorted({str(n.target) for n in nodes if n.target is not operator.getitem})
    if not nodes:
        return
    low = sorted({str(t) for n in nodes for t in _types(n) if t in LOW})
    if low and all(n.target in TRANSLATIONS or n.target is operator.getitem for n in nodes):
        more = f" and {len(targets) - 3} more operations" if targets[3:] else ""
        raise UnsupportedModelError(
            f"{', '.join(targets[:3])}{more} compute in {', '.join(low)} already",
            why="the module, or its own casts, have chosen the precision",
            remedy="Leave parameters in FP32: this backend plans the precision, under torch.autocast too.",
        )
    raise UnsupportedModelError(
        f"no translation for {', '.join(targets)}",
        remedy="Write that part with other operations, or report the operation.",
    )
