"""Order of a parameter's axes in the tensors that are views or Transposes of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from campo_onnx.ir.view import CAPTURE, GraphView, OpNode

Axes = tuple[int, ...]
"""Axes of a parameter in the order in which a tensor has them in memory, those of size 1 left out."""

_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ELEMENTWISE = frozenset({"Add", "Cast", "Div", "Mul", "Sum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A reading of a parameter, or of a Cast of it.

    `axes` say how those of its views and Transposes lie that other nodes read, by tensor; perhaps the root's
    own.
    """

    root: str  # the parameter, or the result of the Cast
    axes: Mapping[str, Axes]
    between: frozenset[str]  # nodes that make these
    readers: frozenset[str]

    def made_by(self, view: GraphView) -> frozenset[str]:
        """Give the nodes whose results may come to lie otherwise: the Cast that makes the root, too."""
        cast = view.producer.get(self.root)
        return self.between if cast is None else self.between | {cast.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Computation of a gradient."""

    tensor: str  # what of
    axes: Axes  # how it lies
    node: OpNode | None = None  # the elementwise node that makes it; None where it is taken as it is
    terms: tuple["Term | None", ...] = ()  # what that node reads, None for a single number
    between: tuple[str, ...] = ()  # nodes from this tensor on to where it is read

    def leaves(self) -> Iterator["Term"]:
        """Give the tensors that no elementwise node of the gradient makes."""
        if self.node is None:
            yield self
        for term in self.terms:
            if term is not None:
                yield from term.leaves()

    def nodes(self) -> Iterator[str]:
        """Give the nodes that make the gradient of them."""
        yield from self.between
        if self.node is not None:
            yield self.node.name
        for term in self.terms:
            if term is not None:
                yield from term.nodes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """Follows the axes of one parameter."""

    view: GraphView
    sizes: Mapping[int, int]  # of the parameter's axes; those of size 1 left out
    taken: frozenset[str] = field(default=frozenset())  # nodes that no gradient is followed through

    def readings(self, name: str) -> list[Reading] | None:
        """Find what is read of a parameter; None if bodies of nodes read it."""
        casts = [
            node.outputs[0]
            for use in self.view.consumers.get(name, ())
            if (node := self.view.node[use.node]).op.op_type == "Cast" and not node.op.domain
        ]
        candidates = [self._reading(root, casts) for root in (name, *casts)]
        readings = [reading for reading in candidates if reading is not None]
        return readings if len(readings) == len(candidates) else None

    def _reading(self, root: str, casts: Sequence[str]) -> Reading | None:
        axes: dict[str, Axes] = {}
        between: set[str] = set()
        readers: set[str] = set()
        pending = [(root, tuple(self.sizes))]
        while pending:
            tensor, lies = pending.pop()
            if self.view.tensors[tensor].is_output:
                if tensor == root:
                    return None
                axes[tensor] = lies
            for use in self.view.consumers.get(tensor, ()):
                node = self.view.node[use.node]
                if use.position == CAPTURE and tensor == root:
                    return None
                if tensor == root and node.outputs[0] in casts and use.position == 0:
                    continue
                after = self._after(node, lies) if use.position == 0 else None
                if after is None:
                    axes[tensor] = lies
                    readers |= {node.name} if tensor == root else set()
                else:
                    between.add(node.name)
                    pending.append((node.outputs[0], after))
        return Reading(root=root, axes=axes, between=frozenset(between), readers=frozenset(readers))

    def _after(self, node: OpNode, axes: Axes) -> Axes | None:
        if node.op.domain or node.op.op_type not in _VIEWS | {"Transpose"}:
            return None
        if node.op.op_type != "Transpose":
            return axes
        groups = self._groups(axes, self.view.shape(node.inputs[0]))
        return None if groups is None else tuple(a for i in _perm(node, len(groups)) for a in groups[i])

    def _before(self, node: OpNode, axes: Axes) -> Axes | None:
        groups = self._groups(axes, self.view.shape(node.outputs[0]))
        if groups is None:
            return None
        perm = _perm(node, len(groups))
        return tuple(axis for i in range(len(perm)) for axis in groups[perm.index(i)])

    def _groups(self, axes: Axes, shape: tuple[int, ...] | None) -> list[list[int]] | None:
        """Part axes such that each part is a dimension of `shape`; None where a dimension cuts one in two."""
        left, groups = list(axes), []
        for size in shape or ():
            group: list[int] = []
            while math.prod(self.sizes[axis] for axis in group) < size and left:
                group.append(left.pop(0))
            if math.prod(self.sizes[axis] for axis in group) != size:
                return None
            groups.append(group)
        return None if left or shape is None else groups

    def gradient(self, tensor: str) -> Term | None:
        """Find how a gradient is made; None where it is not made of tensors of its own."""
        return self._term(tensor, tuple(self.sizes))

    def _term(self, tensor: str, axes: Axes) -> Term | None:
        between: list[str] = []
        while (node := self.view.producer.get(tensor)) is not None and node.name not in self.taken:
            kind = "" if node.op.domain else node.op.op_type
            before = axes if kind in _VIEWS else self._before(node, axes) if kind == "Transpose" else None
            if before is None or not self._is_only_for(node.inputs[0], node):
                break
            between.append(node.name)
            tensor, axes = node.inputs[0], before
        if node is None or node.name in self.taken:
            return None
        terms = self._terms(node, tensor, axes)
        return Term(
            tensor=tensor,
            axes=axes,
            node=None if terms is None else node,
            terms=terms or (),
            between=tuple(between),
        )

    def _terms(self, node: OpNode, tensor: str, axes: Axes) -> "tuple[Term | None, ...] | None":
        if node.op.domain or node.op.op_type not in _ELEMENTWISE:
            return None
        terms: list[Term | None] = []
        for source in node.inputs:
            if self.view.shape(source) in ((), (1,)):
                terms.append(None)
                continue
            whole = self.view.shape(source) == self.view.shape(tensor) and self._is_only_for(source, node)
            term = self._term(source, axes) if whole else None
            if term is None:
                return None
            terms.append(term)
        return tuple(terms)

    def _is_only_for(self, tensor: str, node: OpNode) -> bool:
        uses = self.view.consumers.get(tensor, ())
        return not self.view.tensors[tensor].is_output and [use.node for use in uses] == [node.name]


def _perm(node: OpNode, rank: int) -> list[int]:
    return list(node.attributes.get("perm", range(rank)[::-1]))
