"""When a graph needs a Cast: the one place that knows.

Prices, plans and the minimum cut all ask :class:`CastSite`. Every Cast in question is there *while
one of some nodes is low and one of some nodes is FP32*, which can be evaluated for a given assignment
and is an arc of a network as well.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import CAPTURE, FLOAT, GraphView, OpNode, TensorKind
from campo_onnx.ops.key import CAST
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.targets.cast_model import CastModel

_NONE_US: Mapping[str, float] = MappingProxyType({})  # one object for the many sites without a given Cast


class CastKind(Enum):
    """The direction of a Cast, and whether it is new."""

    DOWN = "down"
    """A new one to the low precision."""
    UP = "up"
    """A new one back to FP32."""
    EXISTING = "existing"
    """One of the given graph, which goes when nobody needs it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleCast:
    """A Cast, and when it is there: while any of `if_low` is low and any of `if_fp32` is FP32."""

    kind: CastKind
    node: str = ""
    # if_low, if_fp32: names of nodes; None stands for somebody who is always low, or always FP32.
    if_low: tuple[str, ...] | None
    if_fp32: tuple[str, ...] | None
    cast_us: float

    def is_there(self, low: AbstractSet[str]) -> bool:
        """Whether it is there when exactly the nodes in `low` are low."""
        return (self.if_low is None or not low.isdisjoint(self.if_low)) and (
            self.if_fp32 is None or not all(map(low.__contains__, self.if_fp32))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingVersion:
    """The low version that a tensor has in the given graph."""

    name: str
    cast: str
    # Whether the Cast makes the FP32 tensor out of the low one; otherwise it makes the low one.
    is_source: bool
    copies: tuple[str, ...] = ()  # further Casts that make the same low tensor once more


@dataclass(frozen=True, slots=True, kw_only=True)
class CastSite:
    """An FP32 tensor around which Casts may be needed."""

    tensor: str
    # The node that makes it low when it is low itself; None for graph inputs and for tensors that are FP32
    # whatever their node's precision.
    producer: str | None
    consumers: tuple[str, ...]  # nodes that read it low when they are low themselves, each once
    # Whether somebody wants it in FP32 for ever: the graph's caller, or a port of fixed type.
    needs_fp32: bool
    existing: ExistingVersion | None = None
    # The Cast of the given graph that makes it out of another type; it makes the low version instead where
    # nobody wants FP32, and ONNX Runtime would leave out one of two Casts in a row. None otherwise.
    retyped: str | None = None
    cast_us: float  # time of one new Cast of it, in either direction
    # Times of the Casts of `existing` that can go, by node name.
    existing_us: Mapping[str, float] = field(default_factory=lambda: _NONE_US)
    casts: tuple[PossibleCast, ...] = field(init=False)  # the Casts in question; follows from the above

    def __post_init__(self) -> None:
        if self.existing_us is not _NONE_US:
            object.__setattr__(self, "existing_us", MappingProxyType(dict(self.existing_us)))
        object.__setattr__(self, "casts", tuple(self._possible()))

    def _possible(self) -> Iterator[PossibleCast]:
        if_fp32 = None if self.needs_fp32 else self.consumers
        if_produced_fp32: tuple[str, ...] | None = None if self.producer is None else (self.producer,)
        if self.retyped is not None and not self.needs_fp32:
            if len(self.consumers) > 1:
                yield PossibleCast(
                    kind=CastKind.DOWN, if_low=self.consumers, if_fp32=self.consumers, cast_us=self.cast_us
                )
        elif self.existing is None and self.consumers:
            yield PossibleCast(
                kind=CastKind.DOWN, if_low=self.consumers, if_fp32=if_produced_fp32, cast_us=self.cast_us
            )
        if self.producer is not None and (self.needs_fp32 or self.consumers):
            yield PossibleCast(
                kind=CastKind.UP, if_low=(self.producer,), if_fp32=if_fp32, cast_us=self.cast_us
            )
        if self.existing is None:
            return
        stays_while = if_produced_fp32
        if self.existing.is_source:  # one that only readers of shapes are left of stays
            stays_while = if_fp32 if self.consumers else None
        for node, cast_us in self.existing_us.items():
            yield PossibleCast(
                kind=CastKind.EXISTING, node=node, if_low=None, if_fp32=stays_while, cast_us=cast_us
            )

    def new_cast(self, low: AbstractSet[str]) -> PossibleCast | None:
        """The Cast that `low` makes necessary here; there is never more than one."""
        new = (cast for cast in self.casts if cast.kind is not CastKind.EXISTING)
        return next((cast for cast in new if cast.is_there(low)), None)

    def new_cast_us(self, low: AbstractSet[str]) -> float:
        """Time of that Cast, or 0."""
        cast = self.new_cast(low)
        return 0.0 if cast is None else cast.cast_us

    def dropped(self, low: AbstractSet[str]) -> tuple[PossibleCast, ...]:
        """Existing Casts that nobody needs any more."""
        if self.existing is None:
            return ()
        return tuple(c for c in self.casts if c.kind is CastKind.EXISTING and not c.is_there(low))

    def is_made_low(self, low: AbstractSet[str]) -> bool:
        """Whether the node that makes it makes it low."""
        return self.is_retyped(low) or (self.producer is not None and self.producer in low)

    def is_retyped(self, low: AbstractSet[str]) -> bool:
        """Whether a Cast from another type makes it low, as all that read it are low."""
        is_wanted_low = not self.needs_fp32 and bool(self.consumers)
        return self.retyped is not None and is_wanted_low and all(name in low for name in self.consumers)


def cast_sites(
    view: GraphView,
    ports: Mapping[str, Ports],
    precision: Precision,
    cast: CastModel,
    node_us: Mapping[str, float],
    factors: Mapping[str, float] = MappingProxyType({}),
) -> Mapping[str, CastSite]:
    """List the tensors around which Casts may be needed, by name.

    Constants need none: a low version of theirs is written into the file.

    `node_us`: times of nodes as given: those of Casts count.
    `factors`: what a Cast of a tensor costs in Casts, where that is not one.
    """
    producers = {node.outputs[i]: node.name for node in view.nodes for i in ports[node.name].low_outputs}
    makes_low = {tensor: name for tensor, name in producers.items() if not ports[name].follows_readers}
    follows = {tensor: name for tensor, name in producers.items() if ports[name].follows_readers}
    existing = existing_versions(view, precision)
    sites: dict[str, CastSite] = {}
    for tensor, info in view.tensors.items():
        if info.dtype != FLOAT or info.kind is TensorKind.CONSTANT:
            continue
        version = existing.get(tensor)
        # Existing Casts to the low precision do not want FP32 for ever: they can go, or follow.
        excused = () if version is None or version.is_source else (version.cast, *version.copies)
        consumers: dict[str, None] = {}
        needs_fp32 = info.is_output
        for use in view.consumers.get(tensor, ()):
            consumer_ports = ports[use.node]
            if use.position in consumer_ports.low_inputs:
                consumers[use.node] = None
            elif use.position not in consumer_ports.any_inputs and use.node not in excused:
                needs_fp32 = True
        if consumers or tensor in makes_low:
            sites[tensor] = CastSite(
                tensor=tensor,
                producer=makes_low.get(tensor),
                consumers=tuple(consumers),
                needs_fp32=needs_fp32,
                existing=version,
                retyped=follows.get(tensor) if version is None else None,
                cast_us=cast.cast_us(info.elements or 0) * factors.get(tensor, 1.0),
                existing_us={name: node_us[name] for name in _can_go(version, view)} or _NONE_US,
            )
    return MappingProxyType(sites)


@remembered
def existing_versions(view: GraphView, precision: Precision) -> Mapping[str, ExistingVersion]:
    """Find the FP32 tensors that Casts of the given graph relate to a low version; the first one counts."""
    versions: dict[str, ExistingVersion] = {}
    for node in view.nodes:
        if node.op != CAST:
            continue
        source, target = node.inputs[0], node.outputs[0]
        if view.is_float32(source) and view.tensors[target].dtype == precision.onnx_dtype:
            first = versions.get(source)
            if first is None:
                versions[source] = ExistingVersion(name=target, cast=node.name, is_source=False)
            elif not first.is_source:
                versions[source] = replace(first, copies=(*first.copies, node.name))
        elif view.is_float32(target) and view.tensors[source].dtype == precision.onnx_dtype:
            versions.setdefault(target, ExistingVersion(name=source, cast=node.name, is_source=True))
    return MappingProxyType(versions)


def is_pinned(cast: OpNode, view: GraphView) -> bool:
    """Whether the result of an existing Cast has to keep its name: an output, or read by a body."""
    target = cast.outputs[0]
    uses = view.consumers.get(target, ())
    return view.tensors[target].is_output or any(use.position == CAPTURE for use in uses)


def _can_go(version: ExistingVersion | None, view: GraphView) -> Iterator[str]:
    if version is not None:
        yield version.cast
        yield from (name for name in version.copies if not is_pinned(view.node[name], view))
