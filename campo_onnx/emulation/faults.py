"""Faults of a step in which some nodes are low: one batch, run in FP32 and with their rounding.

Rounding changes a step a little. A fault is what it does not explain: a tensor that is not finite although
FP32's is, whole numbers that differ, an output that is further off than the products of matrices alone, which
low precision is for, put it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.emulation.drift import Arrays, Reference, most_drift
from campo_onnx.emulation.rounded import rounded
from campo_onnx.emulation.scale_search import settled_scale
from campo_onnx.errors import ModelError
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Fact, Reason, Verdict
from campo_onnx.runtime.chunked_run import Limits, run_in_pieces
from campo_onnx.runtime.machine import Machine

Nodes: TypeAlias = frozenset[str]

MANY_TIMES = 4.0
"""By how much other nodes may add to the error that the products make by themselves."""

_LARGEST_ERROR = 1e9  # files hold no infinity
ROUNDING_AND_LAYERS = 2.0  # what is given is rounded, and what every layer makes of it
MOST_BY_CHOICE = 0.5  # an output that is off by half of itself is wrong, whatever the network chooses
_FLIPS = 4.0  # standard deviations of the share of values that a rounding pushes over a threshold

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
_EXACT = frozenset(
    {
        TensorProto.BOOL,
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    }
)
_MAKES_WHOLE = frozenset({"Ceil", "DynamicQuantizeLinear", "Floor", "QuantizeLinear", "Round"})
_CHOOSE = _MAKES_WHOLE.union(
    ("Abs", "ArgMax", "ArgMin", "Clip", "Compress", "Hardmax", "HardSigmoid", "HardSwish", "If", "LeakyRelu"),
    ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Loop", "Max", "MaxPool", "MaxPoolGrad"),
    ("MaxUnpool", "Min", "Mod", "NonMaxSuppression", "PRelu", "ReduceMax", "ReduceMin", "Relu", "ReluGrad"),
    ("RoiAlign", "Scan", "Shrink", "Sign", "ThresholdedRelu", "TopK", "Where"),
)
"""Operators whose result jumps, or changes its slope, where an input is rounded past a threshold."""

_PIECES = Limits(piece_bytes=128 << 20, held_bytes=256 << 20)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A step as it is probed."""

    model: onnx.ModelProto  # the FP32 step, or its first nodes; random nodes seeded
    view: GraphView  # the nodes of `model`, and every tensor of the step
    ports: Mapping[str, Ports]
    low: Precision
    earlier: Mapping[str, tuple[str, ...]]  # by output of `model`, the inputs that it may be a new version of
    machine: Machine
    folder: Path | None = None
    scale: str | None = None  # the scalar input that scales the loss; None for a step without one
    # Outputs behind the loss. They sum up terms of either sign, and count in view of what FP32 loses there.
    gradients: frozenset[str] = frozenset()
    # Tensors behind low gradients that nothing scales. They underflow, of which the command line warns: only
    # finiteness counts.
    ill_scaled: frozenset[str] = frozenset()

    @cached_property
    def watched(self) -> Mapping[str, int]:
        """Type of every tensor that is compared, in the order of the graph."""
        tensors = self.view.tensors  # of the step; what is low in it is emulated with further ones
        results = (t for node in self.model.graph.node for t in node.output if t in tensors)
        kinds = {t: tensors[t].dtype for t in results}
        return {t: kind for t, kind in kinds.items() if kind in _FLOATS or t in self.whole}

    @cached_property
    def whole(self) -> frozenset[str]:
        """Tensors that must not differ: floats made into whole numbers, and what no data has a part in.

        The index of a maximum is not among them: between values that are all but the same, either is right.
        """
        view = self.view
        data = (t for t in view.inputs if view.tensors[t].dtype in _FLOATS)
        weights = (t for t, info in view.tensors.items() if info.dtype in _FLOATS and t not in view.producer)
        measured = view.downstream((*data, *weights))
        return frozenset(
            t
            for node in view.nodes
            for t in node.outputs
            if t and (self._counts(node) or (t not in measured and view.tensors[t].dtype in _EXACT))
        )

    def _counts(self, node: OpNode) -> bool:
        """Whether a node makes fractions whole numbers."""
        if node.op.op_type != "Cast" or node.op.domain:
            return node.op.op_type in _MAKES_WHOLE and not node.op.domain
        before, after = (self.view.tensors[t].dtype for t in (node.inputs[0], node.outputs[0]))
        return before in _FLOATS and after in _EXACT

    @cached_property
    def chosen(self) -> frozenset[str]:
        """Tensors behind an operator that chooses by what it reads."""
        choosing = (node for node in self.view.nodes if node.op.op_type in _CHOOSE or self._counts(node))
        return self.view.downstream(t for node in choosing for t in node.outputs if t)

    @cached_property
    def scaled(self) -> frozenset[str]:
        """Tensors that the loss scale has a part in."""
        return frozenset() if self.scale is None else frozenset(self.view.downstream((self.scale,)))

    def run(self, low_nodes: Nodes, feeds: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield every tensor that is compared, with the rounding of some nodes."""
        model = rounded(self.model, low_nodes, self.ports, self.low)
        del model.graph.output[:]
        for tensor, kind in self.watched.items():
            model.graph.output.append(onnx.helper.make_tensor_value_info(tensor, kind, None))
        read = {value.name for value in model.graph.input}
        feeds = {name: value for name, value in feeds.items() if name in read}
        return run_in_pieces(model, feeds, self.machine, folder=self.folder, limits=_PIECES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Difference of a step with some low nodes from the FP32 step on one batch."""

    failure: str = ""
    # Tensors that are not finite in places where those of FP32 are, in the order of the graph.
    unfinite: tuple[str, ...] = ()
    overflowing: frozenset[str] = (
        frozenset()
    )  # tensors that are finite with a loss scale of 1; not in `unfinite`
    # By tensor of whole numbers, the share that differs, where any does.
    integers: Mapping[str, float] = field(default_factory=dict)
    # errors, conditioned: by floating-point output its relative error; and, beyond the limit, that in view of
    # what FP32 loses.
    errors: Mapping[str, float] = field(default_factory=dict)
    conditioned: Mapping[str, float] = field(default_factory=dict)


class ProbedBatch:
    """The FP32 step on one batch, and what is wrong with the same step where some nodes are low."""

    def __init__(self, subject: Subject, title: str, feeds: Arrays) -> None:
        self.title = title
        self._where: Mapping[str, Fact] = {"low": subject.low.value, "batch": title}
        self._trials: dict[Nodes, Trial] = {}
        self._subject, self._feeds = subject, feeds
        self._limit = most_drift(subject.low)
        self._unfinite: dict[str, NDArray[np.bool_]] = {}
        self._whole: dict[str, NDArray[Any]] = {}
        outputs = {value.name for value in subject.model.graph.output}
        computed = {}
        for name, value in subject.run(frozenset(), feeds):
            if value.dtype.kind == "f" and not (finite := np.isfinite(value)).all():
                self._unfinite[name] = ~finite
            if name in subject.whole:
                self._whole[name] = value
            if name in outputs:
                computed[name] = value
        self._reference = Reference(
            model=subject.model,
            feeds={v.name: feeds[v.name] for v in subject.model.graph.input if v.name in feeds},
            earlier=subject.earlier,
            machine=subject.machine,
            folder=subject.folder,
            computed=computed,
        )

    @cached_property
    def _moved_by_rounding(self) -> Mapping[str, float]:
        return self._reference.error_of_rounding(self._subject.low)

    @property
    def view(self) -> GraphView:
        """The nodes that run."""
        return self._subject.view

    @property
    def is_finite(self) -> bool:
        """Whether FP32 computes numbers, and nothing else, on this batch."""
        return not self._unfinite

    @property
    def trials(self) -> int:
        """Number of sets of low nodes that were tried."""
        return len(self._trials)

    def trial(self, low_nodes: Nodes) -> Trial:
        """Run the step with some low nodes, or remember how it ran."""
        if low_nodes not in self._trials:
            self._trials[low_nodes] = self._but_for_the_loss_scale(low_nodes)
        return self._trials[low_nodes]

    def at_settled_scale(self, low_nodes: Nodes, *, is_usual: bool) -> "ProbedBatch":
        """The same batch with the loss scale that training ends with, where the one at hand may be to blame.

        FP16 gradients that are off may have underflowed. Gradients that overflow say nothing: on unusual data
        the loss scaler skips the step, and on usual data its scale is smaller.
        """
        subject, outcome = self._subject, self.trial(low_nodes)
        if subject.scale is None or subject.low is not Precision.FP16:
            return self
        off = {name for name, error in outcome.errors.items() if error > self._limit}
        has_overflow = bool(outcome.overflowing)
        if not is_usual if has_overflow else off.isdisjoint(subject.scaled):
            return self

        def overflows(scale: float) -> bool:
            unfinite = subject.scaled.intersection(self._trial(low_nodes, self._scaled_by(scale)).unfinite)
            return not unfinite <= frozenset(outcome.unfinite)

        scale = settled_scale(overflows, first_overflows=has_overflow)
        return ProbedBatch(subject, self.title, self._scaled_by(scale))

    def _scaled_by(self, scale: float) -> Arrays:
        name = self._subject.scale
        return self._feeds if name is None else {**self._feeds, name: np.full_like(self._feeds[name], scale)}

    def effect(self, low_nodes: Nodes) -> float:
        """The largest error of an output where some nodes are low; of zeros, in view of what FP32 loses."""
        outcome = self.trial(low_nodes)
        if outcome.failure or outcome.unfinite:
            return math.inf
        zero = self._reference.zero_but_for_rounding
        errors = (
            outcome.conditioned.get(name, error) if name in zero else error
            for name, error in outcome.errors.items()
        )
        return max((*errors, *outcome.integers.values()), default=0.0)

    def _but_for_the_loss_scale(self, low_nodes: Nodes) -> Trial:
        """Leave gradients out that overflow only because of the loss scale: the loss scaler answers those."""
        outcome = self._trial(low_nodes, self._feeds)
        subject = self._subject
        overflowing = subject.scaled.intersection(outcome.unfinite)
        if not overflowing or subject.scale is None:
            return outcome
        overflowing = overflowing.difference(self._trial(low_nodes, self._scaled_by(1.0)).unfinite)
        return Trial(
            failure=outcome.failure,
            unfinite=tuple(t for t in outcome.unfinite if t not in overflowing),
            overflowing=overflowing,
            integers=outcome.integers,
            errors={t: error for t, error in outcome.errors.items() if t not in subject.scaled},
            conditioned=outcome.conditioned,
        )

    def _trial(self, low_nodes: Nodes, feeds: Arrays) -> Trial:
        subject, reference = self._subject, self._reference
        unfinite, integers, errors, conditioned = set(), {}, {}, {}
        try:
            for name, value in subject.run(low_nodes, feeds):
                if value.dtype.kind == "f" and self._is_unfinite(name, value):
                    unfinite.add(name)
                if name in self._whole and (share := self._share_differing(name, value)):
                    integers[name] = share
                if self._is_compared(name) and (error := reference.relative(name, value)):
                    errors[name] = error
                    if error > self._limit:
                        conditioned[name] = reference.conditioned(name, value)
        except ModelError as error:
            return Trial(failure=error.why or str(error))
        in_order = tuple(t for t in subject.watched if t in unfinite)
        return Trial(unfinite=in_order, integers=integers, errors=errors, conditioned=conditioned)

    def _is_compared(self, name: str) -> bool:
        outputs = self._reference.outputs
        is_float = name in outputs and outputs[name].dtype.kind == "f"
        return is_float and name not in self._unfinite and name not in self._subject.ill_scaled

    def _is_unfinite(self, name: str, value: NDArray[Any]) -> bool:
        finite = np.isfinite(value)
        if name not in self._unfinite:
            return not bool(finite.all())
        before = self._unfinite[name]
        return before.shape == value.shape and not bool((finite | before).all())

    def _share_differing(self, name: str, value: NDArray[Any]) -> float:
        before = self._whole[name]
        if before.shape != value.shape:
            return 1.0
        differs = (before != value) & ~((before != before) & (value != value))  # NaN is not another number
        return float(np.mean(differs)) if value.size else 0.0

    def faults_of_products(self, products: Nodes) -> tuple[Verdict, ...]:
        """Say what is wrong where nothing but products of matrices is low."""
        outcome = self.trial(products)
        verdicts = list(self._broken(outcome))
        for name, error in outcome.conditioned.items():
            if error > self._limit and not self._is_choice(
                name, outcome.errors.get(name, 0.0), MOST_BY_CHOICE
            ):
                explained = ROUNDING_AND_LAYERS * self._moved_by_rounding.get(name, 0.0)
                verdicts.append(self._off(name, outcome, max(self._limit, explained)))
        return tuple(verdicts)

    def faults(self, low_nodes: Nodes, careful: Trial) -> tuple[Verdict, ...]:
        """Say what is wrong beyond what the products alone make, which `careful` is the trial of."""
        outcome = self.trial(low_nodes)
        verdicts = list(self._broken(outcome))
        for name, share in outcome.integers.items():
            if share > MANY_TIMES * careful.integers.get(name, 0.0):
                verdicts.append(Reason.PROBE_INTEGERS.of(tensor=name, share=share, **self._where))
        for name, error in outcome.errors.items():
            explained = max(self._limit, MANY_TIMES * careful.errors.get(name, 0.0))
            if error > explained and not self._is_excused(name, error, outcome):
                verdicts.append(self._off(name, outcome, explained))
        return tuple(verdicts)

    def _broken(self, outcome: Trial) -> Iterator[Verdict]:
        if outcome.failure:
            yield Reason.PROBE_FAILS.of(failure=outcome.failure, **self._where)
        for name in outcome.unfinite[:1]:  # what follows from it follows
            yield Reason.PROBE_NOT_FINITE.of(tensor=name, **self._where)

    def _off(self, name: str, outcome: Trial, explained: float) -> Verdict:
        return Reason.PROBE_ERROR.of(
            tensor=name,
            error=min(outcome.errors.get(name, 0.0), _LARGEST_ERROR),
            explained=explained,
            **self._where,
        )

    def _is_excused(self, name: str, error: float, outcome: Trial) -> bool:
        """Whether FP32 itself hardly determines the output, or the network chooses by what is rounded."""
        reference, subject = self._reference, self._subject
        is_gradient = name in subject.gradients
        is_poor = name in reference.zero_but_for_rounding
        if (is_gradient or is_poor) and outcome.conditioned.get(name, 0.0) <= self._limit:
            return True
        if not is_gradient and name not in reference.bases and name not in subject.chosen:
            return False
        flips = _FLIPS * 2.0 ** (-(subject.low.fraction_bits + 1) / 2)
        return self._is_choice(name, error, MOST_BY_CHOICE if is_gradient else flips)

    def _is_choice(self, name: str, error: float, most: float) -> bool:
        """Whether FP32 moves as far when its inputs are rounded: a rectifier that chooses otherwise."""
        if error > most:
            return False
        return error <= ROUNDING_AND_LAYERS * self._moved_by_rounding.get(name, 0.0)
