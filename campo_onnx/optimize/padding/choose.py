"""Decide which low matrix products to zero-pad until they fit tensor cores (Campo, 4.4).

A product is padded where its kernel gains more than the Pads and Slices cost that it brings. Those
are shared: one Pad serves every consumer of a tensor that wants the same, and where a padded product
feeds a padded product of the same size, neither a Slice nor a Pad is needed. Which products to pad
is therefore one question, a minimum cut like the precision itself, and answered exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from campo_onnx.ir.view import OpNode, Use
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import make_signature
from campo_onnx.optimize.casts import existing_versions
from campo_onnx.optimize.minimum_cut import Network
from campo_onnx.optimize.padding.alignment import Alignment, Axis, Ends, alignment_of
from campo_onnx.optimize.padding.terms import padded_choice, pay_for_pads
from campo_onnx.optimize.plan.edits import Decision, PadBy, PaddedTensor, PlannedPad
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Padding, PossiblePad, Problem
from campo_onnx.runtime.api import Support
from campo_onnx.targets.roofline import copy_us, node_time
from campo_onnx.targets.target import Target

_Want: TypeAlias = tuple[str, Ends]  # a tensor, and what its consumers want it longer by

_INSERTED = (OpKey("", "Pad"), OpKey("", "Slice"))
_FIRST_OPSET = 11
"""From here on both take sizes as inputs, which is how they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PadLimits:
    """Limits of padding: the tensors that may grow, and the gain that is asked."""

    # What padding one node must gain beyond its predicted cost: the paper's threshold.
    threshold_us: float = 0.0
    # Constants whose bytes are in the model file. They are padded there, at no cost; any other tensor is
    # padded in every step.
    stored: frozenset[str] = field(default_factory=frozenset)
    # Axes whose size the written file does not fix.
    open_axes: frozenset[Axis] = field(default_factory=frozenset)


NO_LIMITS = PadLimits()


def pad(
    problem: Problem,
    plan: Plan,
    target: Target,
    limits: PadLimits = NO_LIMITS,
    padded: frozenset[str] | None = None,
) -> Plan:
    """Add to a plan the pads that pay.

    It is the very plan where nothing pays, else one with pads, predicted faster.

    `target`: where the graph is to run: the roofline over its figures says by what factor padding shortens a
    kernel, and what Pads and Slices take.
    `padded`: what to pad, where the strategy chose that; None pads what pays.
    """
    links = _Links(problem, _candidates(problem, plan.low_nodes, target, limits))
    pads = _planned_pads(links, _worthwhile(links.padding(limits)) if padded is None else padded)
    saved_us = sum(pad.gain_us - pad.pads_us for pad in pads)
    if saved_us <= 0:
        return plan
    return replace(
        plan,
        pads=pads,
        decisions=_with_gains(plan.decisions, pads),
        predicted_us=plan.predicted_us - saved_us,
    )


def _worthwhile(padding: Padding) -> frozenset[str]:
    """Choose the products whose padding gains most in all."""
    network = Network(map(padded_choice, padding.gains_us))
    pay_for_pads(network, padding)
    yes = network.cut().yes
    return frozenset(name for name in padding.gains_us if padded_choice(name) in yes)


def _with_gains(decisions: Iterable[Decision], pads: Iterable[PlannedPad]) -> tuple[Decision, ...]:
    padded = {pad.node: pad for pad in pads}
    return tuple(
        replace(
            decision, gain_us=decision.gain_us + padded[decision.node].gain_us - padded[decision.node].pads_us
        )
        if decision.node in padded
        else decision
        for decision in decisions
    )


def with_padding(problem: Problem, target: Target, limits: PadLimits = NO_LIMITS) -> Problem:
    """Tell a strategy what may be padded, and what that gains and costs."""
    free = [name for name, ports in problem.ports.items() if not ports.refusal and problem.is_free(name)]
    links = _Links(problem, _candidates(problem, free, target, limits))
    return problem.with_same_casts(padding=links.padding(limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A product that padding can make fit, and what that gains before Pads and Slices."""

    node: OpNode
    alignment: Alignment
    gain_us: float
    pad_us: Mapping[_Want, float]
    slice_us: float

    @property
    def alone_us(self) -> float:
        """Pads and Slice, if nobody shares them."""
        return sum(self.pad_us.values()) + self.slice_us


def _candidates(
    problem: Problem, names: Iterable[str], target: Target, limits: PadLimits
) -> list[_Candidate]:
    """Find them among some nodes, in topological order."""
    view, low = problem.view, problem.low
    opset = view.opset.get("", 1)
    if target.tensor_flops_per_s(low) is None or opset < _FIRST_OPSET:
        return []
    inserted = (make_signature(op, [], [], opset=opset) for op in _INSERTED)
    if not all(target.support(signature, low) is Support.NATIVE for signature in inserted):
        return []
    wanted = frozenset(names)
    stored = limits.stored.difference(existing_versions(view, low))
    candidates = []
    for node in view.nodes:
        ports = problem.ports[node.name]
        if node.name not in wanted or 0 not in ports.low_outputs:
            continue
        alignment = alignment_of(node, view, target.hardware.multiples(low), limits.open_axes)
        if alignment is None or not ports.low_inputs.issuperset(alignment.inputs):
            continue
        signature = view.signature(node.name)
        kernel_us = node_time(signature, ports, target, low).time_us
        aligned_us = node_time(alignment.applied_to(signature), ports, target, low).time_us
        wants = [(node.inputs[i], ends) for i, ends in alignment.inputs.items()]
        candidates.append(
            _Candidate(
                node=node,
                alignment=alignment,
                # Costs may be measured ones, so the roofline only says what share is saved.
                gain_us=problem.costs.nodes[node.name].low_us * (1 - aligned_us / kernel_us),
                pad_us={want: 0.0 if want[0] in stored else _pad_us(problem, want, target) for want in wants},
                slice_us=_slice_us(problem, node.outputs[0], target) if alignment.output else 0.0,
            )
        )
    return candidates


def _pad_us(problem: Problem, want: _Want, target: Target) -> float:
    tensor, ends = want
    shape = problem.view.shape(tensor) or ()
    longer = np.prod([size + end for size, end in zip(shape, ends, strict=True)], dtype=float)
    return copy_us(float(np.prod(shape, dtype=float) + longer) * problem.low.itemsize_bytes, target)


def _slice_us(problem: Problem, tensor: str, target: Target) -> float:
    elements = problem.view.tensors[tensor].elements or 0
    return copy_us(2.0 * elements * problem.low.itemsize_bytes, target)


class _Links:
    """Products that share Pads, and those that may read each other's padded outputs."""

    def __init__(self, problem: Problem, candidates: Sequence[_Candidate]) -> None:
        self.candidates = candidates
        self.consumers: dict[_Want, list[str]] = {}
        self.pad_us: dict[_Want, float] = {}
        reading: dict[Use, _Want] = {}
        for c in candidates:
            self.pad_us |= c.pad_us
            for position, ends in c.alignment.inputs.items():
                want = (c.node.inputs[position], ends)
                self.consumers.setdefault(want, []).append(c.node.name)
                reading[Use(c.node.name, position)] = want
        self.producer: dict[_Want, str] = {}
        self.sliced_anyway: set[str] = set()
        for c in candidates:
            if c.alignment.output is None:
                continue
            output = (c.node.outputs[0], c.alignment.output)
            if c.alignment.zero_filled and output in self.consumers:
                self.producer[output] = c.node.name
            uses = problem.view.consumers.get(output[0], ())
            others = [use for use in uses if not c.alignment.zero_filled or reading.get(use) != output]
            if others or problem.view.tensors[output[0]].is_output:
                self.sliced_anyway.add(c.node.name)

    def padding(self, limits: PadLimits) -> Padding:
        """The same as gains and costs."""
        pads = [
            PossiblePad(
                if_padded=tuple(consumers),
                if_unpadded=(self.producer[want],) if want in self.producer else None,
                pad_us=self.pad_us[want],
            )
            for want, consumers in self.consumers.items()
        ]
        for c in self.candidates:
            chained = tuple(self.chained(c))
            if c.node.name in self.sliced_anyway or chained:
                pads.append(
                    PossiblePad(
                        if_padded=(c.node.name,),
                        if_unpadded=None if c.node.name in self.sliced_anyway else chained,
                        pad_us=c.slice_us,
                    )
                )
        return Padding(
            gains_us={c.node.name: c.gain_us for c in self.candidates},
            alone_us={c.node.name: c.alone_us for c in self.candidates},
            pads=tuple(pads),
            threshold_us=limits.threshold_us,
        )

    def chained(self, c: _Candidate) -> list[str]:
        """Candidates that could read the padded output."""
        output = (c.node.outputs[0], c.alignment.output or ())
        return self.consumers.get(output, []) if output in self.producer else []


def _planned_pads(links: _Links, chosen: frozenset[str]) -> tuple[PlannedPad, ...]:
    """Write the choice down; every Pad is charged to its first consumer."""
    paid: set[_Want] = set()
    pads = []
    for c in links.candidates:
        if c.node.name not in chosen:
            continue
        pads_us, inputs = 0.0, []
        for position, ends in c.alignment.inputs.items():
            want = (c.node.inputs[position], ends)
            by = PadBy.CHAIN
            if links.producer.get(want) not in chosen:
                by = PadBy.PAD if links.pad_us[want] else PadBy.FILE
            if by is PadBy.PAD and want not in paid:
                paid.add(want)
                pads_us += links.pad_us[want]
            inputs.append(PaddedTensor(tensor=want[0], position=position, ends=ends, by=by))
        output = None
        if c.alignment.output is not None:
            is_sliced = c.node.name in links.sliced_anyway or not chosen.issuperset(links.chained(c))
            pads_us += c.slice_us if is_sliced else 0.0
            output = PaddedTensor(
                tensor=c.node.outputs[0],
                position=0,
                ends=c.alignment.output,
                by=PadBy.SLICE if is_sliced else PadBy.CHAIN,
            )
        pads.append(
            PlannedPad(
                node=c.node.name, inputs=tuple(inputs), output=output, gain_us=c.gain_us, pads_us=pads_us
            )
        )
    return tuple(pads)
