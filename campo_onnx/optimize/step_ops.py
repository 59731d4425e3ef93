"""A step as the operations that will run: of a graph as it stands, or as a plan makes it.

A tensor that a plan keeps in two precisions is two tensors here. Counts of launches, bytes and memory are
taken from this list, so that a plan needs no graph to be counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from campo_onnx.ir.view import GraphView, TensorKind
from campo_onnx.ops.facts import moved_bytes, work_of
from campo_onnx.ops.key import CAST, OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Family
from campo_onnx.ops.work import HOST_ONLY, WorkKind
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem

Version: TypeAlias = tuple[str, bool]
"""A tensor, and whether its low version is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Kernels and the bytes they read and write."""

    # How many nodes launch a kernel. A node that only gives its bytes another name launches none.
    launches: int = 0
    moved_bytes: float = 0.0  # what they read and write in main memory; a tensor of unknown size counts zero

    def __add__(self, other: "Moved") -> "Moved":
        return Moved(
            launches=self.launches + other.launches, moved_bytes=self.moved_bytes + other.moved_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOp:
    """One operation of a step."""

    node: str  # its name; that of the node in front for a Cast that a plan inserts
    module: str = ""  # path of its module, where the file says it; else it follows from the name
    op: OpKey
    reads: tuple[Version, ...]
    writes: tuple[Version, ...]
    # Its kernel, and what that reads and writes; nothing for one that only gives bytes another name.
    moved: Moved
    # Whether its first result is its first input under another shape; not so where it is an output of the
    # graph, for which the runtime copies.
    is_view: bool

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result comes from the elements at its place."""
        return self.moved.launches > 0 and (self.op == CAST or spec(self.op).family is Family.ELEMENTWISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The operators that run, in order, and the bytes of every tensor."""

    ops: tuple[StepOp, ...]
    sizes: Mapping[Version, float]  # bytes by tensor; 0 where they are unknown
    # given, results: tensors that are there before the step (inputs, constants), and those that are there
    # behind it.
    given: frozenset[Version]
    results: frozenset[Version]

    def aliases(self) -> Mapping[Version, Version]:
        """Say of the results of views whose bytes they are."""
        source_of: dict[Version, Version] = {}
        for op in self.ops:
            if op.is_view and op.reads and op.writes:
                source_of[op.writes[0]] = source_of.get(op.reads[0], op.reads[0])
        return source_of


def step_of(view: GraphView) -> Step:
    """List the operations of a graph as it stands."""
    results = _results(view)
    return Step(
        ops=tuple(_op(view, node.name, Ports(), None, {}, results) for node in view.nodes),
        sizes={(name, False): info.nbytes for name, info in view.tensors.items()},
        given=_given(view),
        results=results,
    )


def planned_step(problem: Problem, plan: Plan) -> Step:
    """List the operations of a step as it is planned; a padded product has its own size."""
    view, results = problem.view, _results(problem.view)
    existing = {cast.tensor: cast.low_tensor for cast in (*plan.reused, *plan.dropped)}
    dropped = {cast.node for cast in plan.dropped}
    ops: list[StepOp] = []
    inserted: dict[str, list[StepOp]] = {}
    flat = frozenset(site.tensor for site in problem.flat_casts(plan.low_nodes))
    if flat:
        ops.append(_flat_cast(problem, plan))
    for cast in plan.casts:
        if cast.tensor in flat:
            continue
        inserted.setdefault(cast.producer, []).append(_cast(view, cast.tensor, plan.low, cast.dst, existing))
    ops.extend(inserted.get("", ()))
    for node in view.nodes:
        if node.name not in dropped:
            low = plan.low if node.name in plan.low_nodes else None
            ops.append(_op(view, node.name, problem.ports[node.name], low, existing, results))
        ops.extend(inserted.get(node.name, ()))
    sizes = {(name, False): info.nbytes for name, info in view.tensors.items()}
    sizes |= {
        (name, True): float((info.elements or 0) * plan.low.itemsize_bytes)
        for name, info in view.tensors.items()
    }
    return Step(ops=tuple(ops), sizes=sizes, given=_given(view), results=results)


def _results(view: GraphView) -> frozenset[Version]:
    return frozenset((name, False) for name in view.outputs)


def _given(view: GraphView) -> frozenset[Version]:
    kinds = (TensorKind.INPUT, TensorKind.CONSTANT)
    return frozenset((name, False) for name, info in view.tensors.items() if info.kind in kinds)


def _op(
    view: GraphView,
    name: str,
    ports: Ports,
    low: Precision | None,
    existing: Mapping[str, str],
    results: frozenset[Version],
) -> StepOp:
    node, signature = view.node[name], view.signature(name)
    low_inputs, low_outputs = (ports.low_inputs, ports.low_outputs) if low is not None else ((), ())
    writes = tuple(_version(t, i in low_outputs, existing) for i, t in enumerate(node.outputs) if t)
    is_view = work_of(signature).kind is WorkKind.VIEW
    is_copy = is_view and writes[0] in results
    return StepOp(
        node=name,
        module=node.origin.module,
        op=node.op,
        reads=(
            *(_version(t, i in low_inputs, existing) for i, t in enumerate(node.inputs) if t),
            *((t, False) for t in node.captures),
        ),
        writes=writes,
        moved=_copied(view, node.outputs[0]) if is_copy else moved_by(signature, ports, low),
        is_view=is_view and not is_copy,
    )


def _copied(view: GraphView, tensor: str) -> Moved:
    """Count a view that is an output of the graph: outputs have buffers of their own, so it is a copy."""
    return Moved(launches=1, moved_bytes=2.0 * view.tensors[tensor].nbytes)


def _cast(
    view: GraphView, tensor: str, low: Precision, dst: Precision, existing: Mapping[str, str]
) -> StepOp:
    versions = _version(tensor, False, existing), _version(tensor, True, existing)
    source, target = versions if dst is low else versions[::-1]
    producer = view.producer.get(tensor)
    return StepOp(
        node=tensor if producer is None else producer.name,
        op=CAST,
        reads=(source,),
        writes=(target,),
        moved=moved_by_cast(view, tensor, low),
        is_view=False,
    )


def _flat_cast(problem: Problem, plan: Plan) -> StepOp:
    """Cast all weights that lie in one buffer, those that nobody reads low too."""
    assert problem.flat is not None  # or no weight was cast so
    width = Precision.FP32.itemsize_bytes + plan.low.itemsize_bytes
    return StepOp(
        node="",
        op=CAST,
        reads=tuple((name, False) for name in problem.flat.sizes),
        writes=tuple((name, True) for name in problem.flat.sizes),
        moved=Moved(launches=1, moved_bytes=float(width * problem.flat.elements)),
        is_view=False,
    )


def moved_by(signature: Signature, ports: Ports, low: Precision | None) -> Moved:
    """Count one node, in FP32 or in a low precision."""
    if work_of(signature).kind in HOST_ONLY:
        return Moved()
    return Moved(launches=1, moved_bytes=moved_bytes(signature, ports, low))


def moved_by_cast(view: GraphView, tensor: str, low: Precision) -> Moved:
    """Count a Cast that a plan inserts, in either direction."""
    width = Precision.FP32.itemsize_bytes + low.itemsize_bytes
    return Moved(launches=1, moved_bytes=float(width * (view.tensors[tensor].elements or 0)))


def _version(tensor: str, is_low: bool, existing: Mapping[str, str]) -> Version:
    """A low version that a Cast of the given graph makes has a name there already."""
    return (existing[tensor], False) if is_low and tensor in existing else (tensor, is_low)


def launched(step: Step) -> Iterator[StepOp]:
    """Give the operations that launch a kernel."""
    return (op for op in step.ops if op.moved.launches)
