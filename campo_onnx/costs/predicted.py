"""Predict the costs of a graph from a calibration: the paper's way (Campo, 4.2)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from campo_onnx.calibrate.calibration import Calibration, OpEntry
from campo_onnx.calibrate.in_step import Part
from campo_onnx.calibrate.run import takes_tensor_cores
from campo_onnx.calibrate.samples import SMALLEST_ELEMENTS
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.parts import parts_of, relaid
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.events import events_of, static_events
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.key import CONSTANT
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.targets.cast_model import CastModel


class CostModel:
    """Cost models of a calibrated device."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration, self._target = calibration, calibration.target
        self._entries = {(entry.op, entry.on_tensor_cores): entry for entry in calibration.entries}

    def predict(
        self,
        view: GraphView,
        ports: Mapping[str, Ports],
        fp32_us: Mapping[str, float] | None = None,
        counters: Mapping[str, Mapping[str, float]] | None = None,
    ) -> CostTable:
        """Predict every node of a graph.

        `fp32_us`: measured FP32 times by node name (a profile); nodes that are missing, or all without a
        profile, are predicted from their shapes.
        `counters`: hardware counters in FP32 by node name (a profile), for the models that read them.
        """
        measured, counted = fp32_us or {}, counters or {}
        calibration = self.calibration
        parts = parts_of(view) if calibration.in_step is not None else {}
        nodes = {}
        for node in view.nodes:
            name, part = node.name, parts.get(node.name)
            signature = view.signature(name)
            if part is Part.LAYOUTS and signature.stands_alone:
                cost = self._node_cost(name, relaid(signature), ports[name], measured.get(name), {})
            else:
                cost = self._node_cost(
                    name, signature, ports[name], measured.get(name), counted.get(name, {})
                )
            nodes[name] = cost if part is None or name in measured else self._in_step(cost, part)
        return CostTable(
            target=self._target,
            source=CostSource.MODEL,
            nodes=nodes,
            cast=self._cast,
            basis=tuple(self._basis(len(measured))),
        )

    def _basis(self, profiled: int) -> Iterator[str]:
        calibration, machine = self.calibration, self.calibration.machine
        yield (
            f"calibrated on {machine.device} ({machine.provider}) with {machine.software}, "
            f"{calibration.measured_at}: models of {calibration.operators} operators"
        )
        if calibration.score is not None:
            yield f"accuracy M_A of these models on shapes kept out of the fit: {calibration.score:.1%}"
        if (in_step := calibration.in_step) is not None and in_step.steps:
            yield (
                f"corrected by {in_step.steps} measured steps of {in_step.graphs} graphs: mean error of the "
                f"steps of a graph kept out {in_step.error:.1%}, uncorrected {in_step.error_alone:.1%}"
            )
        if profiled:
            yield f"FP32 times of {profiled:,} nodes are from a profile of this graph"

    @property
    def _cast(self) -> CastModel:
        in_step = self.calibration.in_step
        return self.calibration.cast.scaled(1.0 if in_step is None else in_step.factor(Part.CASTS))

    def _in_step(self, cost: NodeCost, part: Part) -> NodeCost:
        factor = 1.0 if self.calibration.in_step is None else self.calibration.in_step.factor(part)
        return replace(cost, fp32_us=cost.fp32_us * factor, low_us=cost.low_us * factor)

    def _node_cost(
        self,
        node: str,
        signature: Signature,
        ports: Ports,
        measured_us: float | None,
        counters: Mapping[str, float],
    ) -> NodeCost:
        calibration = self.calibration
        if signature.op == CONSTANT:
            return _fixed(node, 0.0, CostSource.MODEL)
        if not signature.stands_alone:
            source = CostSource.MODEL if measured_us is not None else CostSource.UNKNOWN
            return _fixed(node, measured_us or 0.0, source)
        if work_of(signature).kind in HOST_ONLY:
            host_us = calibration.host_us if measured_us is None else measured_us
            return _fixed(node, host_us, CostSource.MODEL)
        on_tensor_cores = takes_tensor_cores(signature, self._target, calibration.precision)
        entry = self._entry(signature.op.label, on_tensor_cores)
        fp32_us = self._fp32_us(signature, entry) if measured_us is None else measured_us
        source = CostSource.MODEL if entry is not None else CostSource.GENERAL
        if ports.refusal:
            return _fixed(node, fp32_us, source)
        events = {**events_of(signature, fp32_us, self._target), **counters}
        model = entry.model if entry is not None else calibration.general
        if entry is not None and entry.with_counters is not None and entry.with_counters.reads(events):
            model = entry.with_counters
        low_us = model.low_us(fp32_us, events)
        # Without arithmetic there are FP32 kernels between Casts. Nothing was learned of nodes smaller than
        # all samples: no gain is counted on there.
        if not self._target.computes_in(calibration.precision) or _is_small(signature):
            low_us = max(low_us, fp32_us)
        return NodeCost(
            node=node,
            fp32_us=fp32_us,
            low_us=max(low_us, 0.0),
            on_tensor_cores=on_tensor_cores,
            source=source,
        )

    def _entry(self, label: str, on_tensor_cores: bool) -> OpEntry | None:
        # A short calibration may have met too few aligned shapes, or too few others.
        return self._entries.get((label, on_tensor_cores)) or self._entries.get((label, not on_tensor_cores))

    def _fp32_us(self, signature: Signature, entry: OpEntry | None) -> float:
        time = entry.time if entry is not None else self.calibration.general_time
        return time.fp32_us(static_events(signature, self._target))


def _is_small(signature: Signature) -> bool:
    elements = (math.prod(operand.shape or ()) for operand in signature.operands if operand.dtype)
    return max(elements, default=0) < SMALLEST_ELEMENTS


def _fixed(node: str, time_us: float, source: CostSource) -> NodeCost:
    return NodeCost(node=node, fp32_us=time_us, low_us=time_us, on_tensor_cores=False, source=source)
