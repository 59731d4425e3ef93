"""Nodes that no strategy may touch, each with the rule that says so."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.origin import asks_for_fp32
from campo_onnx.ir.view import OpNode
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.ports import NO_FP32, Ports
from campo_onnx.ops.precision import Precision, is_low_dtype
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.registry import current
from campo_onnx.ops.schema import has_cast_to
from campo_onnx.ops.spec import Movement
from campo_onnx.optimize.name_patterns import matching, pattern_of
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.values.graph_values import fixed_tensors
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.optimize.values.verdicts import value_verdicts
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.targets.target import Target

_COPIES = frozenset({Movement.VIEW, Movement.REORDER})
_COMPARISONS = op_keys("Equal Greater GreaterOrEqual Less LessOrEqual")


def fixed_nodes(
    imported: Imported,
    ports: Mapping[str, Ports],
    *,
    low: Precision,
    target: Target | None,
    protected: Mapping[str, Reason],
    keep_fp32: Sequence[str] = (),
    declared: Mapping[str, DeclaredRange] = MappingProxyType({}),
    low_as_given: frozenset[str] = frozenset(),
) -> Mapping[str, Verdict]:
    """Find the nodes that stay as they are, whatever lists and costs say.

    `keep_fp32`: regular expressions; a node stays FP32 if one matches its whole name, its operator's label,
    or the path of a module it is in.
    `target`: what the plan is for; None where kernels are not those of a runtime, which could lack some.
    `low_as_given`: nodes that are low in the given file: no rule about values raises them, kernels and the
    user may.
    """
    view = imported.view
    # Modules count only where there are expressions: their paths are put together from names.
    named = ((node.name, node.op.label, *node.modules) for node in view.nodes) if keep_fp32 else ()
    names = dict.fromkeys(text for texts in named for text in texts)
    by_name = matching([pattern_of(text) for text in keep_fp32], names)

    runtime = DEFAULT if target is None else target.runtime.name
    provider = target.hardware.processor if target is not None and runtime == DEFAULT else runtime
    would_lose = value_verdicts(imported, ports, low, declared)

    def verdict_of(node: OpNode) -> Verdict | None:
        own = ports[node.name]
        if own == NO_FP32 or not any(map(view.is_float32, (*node.inputs, *node.outputs, *node.captures))):
            return _already_or_never(node, imported)
        if node.name in protected and node.name not in low_as_given:
            return protected[node.name].of()
        if own.refusal:
            return Verdict.refused(own.refusal)
        if by_name and not by_name.isdisjoint((node.name, node.op.label, *node.modules)):
            return Reason.USER.of()
        if asks_for_fp32(node.name):
            return Reason.DEMANDED.of()
        if not has_cast_to(low, view.opset[""]):
            return Verdict.refused(Refused.NO_CAST.of(low=low.value, opset=view.opset[""]))
        signature = view.signature(node.name)
        facts = {"provider": provider, "low": low.value, "op": node.op.label}
        if target is not None and target.support(signature, low) is Support.REFUSED:
            return Reason.KERNEL.of(**facts)
        if node.name in low_as_given:
            return None
        if target is not None and target.sums_low(signature, low):
            return Reason.SUMS_LOW.of(**facts)
        return would_lose.get(node.name)

    verdicts: dict[str, Verdict] = {}
    for node in view.nodes:
        verdict = verdict_of(node) or _of_compared(node, verdicts, imported, low)
        verdicts.update({node.name: verdict} if verdict else {})
    return {**_of_copies(verdicts, imported), **verdicts}


def _of_compared(
    node: OpNode, verdicts: Mapping[str, Verdict], imported: Imported, low: Precision
) -> Verdict | None:
    """A backward pass compares again what a Clip, a Min or a Max of the forward pass chose from."""
    view = imported.view
    if node.op not in _COMPARISONS or node.name in imported.low_as_given:
        return None
    producers = {t: view.producer[t].name for t in node.inputs if t in view.producer and view.is_float32(t)}
    if not producers or not verdicts.keys() >= set(producers.values()):
        return None
    return Reason.COMPARED.of(tensor=next(iter(producers)), low=low.value)


def _of_copies(verdicts: Mapping[str, Verdict], imported: Imported) -> Mapping[str, Verdict]:
    """Nodes that hand on what stays FP32, or compute constants, for nodes that stay FP32 alone.

    What those read must not be rounded on the way.
    """
    view, specs, fixed = imported.view, current(), fixed_tensors(imported.view)
    sources: dict[str, str] = {}  # by node: what it hands on, or the constant that it computes
    for node in view.nodes:
        if node.name in verdicts or node.name in imported.low_as_given or not node.inputs:
            continue
        if fixed.issuperset(filter(None, node.outputs)):
            if constants := [t for t in node.outputs if t in view.consumers]:
                sources[node.name] = constants[0]
            continue
        producer = view.producer.get(node.inputs[0])
        is_copy = specs.spec(node.op).movement in _COPIES and view.is_float32(node.outputs[0])
        if is_copy and producer is not None and (producer.name in verdicts or producer.name in sources):
            sources[node.name] = node.inputs[0]
    copies: dict[str, Verdict] = {}
    for node in reversed(view.nodes):
        if node.name in sources:
            readers = {use.node for tensor in node.outputs for use in view.consumers.get(tensor, ())}
            if all(reader in verdicts or reader in copies for reader in readers):
                copies[node.name] = Reason.HANDED_ON.of(tensor=sources[node.name])
    return copies


def _already_or_never(node: OpNode, imported: Imported) -> Verdict:
    tensors = imported.view.tensors
    if any(is_low_dtype(tensors[t].dtype) for t in (*node.inputs, *node.outputs) if t):
        return Reason.ALREADY_LOW.of()
    return Reason.NO_FP32.of()
