"""Sums of products of matrices as one product.

A weight of a recurrent layer has a gradient from every time step, ``x1.T @ g1 + x2.T @ g2 + ...``. That is
the product of all inputs, one below the other, with all gradients. It sums up while it multiplies; each of
the products by itself is written, and read again to be added to the others.

That pays where the products are large and what they multiply is not. Gradients of attention's input, a sum of
three products of many tokens, are no faster as one (measured on a CPU, on ONNX Runtime and OpenVINO).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from campo_onnx.builder.target import MOST_JOINED
from campo_onnx.builder.value import Node, Value, adds_alike, readers_of
from campo_onnx.ir.origin import asks_for_fp32

_LARGEST_SHARE = 1 / 3
"""Share of what is added up that its operands may be. At 0.3 one product was 1.2 to 1.9 times as fast on a
CPU, at 0.6 and more 0.6 to 1.1 times."""

_MATRIX = 2  # axes

_Key: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class _Sum:
    """A sum of several tensors: the Add that gives it, those before, and the terms."""

    last: Node
    before: list[Node] = field(default_factory=list)
    terms: list[Value] = field(default_factory=list)
    joined: list[list[Node]] = field(default_factory=list)  # nodes whose results are terms, computed as one


def summed_products(
    nodes: Sequence[Node],
    outputs: frozenset[str],
    fresh: Callable[[str], str],
    choice: Callable[[Callable[[], bool]], bool],
) -> list[Node]:
    """Write sums of products as products where that pays, and sums of the same columns as one.

    `outputs` are the names of the graph's outputs; `fresh` makes a name of a first part that nothing has;
    `choice` chooses, or remembers what was chosen at another size.
    """
    graph = _Nodes(nodes, outputs)
    sums = graph.sums()
    joins: set[_Key] = set()
    for one in sums:
        one.joined += (terms for terms in graph.alike(one, _product_key) if choice(partial(_gains, terms)))
        joins.update(_join_key(terms, i) for terms in one.joined for i in (0, 1))
    for one in sums:
        one.joined += (terms for terms in graph.alike(one, _reduction_key) if _join_key(terms, 0) in joins)
    changed = {one.last.name: one for one in sums if one.joined}
    left_out = {n.name for one in changed.values() for terms in (one.before, *one.joined) for n in terms}
    joined: dict[_Key, Node] = {}
    written: list[Node] = []
    for node in nodes:
        if node.name in changed:
            written += _written(changed[node.name], joined, fresh)
        elif node.name not in left_out:
            written.append(node)
    return written


class _Nodes:
    """Nodes in order, and who computes what."""

    def __init__(self, nodes: Sequence[Node], outputs: frozenset[str]) -> None:
        self._nodes, self._outputs = nodes, outputs
        self._place = {v.name: i for i, node in enumerate(nodes) for v in node.outputs}
        self._readers = readers_of(nodes)

    def sums(self) -> list[_Sum]:
        """Every sum, in order; none is a term of another that nothing else reads."""
        sums: list[_Sum] = []
        before: set[str] = set()
        for node in reversed(self._nodes):
            if not adds_alike(node) or node.name in before:
                continue
            one = _Sum(last=node)
            pending = list(_read(node))
            while pending:
                value = pending.pop()
                source = self._of_one_reader(value)
                if source is not None and adds_alike(source):
                    one.before.append(source)
                    pending += _read(source)
                else:
                    one.terms.append(value)
            before.update(n.name for n in one.before)
            sums.append(one)
        return sums[::-1]

    def alike(self, one: _Sum, key_of: Callable[[Node], _Key | None]) -> Iterator[list[Node]]:
        """Give groups of terms that can be computed as one, in the order of what they are computed of."""
        groups: dict[_Key, list[Node]] = {}
        for source in map(self._of_one_reader, one.terms):
            if source is None or (key := key_of(source)) is None:
                continue
            if not any(map(self._is_joined, _read(source), map(partial(_axis, source), (0, 1)))):
                groups.setdefault(key, []).append(source)
        for group in groups.values():
            group.sort(key=lambda node: [self._place.get(v.name, -1) for v in _read(node)])
            for first in range(0, len(group), MOST_JOINED):
                if len(terms := group[first : first + MOST_JOINED]) > 1:
                    yield terms

    def _is_joined(self, value: Value, axis: int) -> bool:
        """Whether a value was joined before; as part of another it would be copied twice."""
        source = self._nodes[self._place[value.name]] if value.name in self._place else None
        return source is not None and source.op_type == "Concat" and source.attributes["axis"] == axis

    def _of_one_reader(self, value: Value) -> Node | None:
        """The node that computes a value for a single reader."""
        is_inside = self._readers[value.name] == 1 and value.name not in self._outputs
        return self._nodes[self._place[value.name]] if is_inside and value.name in self._place else None


def _written(one: _Sum, joined: dict[_Key, Node], fresh: Callable[[str], str]) -> Iterator[Node]:
    """Give the nodes of a sum. Products and sums take the names of those that they replace."""
    left_out = {node.outputs[0].name for terms in one.joined for node in terms[1:]}
    total, *rest = (v for v in one.terms if v.name not in left_out)
    for terms in one.joined:
        first = terms[0]
        operands = list(first.inputs)
        for i in range(_joined_operands(first)):
            key = _join_key(terms, i)
            if key not in joined:
                scope = first.name.rpartition("/")[0]
                joined[key] = _concat(terms, i, fresh(f"{scope}/Concat" if scope else "Concat"))
                yield joined[key]
            operands[i] = joined[key].outputs[0]
        yield replace(first, inputs=tuple(operands), outputs=first.outputs if rest else one.last.outputs)
    for value, node in zip(rest, [*one.before[: len(rest) - 1], one.last] if rest else (), strict=True):
        yield replace(node, inputs=(total, value))
        total = node.outputs[0]


def _read(node: Node) -> Iterable[Value]:
    return (v for v in node.inputs if v is not None)


def _product_key(node: Node) -> _Key | None:
    """Give the form of a product, by which others are like it; None of another node."""
    if node.op_type not in ("MatMul", "Gemm") or [v.rank for v in _read(node)] != [_MATRIX, _MATRIX]:
        return None
    return (node.op_type, asks_for_fp32(node.name), *sorted(node.attributes.items()))


def _reduction_key(node: Node) -> _Key | None:
    """Give the form of a sum of columns; None of another node."""
    x, axes = (*_read(node), None, None)[:2]
    if node.op_type != "ReduceSum" or x is None or axes is None or axes.constant is None:
        return None
    is_of_columns = x.rank == _MATRIX and axes.constant.tolist() == [0]
    return (asks_for_fp32(node.name), *sorted(node.attributes.items())) if is_of_columns else None


def _joined_operands(node: Node) -> int:
    return 1 if node.op_type == "ReduceSum" else 2


def _axis(node: Node, operand: int) -> int:
    """The axis of an operand that is summed over."""
    if node.op_type == "ReduceSum":
        return 0
    is_turned = bool(node.attributes.get(("transA", "transB")[operand], 0))
    return int(is_turned) if operand else int(not is_turned)


def _join_key(terms: Sequence[Node], operand: int) -> _Key:
    return (_axis(terms[0], operand), *(_operand(node, operand).name for node in terms))


def _operand(node: Node, operand: int) -> Value:
    value = node.inputs[operand]
    assert value is not None  # products and reductions name what they read
    return value


def _concat(terms: Sequence[Node], operand: int, name: str) -> Node:
    axis, parts = _axis(terms[0], operand), [_operand(node, operand) for node in terms]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    outputs = (replace(parts[0], name=name, shape=tuple(shape), constant=None),)
    return Node(op_type="Concat", inputs=tuple(parts), outputs=outputs, attributes={"axis": axis}, name=name)


def _gains(terms: Sequence[Node]) -> bool:
    """Whether the operands are small beside the products that need not be added up."""
    joined = sum(v.elements for node in terms for v in _read(node))
    added = (len(terms) - 1) * terms[0].outputs[0].elements
    return joined < _LARGEST_SHARE * added
