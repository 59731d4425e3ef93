"""Which nodes no strategy may touch, and who says so."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from campo_onnx.errors import UsageError
from campo_onnx.ir.constants import ConstantLoss, loss_in
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import OpNode
from campo_onnx.ops.kernels import runs
from campo_onnx.ops.ports import NO_FP32, Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.reason import Fact, Reason, Verdict
from campo_onnx.optimize.safety import scalar_inputs

_OVERFLOWS = (Reason.OVERFLOW, Reason.FILL_OVERFLOW)


def fixed_nodes(
    imported: Imported,
    ports: Mapping[str, Ports],
    *,
    low: Precision,
    provider: str,
    protected: Mapping[str, Reason],
    keep_fp32: Sequence[str] = (),
) -> Mapping[str, Verdict]:
    """Find the nodes that stay as they are, whatever lists and costs say.

    Parameters
    ----------
    imported
        The graph.
    ports
        Ports of every node.
    low
        The low precision.
    provider
        ``"cuda"`` or ``"cpu"``: whose kernels count.
    protected
        Nodes of the loss and the weight update, with the reason.
    keep_fp32
        Regular expressions; a node whose whole name or operator label matches one stays FP32.

    Raises
    ------
    UsageError
        If a regular expression is invalid.
    """
    view = imported.view
    kept = [_pattern(text) for text in keep_fp32]

    @cache
    def lost(tensor: str) -> ConstantLoss | None:
        constant = imported.constants.get(tensor)
        return loss_in(low, constant, imported.folder) if constant is not None else None

    def verdict_of(node: OpNode) -> Verdict | None:
        own = ports[node.name]
        if own == NO_FP32 or not any(map(view.is_float32, (*node.inputs, *node.outputs, *node.captures))):
            return _already_or_never(node, imported)
        if node.name in protected:
            return Verdict(decided_by=protected[node.name])
        if own.refusal:
            return Verdict(decided_by=Reason.OPERATOR, facts={"why": own.refusal})
        if any(p.fullmatch(node.name) or p.fullmatch(node.op.label) for p in kept):
            return Verdict(decided_by=Reason.USER)
        if not runs(node.op, view.opset.get(node.op.domain, 1), provider, low):
            facts = {"provider": provider, "low": low.value, "op": node.op.label}
            return Verdict(decided_by=Reason.KERNEL, facts=facts)
        inputs = [node.inputs[i] for i in sorted(own.low_inputs)]
        if loss := next(filter(None, map(lost, inputs)), None):
            lost_facts: dict[str, Fact] = {"tensor": loss.tensor, "value": loss.value, "low": low.value}
            return Verdict(
                decided_by=Reason.OVERFLOW if loss.overflows else Reason.UNDERFLOW, facts=lost_facts
            )
        if verdict := _lost_fill(node, own, low):
            return verdict
        if scalars := scalar_inputs(view, inputs):
            return Verdict(decided_by=Reason.SCALAR_INPUT, facts={"tensor": scalars[0]})
        return None

    found = ((node.name, verdict_of(node)) for node in view.nodes)
    return {name: verdict for name, verdict in found if verdict is not None}


def _already_or_never(node: OpNode, imported: Imported) -> Verdict:
    low_types = {Precision.FP16.onnx_dtype, Precision.BF16.onnx_dtype}
    tensors = imported.view.tensors
    if any(tensors[t].dtype in low_types for t in (*node.inputs, *node.outputs) if t):
        return Verdict(decided_by=Reason.ALREADY_LOW)
    return Verdict(decided_by=Reason.NO_FP32)


def overflowing_nodes(fixed: Mapping[str, Verdict]) -> Mapping[str, str]:
    """Pick the nodes with a constant that overflows, with the sentence: they are unsafe like deny nodes."""
    return {name: verdict.reason for name, verdict in fixed.items() if verdict.decided_by in _OVERFLOWS}


def _lost_fill(node: OpNode, ports: Ports, low: Precision) -> Verdict | None:
    if ports.attribute != "value" or "value" not in node.attributes:
        return None
    value = abs(float(node.attributes["value"].reshape(-1)[0]))
    if low.smallest_normal <= value <= low.largest or value in (0.0, float("inf")):
        return None
    overflows = value > low.largest
    return Verdict(
        decided_by=Reason.FILL_OVERFLOW if overflows else Reason.FILL_UNDERFLOW,
        facts={"value": value, "low": low.value},
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--keep-fp32 {text!r} is not a regular expression", why=str(error)) from None
