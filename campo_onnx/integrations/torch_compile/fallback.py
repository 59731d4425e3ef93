"""Graphs with operations without translation: sessions for the pieces between them, torch for the rest."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from campo_onnx.integrations.torch_compile.flat import is_translatable
from campo_onnx.integrations.torch_compile.random_inputs import draw_in_order, lift_random

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

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        make: Make,
        refused: frozenset[str] = frozenset(),
    ) -> None:
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
