"""What a step moves through memory and launches, counted by family of operators. Nothing is timed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from campo_onnx.ir.view import GraphView
from campo_onnx.ops.facts import moved_bytes, work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Family
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.problem import Problem

_CAST = OpKey("", "Cast")
_AS_STORED = Ports()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Kernels and the bytes they read and write.

    Parameters
    ----------
    launches
        How many nodes launch a kernel. A node that only gives its bytes another name launches none.
    moved_bytes
        What they read and write in main memory; a tensor of unknown size counts zero.
    """

    launches: int = 0
    moved_bytes: float = 0.0

    def __add__(self, other: "Moved") -> "Moved":
        """Count both."""
        return Moved(
            launches=self.launches + other.launches, moved_bytes=self.moved_bytes + other.moved_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one step moves and launches.

    Parameters
    ----------
    by_family
        By what kind of thing the operators compute, the largest first; Casts are apart.
    casts
        All Casts.
    """

    by_family: Mapping[Family, Moved]
    casts: Moved

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_family", MappingProxyType(dict(self.by_family)))

    @property
    def total(self) -> Moved:
        """The whole step."""
        return sum(self.by_family.values(), self.casts)


def traffic(view: GraphView) -> Traffic:
    """Count a graph as it stands: an FP32 step, or a mixed one with its Casts and Pads.

    Parameters
    ----------
    view
        The graph.
    """
    signatures = (view.signature(node.name) for node in view.nodes)
    return _sum((signature.op, _moved(signature, _AS_STORED, None)) for signature in signatures)


def planned_traffic(problem: Problem, plan: Plan) -> Traffic:
    """Count a step as it is planned, without writing its graph.

    Parameters
    ----------
    problem
        The FP32 graph.
    plan
        What is made of it.

    Notes
    -----
    It is what :func:`traffic` says of the graph that the plan makes, but for padding, which is left
    out: a padded product counts at its own size.
    """
    return _sum(_planned(problem, plan))


def _planned(problem: Problem, plan: Plan) -> Iterator[tuple[OpKey, Moved]]:
    dropped = {cast.node for cast in plan.dropped}
    for node in problem.view.nodes:
        if node.name in dropped:
            continue
        low = problem.low if node.name in plan.low_nodes else None
        yield node.op, _moved(problem.view.signature(node.name), problem.ports[node.name], low)
    width = Precision.FP32.itemsize_bytes + problem.low.itemsize_bytes
    for cast in plan.casts:
        elements = problem.view.tensors[cast.tensor].elements or 0
        yield _CAST, Moved(launches=1, moved_bytes=float(width * elements))


def _moved(signature: Signature, ports: Ports, low: Precision | None) -> Moved:
    if work_of(signature).kind in HOST_ONLY:
        return Moved()
    return Moved(launches=1, moved_bytes=moved_bytes(signature, ports, low))


def _sum(nodes: Iterable[tuple[OpKey, Moved]]) -> Traffic:
    families: dict[Family, Moved] = {}
    casts = Moved()
    for op, moved in nodes:
        if op == _CAST:
            casts += moved
        elif moved.launches:
            family = spec(op).family
            families[family] = families.get(family, Moved()) + moved
    largest = sorted(families.items(), key=lambda item: -item[1].moved_bytes)
    return Traffic(by_family=dict(largest), casts=casts)
