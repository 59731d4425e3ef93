"""The roundings that low nodes bring, each listed once where several nodes share it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having, spec
from campo_onnx.ops.spec import Movement
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.problem import Problem

_MOVES = having(Trait.MOVES, Trait.SIGN)
_SELECTS = op_keys("MaxPool Relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """A tensor that is rounded while any of some nodes is low, and another is not."""

    tensor: str
    # The node that rounds it for all its readers, as it writes it low; None if only readers round it.
    producer: str | None = None
    # The node that rounds it for itself, as it reads it low; None if only the producer rounds it. Where both
    # are named, nobody else reads it, so that it is the same rounding.
    reader: str | None = None
    # The node that has rounded the tensor already when it is low; None where nobody has.
    unless: str | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that round the tensor when they are low."""
        return tuple(name for name in (self.producer, self.reader) if name is not None)

    def is_there(self, low: Collection[str]) -> bool:
        """Whether the tensor is rounded here when exactly the nodes in `low` are low."""
        return any(name in low for name in self.nodes) and (self.unless is None or self.unless not in low)


def roundings(problem: Problem, free: Iterable[str]) -> tuple[Rounding, ...]:
    """List the roundings that nodes bring if they become low.

    A node that only moves or selects values rounds nothing as it writes: it has rounded what it read.

    `problem`: the graph and the ports of its nodes. Constants count as well: their low versions are rounded.
    """
    return tuple(_roundings(problem, dict.fromkeys(free)))


def _roundings(problem: Problem, free: Collection[str]) -> Iterator[Rounding]:
    view, ports = problem.view, problem.ports
    writes: dict[str, str] = {}
    for name in free:
        node = view.node[name]
        for tensor in dict.fromkeys(node.inputs[i] for i in sorted(ports[name].low_inputs)):
            producer = writes.get(tensor)
            is_exact = producer is not None and _keeps_values(view.node[producer])
            if producer is None or is_exact or not _is_only_reader(name, tensor, problem):
                yield Rounding(tensor=tensor, reader=name, unless=producer)
        for tensor in (node.outputs[i] for i in sorted(ports[name].low_outputs)):
            writes[tensor] = name
            if not _keeps_values(node):
                yield Rounding(tensor=tensor, producer=name, reader=_only_reader(tensor, free, problem))


def _only_reader(tensor: str, free: Collection[str], problem: Problem) -> str | None:
    """Find the node that alone reads a tensor, and rounds it when it is low."""
    reader = next((use.node for use in problem.view.consumers.get(tensor, ())), None)
    return (
        reader if reader is not None and reader in free and _is_only_reader(reader, tensor, problem) else None
    )


def _is_only_reader(name: str, tensor: str, problem: Problem) -> bool:
    view: GraphView = problem.view
    uses = view.consumers.get(tensor, ())
    return not view.tensors[tensor].is_output and all(
        use.node == name and use.position in problem.ports[name].low_inputs for use in uses
    )


def _keeps_values(node: OpNode) -> bool:
    """Whether all values of a node's results are among those of its first input, but for the sign."""
    return node.op in _MOVES or node.op in _SELECTS or spec(node.op).movement is Movement.SELECT
