"""Measure the costs of a graph: every distinct node in both precisions."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from campo_onnx.calibrate.fit import fit_cast
from campo_onnx.calibrate.samples import cast_samples
from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.one_node import standalone
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import CONSTANT
from campo_onnx.ops.ports import Ports, lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.runtime.timing import SHORTEST_US
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import Target

_CASTS = 12
_LARGEST_CAST_ELEMENTS = 1 << 22


def measured_costs(
    view: GraphView,
    ports: Mapping[str, Ports],
    target: Target,
    precision: Precision,
    timer: NodeTimer,
    on_progress: Callable[[int, int], None] | None = None,
) -> CostTable:
    """Time every distinct node in both precisions: static profiling, as in the paper's section 4.2.

    A node that cannot be timed alone (control flow, an operator the provider refuses) keeps the
    estimate from figures, and its source says so. One that runs in FP32 only costs, in the low
    precision, the Casts around it.
    """
    signatures = {node.name: standalone(view, node.name) for node in view.nodes}
    distinct = dict.fromkeys(s for s in signatures.values() if s is not None and s.op != CONSTANT)
    total, done = 2 * _CASTS + len(distinct), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    sweep = []
    for elements, cast in cast_samples(_CASTS, _LARGEST_CAST_ELEMENTS, precision):
        sweep.append((elements, timer.time(cast).median_us))
        advance()
    sweep = [(elements, us) for elements, us in sweep if us > SHORTEST_US]
    cast_model = fit_cast([elements for elements, _ in sweep], [us for _, us in sweep])
    times: dict[Signature, tuple[float, float] | None] = {}
    for signature in distinct:
        times[signature] = _both_us(
            signature, precision, timer, cast_model, may_gain=target.computes_in(precision)
        )
        advance()
    estimated = estimate(view, ports, target, precision).nodes
    nodes = {}
    for node in view.nodes:
        own = signatures[node.name]
        timing = times.get(own) if own is not None else None
        nodes[node.name] = _measured_node(node, timing, estimated[node.name], ports[node.name])
    machine = timer.machine
    return CostTable(
        target=replace(target, captures=False),  # nodes are timed one after another
        source=CostSource.MEASURE,
        nodes=nodes,
        cast=cast_model,
        basis=(
            f"{len(distinct):,} distinct nodes and {len(sweep)} sizes of Cast were timed on {machine.device} "
            f"({machine.provider}) with {machine.software}",
        ),
    )


def _measured_node(
    node: OpNode, times: tuple[float, float] | None, estimated: NodeCost, ports: Ports
) -> NodeCost:
    if times is None:
        return estimated
    fp32_us, low_us = times
    return NodeCost(
        node=node.name,
        fp32_us=fp32_us,
        low_us=fp32_us if ports.refusal else low_us,
        on_tensor_cores=estimated.on_tensor_cores,
        source=CostSource.MEASURE,
    )


def _both_us(
    signature: Signature, precision: Precision, timer: NodeTimer, cast: CastModel, *, may_gain: bool
) -> tuple[float, float] | None:
    """FP32 and low-precision time of a node; None when it does not even run in FP32."""
    try:
        fp32_us = timer.time(signature).median_us
    except UnsupportedModelError:
        return None
    ports = ports_of(signature, precision)
    low = lowered(signature, ports, precision)
    if low is None:
        return fp32_us, fp32_us
    try:
        low_us = timer.time(low).median_us
    except UnsupportedModelError:
        return fp32_us, fp32_us + _surrounding_casts_us(signature, ports, cast)
    runtime = runtime_called(timer.machine.runtime)
    support = runtime.support(signature, timer.machine.provider, precision)
    if not (may_gain and support in (Support.NATIVE, Support.STORAGE)):
        # The runtime runs the FP32 kernel between Casts; anything faster than the kernel is noise. Where
        # nothing computes in the low precision, it does so even with nodes that have a kernel and only
        # move bytes, once their neighbours are treated like that.
        low_us = max(low_us, fp32_us)
    return fp32_us, low_us


def _surrounding_casts_us(signature: Signature, ports: Ports, cast: CastModel) -> float:
    operands = ports.low_among(signature.inputs, signature.outputs)
    return sum(cast.cast_us(operand.elements) for operand in operands if operand is not None)
