"""Loops that make a value larger with every turn: how large it is at the end is not known."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from campo_onnx.ir.sort import bodies
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import CONSTANT, OpKey, op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait

_BOUNDED = having(Trait.BOUNDED)
_SMALL = having(Trait.AT_MOST_ONE)
_KEEPING = having(Trait.MOVES, Trait.SIGN, Trait.SAME_SIZE, Trait.NO_LARGER)
_FLOATS = frozenset({TensorProto.UNDEFINED, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})
_LOOP, _SCAN = OpKey("", "Loop"), OpKey("", "Scan")
_DIV, _MUL = OpKey("", "Div"), OpKey("", "Mul")
_LINEAR = _KEEPING | having(Trait.SCALES)
_ADDING = having(Trait.ADDS)
_TWO_TERMS = op_keys("Add Sub")
_CARRYING = _LINEAR | _ADDING | having(Trait.PART)
_MANY_TURNS = 4096.0
_FEW_TURNS = 16.0
_LARGEST_STEP = 1.0
_FEW = 64


def growing_outputs(graph: GraphProto) -> frozenset[str]:
    """Find what Loop and Scan return of states that they multiply in every turn.

    A state that is added to, or multiplied by what is at most 1 (the gate of a recurrent cell, a decay), is
    taken to stay of moderate size; so is what comes out of a bounded operator.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    return frozenset[str]().union(*(_growing(node, constants) for node in _loops(graph)))


def accumulating_outputs(graph: GraphProto, view: GraphView) -> Mapping[str, float]:
    """Count the turns of loops that add to a state and return it, by output; unknown counts are long."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    return {output: _turns(node, view) for node in _loops(graph) for output in _accumulating(node, constants)}


def factors_of_states(node: NodeProto, view: GraphView) -> Mapping[str, tuple[int, ...]]:
    """Find what a loop of many turns multiplies its states by, as inputs of a product, by its result.

    Each turn makes the error of such a factor once more: a decay of 0.9985 forgets within 670 turns, rounded
    to 0.999 within 1,000.
    """
    if _turns(node, view) < _FEW_TURNS:
        return {}
    body, returned, _ = _states(node)
    of_states, to_states = set(returned), set(returned.values())
    for inner in body.node:
        if OpKey.of(inner) in _CARRYING and not of_states.isdisjoint(inner.input):
            of_states.update(inner.output)
    for inner in reversed(body.node):
        if OpKey.of(inner) in _CARRYING and not to_states.isdisjoint(inner.output):
            to_states.update(inner.input)
    products = (n for n in body.node if OpKey.of(n) in (_DIV, _MUL) and to_states.issuperset(n.output))
    return {
        n.output[0]: tuple(i for i, t in enumerate(n.input) if t not in of_states)
        for n in products
        if not of_states.isdisjoint(n.input)
    }


def scanned_axes(node: NodeProto) -> tuple[int, ...]:
    """The axes that a Scan goes along, one for each input that it scans; none of a Loop."""
    scanned = sum(a.i for a in node.attribute if a.name == "num_scan_inputs")
    axes = next((tuple(a.ints) for a in node.attribute if a.name == "scan_input_axes"), ())
    return axes or (0,) * scanned


def _loops(graph: GraphProto) -> Iterator[NodeProto]:
    return (node for node in graph.node if OpKey.of(node) in (_LOOP, _SCAN))


def _accumulating(node: NodeProto, constants: Mapping[str, TensorProto]) -> frozenset[str]:
    body, returned, results = _states(node)
    adds: set[str] = set(returned)
    summed: set[str] = set()
    growth = _Growth(body, constants)
    for _ in range(2):  # a state that feeds another grows with it
        for inner in body.node:
            reads = [t for t in inner.input if t in adds]
            if not reads or OpKey.of(inner) not in _LINEAR:
                continue
            is_mean = growth.shrinks(inner, adds)
            adds.update(() if is_mean else inner.output)
            others = [t for t in inner.input if t and t not in adds]
            if (OpKey.of(inner) in _ADDING and others) or any(t in summed for t in reads):
                summed.update(() if is_mean else inner.output)
        summed.update(state for state, result in returned.items() if result in summed)
    return frozenset(o for o, result in zip(node.output, results, strict=False) if o and result in summed)


def _turns(node: NodeProto, view: GraphView) -> float:
    if OpKey.of(node) == _LOOP:
        count = view.values.get(node.input[0])
        return _MANY_TURNS if count is None or count.size != 1 else float(count.reshape(-1)[0])
    axes = scanned_axes(node)
    shape = view.shape(node.input[-1]) if axes else None
    return float(shape[axes[-1]]) if shape else _MANY_TURNS


def _states(node: NodeProto) -> tuple[GraphProto, dict[str, str], list[str]]:
    """The body of a loop, what it returns of each state in FP32, and all that it returns."""
    body = next(iter(bodies(node)))
    if OpKey.of(node) == _LOOP:
        states = list(body.input[2:])
        results = [value.name for value in body.output[1:]]
    else:
        states = list(body.input[: len(body.input) - len(scanned_axes(node))])
        results = [value.name for value in body.output]
    named = zip(states, results, strict=False)
    floats = {state.name: name for state, name in named if state.type.tensor_type.elem_type in _FLOATS}
    return body, floats, results


def _growing(node: NodeProto, constants: Mapping[str, TensorProto]) -> frozenset[str]:
    body, returned, results = _states(node)
    growth = _Growth(body, constants)
    # A state that feeds another grows with it: a second look sees what the first found out.
    for _ in range(2):
        growth.follow(returned)
        growth.grows.update(state for state, result in returned.items() if result in growth.grows)
    outputs = zip(node.output, results, strict=False)
    return frozenset(output for output, result in outputs if output and result in growth.grows)


class _Growth:
    """Tensors of a body that depend on a state, those that multiply it, and those of at most 1."""

    def __init__(self, body: GraphProto, constants: Mapping[str, TensorProto]) -> None:
        self.grows: set[str] = set()
        self._body = body
        self._depends: set[str] = set()
        self._small: set[str] = set()
        self._constants = dict(constants) | {tensor.name: tensor for tensor in body.initializer}
        for node in body.node:
            if OpKey.of(node) != CONSTANT or not node.attribute:
                continue
            if node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
            elif node.attribute[0].name == "value_float":
                value = numpy_helper.from_array(np.array(node.attribute[0].f, np.float32))
                self._constants[node.output[0]] = value

    def follow(self, states: Iterable[str]) -> None:
        self._depends.update(states)
        for node in self._body.node:
            reads = [t for t in node.input if t in self._depends]
            op = OpKey.of(node)
            if op in _SMALL:
                self._small.update(node.output)
            if not reads or op in _BOUNDED:
                continue
            self._depends.update(node.output)
            if self._multiplies(node) or any(t in self.grows for t in reads):
                self.grows.update(node.output)

    def shrinks(self, node: NodeProto, states: Collection[str]) -> bool:
        """Whether a product makes a state smaller with every turn: a decay, a gate."""
        others = [t for t in node.input if t and t not in states]
        if OpKey.of(node) == _MUL:
            return not others or any(t in self._small or 0.0 < self._largest(t) < 1.0 for t in others)
        return OpKey.of(node) == _DIV and bool(others) and self._smallest(others[0]) > 1.0

    def _multiplies(self, node: NodeProto) -> bool:
        """Whether a node may return more than it reads of a state, turn after turn."""
        op = OpKey.of(node)
        if op in _TWO_TERMS:
            return any(self._largest(t) >= _LARGEST_STEP for t in node.input)
        if op == _MUL:
            others = [t for t in node.input if t not in self._depends or t in self._small]
            return not any(t in self._small or self._largest(t) <= 1.0 for t in others if self._known(t))
        if op == _DIV:
            divisor = node.input[1]
            return not self._known(divisor) or not self._smallest(divisor) >= 1.0
        return op not in _KEEPING

    def _known(self, tensor: str) -> bool:
        return tensor in self._small or tensor in self._constants

    def _largest(self, tensor: str) -> float:
        values = self._values(tensor)
        return float(np.abs(values).max()) if values is not None and values.size else 0.0

    def _smallest(self, tensor: str) -> float:
        values = self._values(tensor)
        return float(np.abs(values).min()) if values is not None and values.size else 0.0

    def _values(self, tensor: str) -> np.ndarray | None:
        constant = self._constants.get(tensor)
        is_read = constant is not None and constant.data_location != TensorProto.EXTERNAL
        if constant is None or not is_read or int(np.prod(constant.dims)) > _FEW:
            return None
        values = numpy_helper.to_array(constant)
        return values.astype(np.float64) if values.dtype.kind in "fiu" else None
