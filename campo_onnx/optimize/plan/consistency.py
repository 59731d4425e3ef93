"""Check that a plan holds together, and with its graph, before anything of it is written.

A plan says many things twice, so that it can be read: the nodes that run low and the Casts they need, the
Casts and who reads them. Whoever executes it would follow one of the two; here both are compared, and with
the graph. Reasons and classes explain and are not compared; times are, in their sums.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from campo_onnx.errors import PlanMismatchError
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import CAPTURE, FLOAT, GraphView, OpNode, TensorKind, Use
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.padding.alignment import Ends, alignment_of
from campo_onnx.optimize.plan.edits import Decision, ExistingCast, PadBy, PaddedTensor, PlannedCast
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.targets.roofline import tensor_core_multiple

_CLOSE = 1e-6
"""Share of the step by which sums of times may differ: they are added in another order."""

_Longer: TypeAlias = dict[str, tuple[Ends, bool]]
"""By how much outputs of padded nodes are longer, and whether by zeros."""


def check_consistent(plan: Plan, imported: Imported) -> None:
    """Refuse a plan that contradicts itself or the graph.

    Raises
    ------
    PlanMismatchError
        If it was made for another graph, or a line of it was changed, dropped or added.
    """
    plan.check_fits(imported)
    for why in _Comparison(plan, imported).contradictions():
        raise PlanMismatchError(
            "the plan cannot be executed", why=why, remedy="Plan the model again; plans cannot be edited."
        )


def precision_of(node: OpNode, view: GraphView) -> Precision | None:
    """Return the precision that a node has in a graph as it is; None where it computes no such type."""
    dtypes = {view.tensors[tensor].dtype for tensor in (*node.inputs, *node.outputs) if tensor}
    if FLOAT in dtypes:
        return Precision.FP32
    return next((p for p in low_precisions() if p.onnx_dtype in dtypes), None)


class _Comparison:
    """One run of :func:`check_consistent`; each method yields what contradicts what."""

    def __init__(self, plan: Plan, imported: Imported) -> None:
        self.plan, self.imported, self.view = plan, imported, imported.view
        self.low_reads = {Use(d.node, i) for d in plan.decisions for i in (*d.low_inputs, *d.follows)}
        self.made_low: set[str] = set()
        self.dropped = {cast.node for cast in plan.dropped}

    def contradictions(self) -> Iterator[str]:
        """Yield all of them, each as a clause."""
        for decision in self.plan.decisions:
            yield from self._of_decision(decision)
        for cast in (*self.plan.reused, *self.plan.dropped):
            yield from self._of_existing(cast)
        for planned in self.plan.casts:
            yield from self._of_cast(planned)
        yield from self._of_low_reads()
        yield from self._of_constants()
        yield from self._of_fp32_reads()
        yield from self._of_pads()
        yield from self._of_sums()
        for name in self.plan.ranges:
            if name not in self.view.inputs:
                yield f"it relies on a range of {name!r}, which is not an input of the graph"

    def _ports(self, node: str) -> Ports:
        return ports_of(self.view.signature(node), self.plan.low)

    # --- nodes ---

    def _of_decision(self, decision: Decision) -> Iterator[str]:
        node = self.view.node[decision.node]
        if decision.op_type != node.op.label:
            yield f"node {node.name!r} is a {node.op.label}, not a {decision.op_type}"
        expected = self.plan.low if decision.is_lowered else precision_of(node, self.view)
        if decision.precision is not expected:
            yield f"node {node.name!r} cannot run in {decision.precision} as it says"
        if decision.is_lowered:
            ports = self._ports(node.name)
            positions = (tuple(sorted(ports.low_inputs)), tuple(sorted(ports.low_outputs)))
            if (decision.low_inputs, decision.low_outputs) != positions:
                yield f"node {node.name!r} runs low, and not all its inputs and outputs become low with it"
                return
            if decision.attribute != (ports.attribute or ""):
                yield f"node {node.name!r} does not type its output by {decision.attribute!r}"
            self.made_low.update(node.outputs[i] for i in decision.low_outputs)
        if decision.follows:
            is_kept_cast = self._is_cast(node.name) and node.name not in self.dropped
            either = {0} if is_kept_cast else self._ports(node.name).any_inputs
            if not either.issuperset(decision.follows) or len({*decision.follows}) < len(decision.follows):
                yield f"node {node.name!r} cannot read inputs {decision.follows} in either precision"

    def _is_cast(self, node: str) -> bool:
        op = self.view.node[node].op
        return (op.domain, op.op_type) == ("", "Cast")

    # --- who reads what ---

    def _of_low_reads(self) -> Iterator[str]:
        """Every low reading has one source, and every source its readings."""
        sources: dict[Use, list[str]] = defaultdict(list)
        for cast in self.plan.casts:
            if cast.dst is not Precision.FP32:
                _note(sources, cast.consumers, cast.tensor)
        for existing in (*self.plan.reused, *(c for c in self.plan.dropped if self._is_source(c))):
            _note(sources, existing.consumers, existing.tensor)
        for constant in self.plan.constants:
            _note(sources, constant.consumers, constant.tensor)
        for use in self.low_reads:
            tensor = self._tensor_at(use)
            if tensor is None or not self.view.is_float32(tensor):
                yield f"input {use.position} of node {use.node!r} is not FP32, and cannot be read low"
                continue
            is_made = tensor in self.made_low
            if sources.pop(use, []) != ([] if is_made else [tensor]):
                reading = f"input {use.position} of node {use.node!r} is to read {tensor!r} in"
                why = "it is made so already" if is_made else "nothing makes it so"
                yield f"{reading} {self.plan.low.value}, and {why}"
        for use, tensors in sources.items():
            yield f"{tensors[0]!r} is made low for node {use.node!r}, which does not read it so"

    def _tensor_at(self, use: Use) -> str | None:
        inputs = self.view.node[use.node].inputs
        return inputs[use.position] if 0 <= use.position < len(inputs) else None

    def _fp32_reads(self, tensor: str) -> tuple[Use, ...]:
        uses = self.view.consumers.get(tensor, ())
        return tuple(u for u in uses if u not in self.low_reads and u.node not in self.dropped)

    def _of_cast(self, cast: PlannedCast) -> Iterator[str]:
        info, producer = self.view.tensors.get(cast.tensor), self.view.producer.get(cast.tensor)
        goes_up = cast.dst is Precision.FP32
        readers = [use for use in cast.consumers if self._tensor_at(use) == cast.tensor]
        if goes_up:
            readers = [use for use in self._fp32_reads(cast.tensor) if not self._reads_any(use)]
        if not readers and not (goes_up and info is not None and info.is_output):
            yield f"it has a Cast of {cast.tensor!r} to {cast.dst.value} that nothing in it needs"
        if sorted(cast.consumers) != sorted(readers):
            yield f"the Cast of {cast.tensor!r} to {cast.dst.value} does not name all that read it so"
        if info is None or info.dtype != FLOAT or {cast.src, cast.dst} != {Precision.FP32, self.plan.low}:
            yield f"{cast.tensor!r} cannot be cast from {cast.src.value} to {cast.dst.value}"
        if goes_up is not (cast.tensor in self.made_low):
            yield f"it casts {cast.tensor!r} to {cast.dst.value}, in which it is made"
        if cast.producer != ("" if producer is None else producer.name):
            yield f"{cast.tensor!r} is not made by node {cast.producer!r}"

    def _reads_any(self, use: Use) -> bool:
        return use.position != CAPTURE and use.position in self._ports(use.node).any_inputs

    def _of_constants(self) -> Iterator[str]:
        for constant in self.plan.constants:
            info = self.view.tensors.get(constant.tensor)
            is_constant = info is not None and info.kind is TensorKind.CONSTANT
            if info is None or not is_constant or constant.tensor not in self.imported.constants:
                yield f"{constant.tensor!r} is to be converted in the file, and is not a constant"
                continue
            if not constant.consumers:
                yield f"{constant.tensor!r} is converted in the file, and nothing reads it so"
            if constant.keeps_fp32 is not (bool(self._fp32_reads(constant.tensor)) or info.is_output):
                yield f"whether {constant.tensor!r} is read in FP32 is not what it says"

    def _of_fp32_reads(self) -> Iterator[str]:
        """Tensors that are made low, or by a dropped Cast, are read in FP32 only behind a Cast."""
        cast_up = {cast.tensor for cast in self.plan.casts if cast.dst is Precision.FP32}
        gone = {cast.tensor for cast in self.plan.dropped if self._is_source(cast)}
        for tensor in (self.made_low | gone) - cast_up:
            readers = [use.node for use in self._fp32_reads(tensor)]
            if readers or self.view.tensors[tensor].is_output:
                yield f"{readers[0] if readers else 'the caller'!r} reads {tensor!r}, and nothing makes it"

    # --- Casts of the given graph ---

    def _is_source(self, cast: ExistingCast) -> bool:
        """Whether it makes the FP32 tensor out of the low one."""
        return self.view.node[cast.node].outputs == (cast.tensor,)

    def _of_existing(self, cast: ExistingCast) -> Iterator[str]:
        node = self.view.node[cast.node]
        tensors = self.view.tensors
        is_reused = cast.node not in self.dropped
        if not self._is_cast(cast.node) or {cast.tensor, cast.low_tensor} - tensors.keys():
            yield f"{cast.node!r} is not a Cast of {cast.tensor!r} to {cast.low_tensor!r}"
            return
        pair = (node.inputs[0], node.outputs[0])
        is_copy = pair[0] == cast.tensor and pair[1] != cast.low_tensor and not is_reused
        made_by = self.view.producer.get(cast.low_tensor)
        if is_copy:
            is_pair = made_by is not None and self._is_cast(made_by.name) and made_by.inputs[0] == cast.tensor
        else:
            is_pair = pair in ((cast.tensor, cast.low_tensor), (cast.low_tensor, cast.tensor))
        dtypes = tensors[cast.tensor].dtype, tensors[cast.low_tensor].dtype
        if not is_pair or dtypes != (FLOAT, self.plan.low.onnx_dtype):
            yield f"the Cast {cast.node!r} does not relate {cast.tensor!r} and {cast.low_tensor!r}"
            return
        if is_reused:
            if cast.tensor in self.made_low:
                yield f"it reuses the Cast {cast.node!r} of {cast.tensor!r}, which is made low"
            if not cast.consumers:
                yield f"it reuses the Cast {cast.node!r} for nobody"
            return
        yield from self._of_dropped(cast, pair[1], is_copy)

    def _of_dropped(self, cast: ExistingCast, target: str, is_copy: bool) -> Iterator[str]:
        consumers: Sequence[Use] = ()
        if is_copy or self._is_source(cast):
            consumers = self.view.consumers.get(target, ())
            if self.view.tensors[target].is_output or any(use.position == CAPTURE for use in consumers):
                yield f"it drops the Cast {cast.node!r}, whose result has to keep its name"
        elif cast.tensor not in self.made_low:
            yield f"it drops the Cast {cast.node!r}, and nothing else makes {target!r}"
        if sorted(cast.consumers) != sorted(consumers):
            yield f"the dropped Cast {cast.node!r} does not name all that read {target!r}"

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
            alignment = alignment_of(node, self.view, tensor_core_multiple(self.plan.low))
            output = {} if pad.output is None else {pad.output.position: pad.output.ends}
            if (
                alignment is None
                or not self.plan.decision[pad.node].is_lowered
                or {part.position: part.ends for part in pad.inputs} != alignment.inputs
                or output != ({} if alignment.output is None else {0: alignment.output})
            ):
                yield f"node {pad.node!r} is not padded to a size that fits tensor cores"
                continue
            for part in pad.inputs:
                if part.tensor != node.inputs[part.position] or not self._has_source(part, longer):
                    yield f"{part.tensor!r} cannot be padded for node {pad.node!r} by {part.by}"
            if pad.output is not None:
                longer[pad.output.tensor] = pad.output.ends, alignment.zero_filled
                yield from self._of_padded_output(pad.output, node.outputs[0], chained)

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


def _note(sources: dict[Use, list[str]], uses: Iterable[Use], tensor: str) -> None:
    for use in uses:
        sources[use].append(tensor)
