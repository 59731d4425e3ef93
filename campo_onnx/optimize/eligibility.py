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
from campo_onnx.ops.schema import has_cast_to
from campo_onnx.optimize.problem import Verdict
from campo_onnx.optimize.safety import scalar_inputs

OVERFLOW = "overflow"
"""Who decides about a node with a constant that overflows; such a node is unsafe like a deny node."""


def fixed_nodes(
    imported: Imported,
    ports: Mapping[str, Ports],
    *,
    low: Precision,
    provider: str,
    protected: Mapping[str, str],
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
            return Verdict(decided_by="safety", reason=protected[node.name])
        if own.refusal:
            return Verdict(decided_by="ports", reason=own.refusal)
        if any(p.fullmatch(node.name) or p.fullmatch(node.op.label) for p in kept):
            return Verdict(decided_by="user", reason="named by --keep-fp32")
        if not has_cast_to(low, view.opset[""]):
            return Verdict(decided_by="ports", reason=f"opset {view.opset['']} has no Cast to {low.value}")
        if not runs(node.op, view.opset.get(node.op.domain, 1), provider, low):
            reason = f"the {provider} provider has no {low.value} kernel for {node.op.label}"
            return Verdict(decided_by="kernel", reason=reason)
        inputs = [node.inputs[i] for i in sorted(own.low_inputs)]
        if loss := next(filter(None, map(lost, inputs)), None) or _lost_fill(node, own, low):
            return Verdict(decided_by=OVERFLOW if loss.overflows else "constant", reason=loss.reason)
        if scalars := scalar_inputs(view, inputs):
            reason = f"reads the scalar input {scalars[0]!r}, whose size the graph does not tell"
            return Verdict(decided_by="safety", reason=reason)
        return None

    found = ((node.name, verdict_of(node)) for node in view.nodes)
    return {name: verdict for name, verdict in found if verdict is not None}


def _already_or_never(node: OpNode, imported: Imported) -> Verdict:
    low_types = {Precision.FP16.onnx_dtype, Precision.BF16.onnx_dtype}
    tensors = imported.view.tensors
    if any(tensors[t].dtype in low_types for t in (*node.inputs, *node.outputs) if t):
        return Verdict(decided_by="graph", reason="low already in the given graph")
    return Verdict(decided_by="type", reason=NO_FP32.refusal)


def _lost_fill(node: OpNode, ports: Ports, low: Precision) -> ConstantLoss | None:
    if ports.attribute != "value" or "value" not in node.attributes:
        return None
    value = abs(float(node.attributes["value"].reshape(-1)[0]))
    if low.smallest_normal <= value <= low.largest or value in (0.0, float("inf")):
        return None
    reason = f"it fills with {value:.4g}, which {low.value} does not hold"
    return ConstantLoss(overflows=value > low.largest, reason=reason)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--keep-fp32 {text!r} is not a regular expression", why=str(error)) from None
