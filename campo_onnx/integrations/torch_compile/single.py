"""Graphs without a backward pass of ours: inference, or pieces of a graph that torch runs the rest of."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from campo_onnx.integrations.torch_compile.checks import raise_failed
from campo_onnx.integrations.torch_compile.concrete import Symbols, concrete_graph, drop_oldest
from campo_onnx.integrations.torch_compile.flat import Interface, is_translatable, result_of
from campo_onnx.integrations.torch_compile.in_torch import RareSizes, run_by
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.programs import address, allocated, open_part, rehearsed
from campo_onnx.integrations.torch_compile.random_inputs import draw_in_order, lift_random
from campo_onnx.integrations.torch_compile.runtimes import Trial
from campo_onnx.ir.sizes.formulas import Sizes
from campo_onnx.runtime.api import AddressedProgram


class Piece:
    """One graph of static sizes in one session."""

    def __init__(self, flat: Interface, planned: Planned) -> None:
        self.flat, self.planned = flat, planned
        self.trials: tuple[Trial, ...] = ()
        self._device = flat.device
        inputs = {t.name: (t, p) for t, p in zip(flat.inputs, flat.positions, strict=True)}
        self._reads = [inputs[name] for name in planned.imported.view.inputs]
        self._writes = [t.name for t in flat.outputs]

    @cached_property
    def _session(self) -> AddressedProgram | None:
        reads = {tensor.name: tensor.device for tensor, _ in self._reads}
        if not self._writes:
            return None
        return open_part(self.planned, None, reads, self._writes, self._device)

    def open(self) -> None:
        """Load it, which is done at the first run otherwise."""
        _ = self._session

    def rehearsal(self) -> Callable[[], None]:
        """Give what runs it once, on memory of its own."""
        return rehearsed(self.planned, self._session, [t.name for t, _ in self._reads], self._writes)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run it."""
        inputs = [*arguments, *(draw(None) for draw in self.flat.draws)]
        self.flat.indices.check(inputs)
        stored = [tensor.layout.stored(inputs[position]) for tensor, position in self._reads]
        written = [allocated(t, self._device) for t in self.flat.outputs]
        if self._session is not None:
            self._session.run(list(map(address, stored)), list(map(address, written)))
        outputs = [t.layout.restored(x) for t, x in zip(self.flat.outputs, written, strict=True)]
        raise_failed(self.flat.checks, lambda result: result_of(result, inputs, outputs))
        return [result_of(result, inputs, outputs) for result in self.flat.results]


_FIRST_COMPILED = 8


class SizedGraph:
    """A graph, and what was made of it for each set of sizes; the latest ones are kept.

    Sets of sizes beyond the first ones are run by torch until they return.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        make: Callable[[torch.fx.GraphModule, int], Callable[[list[Any]], Sequence[Any]]],
        *,
        kind: str,
        sessions: int,
    ) -> None:
        self._gm, self._make, self._sessions = gm, make, sessions
        self.kind = kind
        self._placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._symbols = Symbols.of(self._placeholders)
        self.made: OrderedDict[Sizes, Callable[[list[Any]], Sequence[Any]]] = OrderedDict()
        self._rare = RareSizes(_FIRST_COMPILED)
        self._in_torch = run_by(gm)

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes differ from call to call."""
        return bool(self._symbols.names)

    def at(self, sizes: Sizes) -> Callable[[list[Any]], Sequence[Any]]:
        """Give what is made for some sizes."""
        if sizes in self.made:
            self.made.move_to_end(sizes)
            return self.made[sizes]
        if self._rare.are_rare(sizes):
            return self._in_torch
        self.made[sizes] = self._make(concrete_graph(self._gm, self._symbols, sizes), len(self._placeholders))
        drop_oldest(self.made, self._sessions)
        return self.made[sizes]

    def made_as_traced(self) -> None:
        """Make what the sizes call for that the graph was traced at: it fails now or never."""
        self.at(self._symbols.traced_at(self._placeholders))

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run it."""
        inputs = list(arguments)
        arguments.clear()
        return self.at(self._symbols.read(inputs))(inputs)


Make: TypeAlias = Callable[[torch.fx.GraphModule, int], Callable[[Sequence[Any]], list[Any]]]

_PIECE = "piece_"

_ONLY_MOVE = frozenset(
    f"aten.{name}.{overload}"
    for name, overload in (
        *(("view", "default"), ("t", "default"), ("transpose", "int"), ("permute", "default")),
        *(("expand", "default"), ("detach", "default"), ("alias", "default"), ("unsqueeze", "default")),
        *(("squeeze", "dim"), ("squeeze", "dims"), ("select", "int"), ("slice", "Tensor")),
        *(("_unsafe_view", "default"), ("reshape", "default")),
    )
)
"""For torch these are free: a piece of them alone is not worth a session."""


class _Translatable(OperatorSupportBase):
    def __init__(self, refused: frozenset[str]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """Say whether a session can run a node."""
        source = node.args[0] if node.target is operator.getitem else node
        if node.name in self._refused or source.name in self._refused:
            return False
        return node.op == "call_function" and is_translatable(node) and is_translatable(source)


class InPieces:
    """A graph of static sizes of which torch runs a part."""

    def __init__(self, gm: torch.fx.GraphModule, make: Make, refused: frozenset[str] = frozenset()) -> None:
        self._positions = _positions(gm)
        ordered = draw_in_order(gm)
        self._draws = [] if ordered else lift_random(gm)
        partitioner = CapabilityBasedPartitioner(
            gm, _Translatable(refused), allows_single_node_partition=True
        )
        partitions = [p for p in partitioner.propose_partitions() if any(_computes(node) for node in p.nodes)]
        fused = partitioner.fuse_partitions(partitions, prefix=_PIECE)
        self.pieces: list[Any] = []
        for node in [n for n in fused.graph.nodes if str(n.target).startswith(_PIECE)]:
            self._replace(fused, node, make)
        fused.graph.lint()
        fused.recompile()
        computing = (n for n in fused.graph.nodes if n.op == "call_function" and _computes(n))
        self.left = sorted({*ordered, *(str(node.target) for node in computing)})
        self._run = torch.fx.Interpreter(fused)

    def _replace(self, fused: torch.fx.GraphModule, node: torch.fx.Node, make: Make) -> None:
        sub = fused.get_submodule(node.target)
        output = sub.graph.output_node()
        is_single = isinstance(output.args[0], torch.fx.Node)
        if is_single:
            output.args = ((output.args[0],),)
        placeholders = [n for n in sub.graph.nodes if n.op == "placeholder"]
        for position, (placeholder, source) in enumerate(zip(placeholders, node.args, strict=True)):
            meta = {key: value for key, value in placeholder.meta.items() if key != "drawn"}
            placeholder.meta = {"val": source.meta["val"], **meta, "position": position}
        call = make(sub, len(placeholders))
        self.pieces.append(call)
        setattr(fused, node.target, _Call(call, is_single))

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run it."""
        chosen = [arguments[position] for position in self._positions]
        results: Sequence[Any] = self._run.boxed_run([*chosen, *(draw(None) for draw in self._draws)])
        return results


def in_torch(gm: torch.fx.GraphModule) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Let torch run a graph of static sizes."""
    positions, interpreter = _positions(gm), torch.fx.Interpreter(gm)
    return lambda arguments: interpreter.boxed_run([arguments[position] for position in positions])


def _positions(gm: torch.fx.GraphModule) -> list[int]:
    """Positions of a graph's inputs among the arguments; tensors and tokens of effects, not sizes."""
    return [node.meta["position"] for node in gm.graph.nodes if node.op == "placeholder"]


def _computes(node: torch.fx.Node) -> bool:
    return node.target is not operator.getitem and str(node.target) not in _ONLY_MOVE


class _Call(torch.nn.Module):
    def __init__(self, function: Callable[[Sequence[Any]], list[Any]], is_single: bool) -> None:
        super().__init__()
        self._made, self._is_single = function, is_single

    def forward(self, *arguments: Any) -> Any:
        """Run the piece."""
        results = self._made(arguments)
        return results[0] if self._is_single else results
