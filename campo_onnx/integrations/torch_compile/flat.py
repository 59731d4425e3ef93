"""What a session can run of a traced graph: tensors in, tensors out, nothing random.

Results that are no tensor, or an argument as it is, never reach ONNX; they are handed through here.
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.operands import DTYPES
from campo_onnx.export.torch.origin import Origin, mark
from campo_onnx.export.torch.translate import translate
from campo_onnx.integrations.torch_compile.layout import Layout
from campo_onnx.integrations.torch_compile.random_inputs import Draw, lift_random
from campo_onnx.integrations.torch_compile.tracing import OPSET, TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that goes into a graph or comes out of it.

    Parameters
    ----------
    name
        What the ONNX graph calls it.
    dtype
        torch's type.
    layout
        How it lies in memory.
    """

    name: str
    dtype: torch.dtype
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
class Given:
    """A result that is known: None, or a number."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A result that is an argument as it is, by position; what was drawn comes after the arguments."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A result that the graph computes, by its place among the graph's outputs."""

    place: int


Result = Given | Argument | Made


@dataclass(frozen=True, kw_only=True)
class FlatGraph:
    """A graph of static sizes and its interface.

    Parameters
    ----------
    gm
        ATen operations on tensors; placeholders and results lie as ONNX has them.
    inputs
        What each placeholder is.
    positions
        Where each is among the arguments; what is drawn comes after them.
    draws
        What is drawn before the graph runs.
    arguments
        How many arguments there are.
    outputs
        What the graph computes.
    results
        How the results of a call come about.
    """

    gm: torch.fx.GraphModule
    inputs: tuple[Tensor, ...]
    positions: tuple[int, ...]
    draws: tuple[Draw, ...]
    arguments: int
    outputs: tuple[Tensor, ...]
    results: tuple[Result, ...]

    @property
    def device(self) -> torch.device:
        """Where its tensors are; the CPU where there are none."""
        placed = [n.meta["val"] for n in self.gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        return next((t.device for t in placed if t.device.type != "cpu"), torch.device("cpu"))

    def model(self) -> onnx.ModelProto:
        """Translate it.

        Raises
        ------
        UnsupportedModelError
            If an operation, or the way it is used, has no translation.
        """
        return translate(
            self.gm, [t.name for t in self.inputs], [t.name for t in self.outputs], TABLE, opset=OPSET
        )


def flatten(
    gm: torch.fx.GraphModule, arguments: int, names: Mapping[int, str], *, drawn: bool = True
) -> FlatGraph:
    """Take a graph's interface apart.

    Parameters
    ----------
    gm
        Of static sizes; changed.
    arguments
        How many arguments a call has.
    names
        What arguments are called, by position, where that is known.
    drawn
        Whether random numbers become inputs.
    """
    draws = lift_random(gm) if drawn else []
    graph = gm.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    position = {n: _position(n, arguments) for n in placeholders}
    results, outputs = _take_results_apart(graph, position)
    inputs = [_as_stored(graph, n, _input_name(n, position[n], names)) for n in placeholders]
    graph.eliminate_dead_code()
    gm.recompile()
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
    )


def _position(node: torch.fx.Node, arguments: int) -> int:
    found: int = arguments + node.meta["drawn"] if "drawn" in node.meta else node.meta["position"]
    return found


def _take_results_apart(
    graph: torch.fx.Graph, position: Mapping[torch.fx.Node, int]
) -> tuple[list[Result], list[Tensor]]:
    output = graph.output_node()
    results: list[Result] = []
    made: dict[torch.fx.Node, int] = {}
    for value in _sequence(output.args[0]):
        if not isinstance(value, torch.fx.Node):
            results.append(Given(value=value))
        elif value in position:
            results.append(Argument(position=position[value]))
        else:
            results.append(Made(place=made.setdefault(value, len(made))))
    outputs: list[Tensor] = []
    stored = []
    for node, place in made.items():
        meta = node.meta["val"]
        layout = Layout.of(meta)
        outputs.append(Tensor(name=f"result.{place}", dtype=meta.dtype, layout=layout))
        with graph.inserting_before(output):
            stored.append(layout.add_stored(graph, node))
    output.args = (tuple(stored),)
    return results, outputs


def _sequence(results: Any) -> Sequence[Any]:
    return results if isinstance(results, list | tuple) else (results,)


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
    return Tensor(name=name, dtype=meta.dtype, layout=layout)


def _input_name(node: torch.fx.Node, position: int, names: Mapping[int, str]) -> str:
    return node.name if "drawn" in node.meta else names.get(position, node.name)


_OUTERMOST = re.compile(r"^L\['[^']*'\]\.?")


def _origin(node: torch.fx.Node) -> Origin:
    stack = node.meta.get("nn_module_stack")
    is_gradient = node.meta.get("partitioner_tag") == "is_backward"
    if is_gradient:
        stack = node.meta.get("fwd_nn_module_stack") or stack
    if not stack:
        return Origin("", is_gradient)
    path = str(list(stack.values())[-1][0])
    return Origin(_OUTERMOST.sub("", path), is_gradient)


def untranslatable(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Find the nodes that no session can run, by what they are; how they are used is not looked at."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and not is_translatable(n)]


def is_translatable(node: torch.fx.Node) -> bool:
    """Whether a session can run a node, as far as its operation and types tell."""
    if node.target is not operator.getitem and node.target not in TABLE:
        return False
    values = (node, *node.all_input_nodes)
    return all(_has_type(value.meta.get("val")) for value in values)


def _has_type(meta: Any) -> bool:
    tensors: Iterable[Any] = meta if isinstance(meta, list | tuple) else (meta,)
    return all(
        t is None or (isinstance(t, torch.Tensor) and t.dtype in DTYPES and t.layout is torch.strided)
        for t in tensors
    )


def refuse_untranslatable(gm: torch.fx.GraphModule) -> None:
    """Refuse a graph that has nodes which no session can run, all in one message."""
    if nodes := untranslatable(gm):
        found = sorted({str(node.target) for node in nodes})
        raise UnsupportedModelError(f"no translation for {', '.join(found)}")
