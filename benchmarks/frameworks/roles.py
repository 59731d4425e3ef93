"""The role of a node in a training step, told by structure alone: the same for every framework.

Names and spellings differ: one framework's ``Gelu`` is another's ``Mul, Erf, Add, Mul``, and a weight's
gradient is a ``Gemm``, a ``MatMul`` or half a ``ConvGrad``. A role says what such nodes have in common.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from campo_onnx.ir.view import GraphView, OpNode, Use
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.work import HOST_ONLY, WorkKind
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.lists.patterns.findings import Finding
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.safety import loss
from campo_onnx.optimize.updates import weight_update

FORWARD, BACKWARD = "forward", "backward"
PRODUCT, LOSS, SOFTMAX, LAYOUT = "product", "loss", "softmax", "layout"
DATA_GRADIENT, WEIGHT_GRADIENT = "data gradient", "weight gradient"

_NORMALIZATIONS = ("LayerNorm", "BatchNorm")
_POOLING = frozenset({"ATen", "MaxPool", "ReduceMean", "ReduceSum", "Scale", "ScatterElements"})
_MOVES = frozenset({"Cast", "ConstantOfShape", "Expand", "Slice", "Transpose", "Concat", "Pad"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Role:
    """One role."""

    part: str
    kind: str
    flops: int = 0

    def __str__(self) -> str:
        size = f" of {self.flops / 1e9:.3g} GFLOP" if self.flops else ""
        return f"{self.kind}{size}, {self.part}"


def roles_of(problem: Problem, lists: OpLists) -> Mapping[str, tuple[Role, ...]]:
    """Give every node its role; ConvGrad has two, one for each gradient it computes."""
    view = problem.view
    losses, update = loss(view, lists), weight_update(view)
    forward = _reached(losses, view, _producers)
    products = {node.name for node in view.nodes if work_of(view.signature(node.name)).kind is WorkKind.GEMM}
    after_loss = _reached(losses, view, _consumers) - losses
    after_product = _reached(
        products & forward, view, _consumers
    )  # the rest reads labels and constants alone
    after_gradient = _reached(products - forward, view, _consumers)
    statistics = _statistics(problem)
    softmax = _softmax(problem, statistics, losses)

    def kind(node: OpNode, part: str) -> str:
        finding = problem.classification.classes[node.name].finding
        if node.name in losses:
            return LOSS
        if node.name in update:
            return "running statistics"
        if finding is Finding.PARAMETER_SUM:
            return "bias gradient"
        if work_of(view.signature(node.name)).kind in HOST_ONLY or node.op.op_type in _MOVES:
            return LAYOUT
        between_passes = part == BACKWARD and node.name not in after_gradient
        if between_passes and (node.name in after_loss or node.name not in after_product):
            return LOSS
        if node.name in softmax:
            return SOFTMAX
        if node.name in statistics or node.op.op_type.startswith(_NORMALIZATIONS):
            return "normalization"
        return "pooling" if node.op.op_type in _POOLING else "elementwise"

    roles = {}
    for node in view.nodes:
        part = FORWARD if node.name in forward else BACKWARD
        if node.name in products:
            roles[node.name] = tuple(_products(node, part, view))
        else:
            roles[node.name] = (Role(part=part, kind=kind(node, part)),)
    return roles


def _products(node: OpNode, part: str, view: GraphView) -> Iterator[Role]:
    gemms = work_of(view.signature(node.name)).gemms
    if part == FORWARD:
        parts = [FORWARD] * len(gemms)
    elif node.op.op_type == "ConvGrad":
        gradients = (DATA_GRADIENT, WEIGHT_GRADIENT)
        parts = [name for name, tensor in zip(gradients, node.outputs, strict=False) if tensor]
    else:
        parts = [WEIGHT_GRADIENT if _leaves(node.outputs[0], view) else DATA_GRADIENT]
    for name, gemm in zip(parts, gemms, strict=True):
        yield Role(part=name, kind=PRODUCT, flops=int(gemm.flops))


def _leaves(tensor: str, view: GraphView) -> bool:
    """Whether a tensor is a result of the graph, moved about at most."""
    if view.tensors[tensor].is_output:
        return True
    consumers = [view.node[use.node] for use in view.consumers.get(tensor, ())]
    moves = _MOVES | {"Reshape", "Identity", "Squeeze", "Unsqueeze"}
    return any(node.op.op_type in moves and _leaves(node.outputs[0], view) for node in consumers)


Follow = Callable[[OpNode, GraphView], Iterable[str]]


def _producers(node: OpNode, view: GraphView) -> Iterator[str]:
    yield from (view.producer[tensor].name for tensor in node.inputs if tensor in view.producer)


def _consumers(node: OpNode, view: GraphView) -> Iterator[str]:
    yield from (use.node for tensor in node.outputs for use in view.consumers.get(tensor, ()))


def _reached(
    names: Iterable[str], view: GraphView, follow: Follow, within: Container[str] | None = None
) -> frozenset[str]:
    """Nodes, and those reached from them; where operators are named, only nodes of these."""
    reached, pending = set(names), list(names)
    while pending:
        for name in follow(view.node[pending.pop()], view):
            if name not in reached and (within is None or view.node[name].op.op_type in within):
                reached.add(name)
                pending.append(name)
    return frozenset(reached)


def _statistics(problem: Problem) -> Mapping[str, frozenset[str]]:
    """Find the pieces of decomposed normalizations and softmaxes, each with the statistics it belongs to.

    From a reduction (and the square before it) through arithmetic on the reduced size to where its
    result is broadcast back.
    """
    view, classification = problem.view, problem.classification
    pieces: dict[str, set[str]] = {}
    for start, node_class in classification.classes.items():
        if node_class.finding not in (Finding.STATISTIC, Finding.SUM_OF_SQUARES, Finding.SQUARES):
            continue
        pending, seen = [start], {start}
        while pending:
            for tensor in view.node[pending.pop()].outputs:
                for use in view.consumers.get(tensor, ()):
                    if use.node in seen or not _belongs(use, tensor, problem):
                        continue
                    seen.add(use.node)
                    if use not in classification.contained:
                        pending.append(use.node)
        for name in seen:
            pieces.setdefault(name, set()).add(start)
    return {name: frozenset(starts) for name, starts in pieces.items()}


def _belongs(use: Use, tensor: str, problem: Problem) -> bool:
    if use in problem.classification.contained:
        return True
    consumer, view = problem.view.node[use.node], problem.view
    before, after = view.tensors[tensor].elements, view.tensors[consumer.outputs[0]].elements
    return (
        bool(before and after)
        and after <= before
        and work_of(view.signature(consumer.name)).kind is not WorkKind.GEMM
    )


def _softmax(
    problem: Problem, statistics: Mapping[str, frozenset[str]], losses: frozenset[str]
) -> frozenset[str]:
    """Find the pieces of softmaxes, whole or decomposed, and of their gradients."""
    view = problem.view
    exps = {
        n
        for n, node_class in problem.classification.classes.items()
        if node_class.finding is Finding.SOFTMAX_EXP
    }
    whole = {node.name for node in view.nodes if node.op.op_type.startswith("Softmax")} - losses
    pieces = exps | whole
    for _ in range(2):  # the forward pass, then the gradients that read its results
        starts = {
            start
            for name, own in statistics.items()
            for start in own
            if any(t in view.producer and view.producer[t].name in pieces for t in _read_by(start, view))
        }
        pieces |= {name for name, own in statistics.items() if own & starts}
    shifts = _reached(exps, view, _producers, {"Sub", "Max", "ReduceMax", "Reshape"})
    return frozenset(pieces | shifts)


def _read_by(name: str, view: GraphView) -> Iterator[str]:
    """Yield what a reduction reads, and what the product it sums was made of."""
    for tensor in view.node[name].inputs:
        yield tensor
        producer = view.producer.get(tensor)
        if producer is not None and producer.op.op_type == "Mul":
            yield from producer.inputs
