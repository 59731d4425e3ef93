"""Check that a plan holds together, and with its graph, before anything of it is written.

A plan says many things twice, so that it can be read: the nodes that run low and the Casts they need, the
Casts and who reads them. Whoever executes it would follow one of the two. So it is compared with the changes
that its low nodes need. Reasons and classes explain and are not compared; times are, in their sums.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import OpNode, Use
from campo_onnx.ops.facts import ports_of
from campo_onnx.optimize.casts import cast_sites
from campo_onnx.optimize.padding.alignment import Alignment, Ends, alignment_of
from campo_onnx.optimize.plan.changes import Changes
from campo_onnx.optimize.plan.edits import PadBy, PaddedTensor
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import targets

_FREE = CastModel(r_us=0.0, c_i_us=0.0)
"""Casts without a price: only which ones there are is asked."""

_CLOSE = 1e-6
"""Share of the step by which sums of times may differ: they are added in another order."""

_Longer: TypeAlias = dict[str, tuple[Ends, bool]]
"""By how much outputs of padded nodes are longer, and whether by zeros."""


def check_consistent(plan: Plan, imported: Imported) -> None:
    """Refuse a plan that contradicts itself or the graph.

    Raises PlanMismatchError if it was made for another graph, or a line of it was changed, dropped or added.
    """
    plan.check_fits(imported)
    for why in _Comparison(plan, imported).contradictions():
        raise PlanMismatchError(
            "the plan cannot be executed", why=why, remedy="Plan the model again; plans cannot be edited."
        )


class _Comparison:
    """One run of :func:`check_consistent`; each method yields what contradicts what."""

    def __init__(self, plan: Plan, imported: Imported) -> None:
        self.plan, self.imported, self.view = plan, imported, imported.view
        ports = {node.name: ports_of(self.view.signature(node.name), plan.low) for node in self.view.nodes}
        node_us = {decision.node: decision.fp32_us for decision in plan.decisions}
        sites = cast_sites(self.view, ports, plan.low, _FREE, node_us)
        low = [name for name in plan.low_nodes if not ports[name].follows_readers]
        self.changes = Changes(self.view, ports, plan.low, sites, node_us, low)

    def contradictions(self) -> Iterator[str]:
        """Yield all of them, each as a clause."""
        for decision in self.plan.decisions:
            node, change = self.view.node[decision.node], self.changes.at(decision.node)
            if decision.op_type != node.op.label:
                yield f"node {node.name!r} is a {node.op.label}, not a {decision.op_type}"
            if any(getattr(decision, name) != value for name, value in change._asdict().items()):
                yield f"node {node.name!r} cannot have the precision, inputs and outputs that it says"
        plan, changes = self.plan, self.changes
        casts = [replace(cast, cast_us=0.0) for cast in plan.casts]
        yield from _differences("Cast of tensor", "tensor", casts, changes.casts)
        yield from _differences("Cast that is left out", "node", plan.dropped, changes.dropped)
        yield from _differences("Cast of the given graph", "node", plan.reused, changes.reused)
        yield from _differences("low version of constant", "tensor", plan.constants, changes.constants)
        yield from self._of_pads()
        yield from self._of_sums()
        for name in self.plan.ranges:
            if name not in self.view.inputs:
                yield f"it relies on a range of {name!r}, which is not an input of the graph"

    # --- padding ---

    def _of_pads(self) -> Iterator[str]:
        longer: _Longer = {}
        chained = {
            Use(pad.node, part.position)
            for pad in self.plan.pads
            for part in pad.inputs
            if part.by is PadBy.CHAIN
        }
        for pad in self.plan.pads:
            node = self.view.node[pad.node]
            output = {} if pad.output is None else {pad.output.position: pad.output.ends}
            ends = {part.position: part.ends for part in pad.inputs}, output
            alignment = next((fit for fit in self._alignments(node) if _ends_of(fit) == ends), None)
            if alignment is None or not self.plan.decision[pad.node].is_lowered:
                yield f"node {pad.node!r} is not padded to a size that fits tensor cores"
                continue
            for part in pad.inputs:
                if part.tensor != node.inputs[part.position] or not self._has_source(part, longer):
                    yield f"{part.tensor!r} cannot be padded for node {pad.node!r} by {part.by}"
            if pad.output is not None:
                longer[pad.output.tensor] = pad.output.ends, alignment.zero_filled
                yield from self._of_padded_output(pad.output, node.outputs[0], chained)

    def _alignments(self, node: OpNode) -> Iterator[Alignment]:
        """Give the sizes that fit some device; a plan may name one that is not among ours."""
        for multiples in dict.fromkeys(one.hardware.multiples(self.plan.low) for one in targets().values()):
            if (alignment := alignment_of(node, self.view, multiples)) is not None:
                yield alignment

    def _has_source(self, part: PaddedTensor, longer: _Longer) -> bool:
        is_chain = longer.get(part.tensor) == (part.ends, True)
        if part.by is PadBy.FILE:
            stored = self.imported.constants.get(part.tensor)
            is_low = any(constant.tensor == part.tensor for constant in self.plan.constants)
            return is_low and stored is not None and not is_external(stored)
        return is_chain if part.by is PadBy.CHAIN else part.by is PadBy.PAD and not is_chain

    def _of_padded_output(self, part: PaddedTensor, tensor: str, chained: set[Use]) -> Iterator[str]:
        others = [use for use in self.view.consumers.get(tensor, ()) if use not in chained]
        is_cut = bool(others) or self.view.tensors[tensor].is_output
        if part.tensor != tensor or part.by is not (PadBy.SLICE if is_cut else PadBy.CHAIN):
            yield f"the padded {part.tensor!r} cannot be left to its readers by {part.by}"

    # --- times ---

    def _of_sums(self) -> Iterator[str]:
        plan = self.plan
        fp32_us = math.fsum((plan.unassigned_us, *(d.fp32_us for d in plan.decisions)))
        predicted_us = math.fsum(
            (
                plan.unassigned_us,
                *(d.planned_us for d in plan.decisions),
                *(cast.cast_us for cast in plan.casts),
                *(-cast.cast_us for cast in plan.dropped),
            )
        )
        within = _CLOSE * max(abs(fp32_us), abs(predicted_us))
        if abs(plan.fp32_us - fp32_us) > within:
            yield f"its nodes take {fp32_us:g} us in FP32, and it says {plan.fp32_us:g}"
        if abs(plan.predicted_us - predicted_us) > within:
            yield f"its nodes and Casts take {predicted_us:g} us, and it says {plan.predicted_us:g}"
        if plan.lower_bound_us is not None and plan.lower_bound_us > plan.predicted_us + within:
            yield f"it takes {plan.predicted_us:g} us, which is below what it calls a lower bound"


def _differences(what: str, key: str, planned: Sequence[Any], needed: Sequence[Any]) -> Iterator[str]:
    """Compare rows of a plan with those that its low nodes need."""
    rows, others = ({getattr(row, key): row for row in side} for side in (planned, needed))
    for name in {**rows, **others}:
        if name not in others:
            yield f"it has a {what} {name!r} that nothing in it needs"
        elif name not in rows:
            yield f"it lacks a {what} {name!r} that its low nodes need"
        elif rows[name] != others[name]:
            yield f"its {what} {name!r} is not as its low nodes need it"


def _ends_of(alignment: Alignment) -> tuple[dict[int, Ends], dict[int, Ends]]:
    """Zeros at the ends of inputs and of the output, by position."""
    return dict(alignment.inputs), {} if alignment.output is None else {0: alignment.output}
