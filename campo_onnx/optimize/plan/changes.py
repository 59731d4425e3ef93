"""Every change of a graph when some of its nodes are low: what a plan says, and what is checked of it."""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from campo_onnx.ir.view import FLOAT, GraphView, OpNode, TensorKind, Use
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.casts import CastKind, CastSite, existing_versions
from campo_onnx.optimize.plan.edits import ExistingCast, LowConstant, PlannedCast


class NodeChange(NamedTuple):
    """Precision of a node, and what changes at it, as its Decision has it."""

    precision: Precision | None
    low_inputs: tuple[int, ...] = ()
    low_outputs: tuple[int, ...] = ()
    attribute: str = ""
    follows: tuple[int, ...] = ()


class Changes:
    """Changes of a graph in which exactly some nodes are low.

    `node_us`: times by node: those of Casts of the given graph count.

    Its `casts`, `dropped`, `reused` and `constants` are as in :class:`campo_onnx.optimize.plan.plan.Plan`;
    `retyped` are Casts from another type that make the low type at once.
    """

    def __init__(
        self,
        view: GraphView,
        ports: Mapping[str, Ports],
        precision: Precision,
        sites: Mapping[str, CastSite],
        node_us: Mapping[str, float],
        low: Collection[str],
    ) -> None:
        self.view, self.ports, self.precision = view, ports, precision
        self.sites, self.node_us, self.low = sites, node_us, frozenset(low)
        self.retyped = {site.retyped for site in sites.values() if site.is_retyped(self.low)}
        self.existing = existing_versions(view, precision)
        self.casts = tuple(self._casts())
        self.dropped = tuple(self._dropped())
        self.reused = tuple(self._reused({cast.node for cast in self.dropped}))
        self.constants = tuple(self._constants())

    def at(self, name: str) -> NodeChange:
        """Say what changes at a node."""
        node, ports, follows = self.view.node[name], self.ports[name], tuple(self._followed(name))
        if name not in self.low and name not in self.retyped:
            return NodeChange(_precision_of(node, self.view), follows=follows)
        inputs, outputs = _in_order(ports.low_inputs), _in_order(ports.low_outputs)
        return NodeChange(self.precision, inputs, outputs, ports.attribute or "", follows)

    def _followed(self, name: str) -> Iterator[int]:
        """Positions of inputs that the node reads in whatever precision is there, where that is low."""
        any_inputs = self.ports[name].any_inputs
        for position, tensor in enumerate(self.view.node[name].inputs):
            site = self.sites.get(tensor)
            is_any = position in any_inputs
            if site is None or (site.existing is None and not is_any):
                continue
            existing = site.existing
            dropped = [cast.node for cast in site.dropped(self.low)]
            if existing is not None and name in existing.copies and name not in dropped:
                # A copy that keeps its name casts from low to low where there is no FP32 version.
                follows = site.is_made_low(self.low)
            elif is_any:
                gone = existing is not None and existing.is_source and existing.cast in dropped
                follows = gone or (site.is_made_low(self.low) and site.new_cast(self.low) is None)
            else:
                follows = False
            if follows:
                yield position

    def _low_uses(self, tensor: str) -> tuple[Use, ...]:
        """The readings of a tensor in the low precision."""
        return tuple(
            use
            for use in self.view.consumers.get(tensor, ())
            if use.node in self.low and use.position in self.ports[use.node].low_inputs
        )

    def _fp32_uses(self, site: CastSite) -> tuple[Use, ...]:
        """The readings that want a tensor in FP32."""
        low = set(self._low_uses(site.tensor))
        existing = site.existing
        excused = () if existing is None else (existing.cast, *existing.copies)
        return tuple(
            use
            for use in self.view.consumers.get(site.tensor, ())
            if use not in low
            and use.position not in self.ports[use.node].any_inputs
            and use.node not in excused
        )

    def _casts(self) -> Iterator[PlannedCast]:
        for site in self.sites.values():
            cast = site.new_cast(self.low)
            if cast is None:
                continue
            goes_down = cast.kind is CastKind.DOWN
            producer = self.view.producer.get(site.tensor)
            yield PlannedCast(
                tensor=site.tensor,
                src=Precision.FP32 if goes_down else self.precision,
                dst=self.precision if goes_down else Precision.FP32,
                producer=producer.name if producer is not None else "",
                consumers=self._low_uses(site.tensor) if goes_down else self._fp32_uses(site),
                cast_us=cast.cast_us,
            )

    def _dropped(self) -> Iterator[ExistingCast]:
        for site in self.sites.values():
            for cast in site.dropped(self.low):
                assert site.existing is not None
                if site.existing.is_source:
                    consumers = tuple(self.view.consumers[site.tensor])  # all, or it would stay
                elif cast.node in site.existing.copies:
                    target = self.view.node[cast.node].outputs[0]
                    consumers = tuple(self.view.consumers.get(target, ()))
                else:
                    consumers = ()  # the producer makes what they read, under the same name
                yield ExistingCast(
                    node=cast.node,
                    tensor=site.tensor,
                    low_tensor=site.existing.name,
                    consumers=consumers,
                    cast_us=cast.cast_us,
                )

    def _reused(self, dropped: set[str]) -> Iterator[ExistingCast]:
        for tensor, existing in self.existing.items():
            site = self.sites.get(tensor)
            consumers = self._low_uses(tensor)
            if existing.cast in dropped or not consumers or (site and site.is_made_low(self.low)):
                continue
            yield ExistingCast(
                node=existing.cast,
                tensor=tensor,
                low_tensor=existing.name,
                consumers=consumers,
                cast_us=self.node_us[existing.cast],
            )

    def _constants(self) -> Iterator[LowConstant]:
        for tensor, info in self.view.tensors.items():
            if info.kind is not TensorKind.CONSTANT or tensor in self.existing:
                continue
            consumers = self._low_uses(tensor)
            if consumers:
                everybody = len(self.view.consumers[tensor]) == len(consumers)
                yield LowConstant(
                    tensor=tensor, consumers=consumers, keeps_fp32=not everybody or info.is_output
                )


def _precision_of(node: OpNode, view: GraphView) -> Precision | None:
    """Return the precision that a node has in a graph as it is; None where it computes no such type."""
    dtypes = {view.tensors[tensor].dtype for tensor in (*node.inputs, *node.outputs) if tensor}
    if FLOAT in dtypes:
        return Precision.FP32
    return next((p for p in low_precisions() if p.onnx_dtype in dtypes), None)


@cache
def _in_order(positions: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(positions))
