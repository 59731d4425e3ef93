"""Plan a translated graph, with the framework on the other side of its loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import NodeProto, helper

from campo_onnx.emulation.numerics import emulate
from campo_onnx.integrations.torch_compile.settings import Settings
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.key import MICROSOFT
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.kept_plans import planned_once

_HANDOVER = "handed_to_the_framework"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A graph as it will run.

    Parameters
    ----------
    plan
        Every decision.
    imported
        The graph with the plan executed; emulated on a CPU.
    """

    plan: Plan
    imported: Imported


def plan_graph(
    model: onnx.ModelProto, tangents: Mapping[str, str], settings: Settings, provider: str
) -> Planned:
    """Plan a graph and execute the plan.

    Parameters
    ----------
    model
        The graph in FP32.
    tangents
        Inputs that come with the backward pass: the gradient of which output each is.
    settings
        What to decide with.
    provider
        Where it runs. A CPU has no FP16 arithmetic: there the graph computes in FP32 and rounds as planned.
    """
    given = import_model(_with_handover(model, tangents), any_type=True)
    folder = None if settings.plans is None else Path(settings.plans)
    plan, mixed = planned_once(given, settings.options(provider), folder)
    mixed = _without_handover(mixed)
    if plan.low_nodes and provider == "cpu":
        mixed = emulate(mixed)
    return Planned(plan=plan, imported=import_model(mixed, any_type=True))


def _with_handover(model: onnx.ModelProto, tangents: Mapping[str, str]) -> onnx.ModelProto:
    """Let the gradients come from the node that hands the forward pass's results to the framework.

    This is how ONNX Runtime's training graphs say it, and what safety rules and loss scaling look for.
    """
    if not tangents:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    present = {value.name: value for value in graph.input if value.name in tangents}
    if not present:
        return copy
    kept = [value for value in graph.input if value.name not in present]
    last = max(_made_at(graph.node, tangents[name]) for name in present)
    # Nodes of the backward pass may stand before it: the importer sorts.
    handover = helper.make_node(
        "YieldOp", [tangents[name] for name in present], list(present), name=_HANDOVER, domain=MICROSOFT
    )
    nodes = [*graph.node[: last + 1], handover, *graph.node[last + 1 :]]
    values = list(present.values())
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    inputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    graph.value_info.extend(values)
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    copy.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return copy


def _made_at(nodes: Sequence[NodeProto], tensor: str) -> int:
    return next((i for i, node in enumerate(nodes) if tensor in node.output), -1)


def _without_handover(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let the gradients come from outside again."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    handover = next((node for node in graph.node if node.name == _HANDOVER), None)
    if handover is None:
        return copy
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    for output, source in zip(handover.output, handover.input, strict=True):
        value = onnx.ValueInfoProto()
        value.CopyFrom(types.get(output, types[source]))
        value.name = output
        graph.input.append(value)
    graph.node.remove(handover)
    kept = [value for value in graph.value_info if value.name not in handover.output]
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    others = [
        o
        for o in copy.opset_import
        if o.domain != MICROSOFT or any(n.domain == MICROSOFT for n in graph.node)
    ]
    others = [onnx.OperatorSetIdProto.FromString(o.SerializeToString()) for o in others]
    del copy.opset_import[:]
    copy.opset_import.extend(others)
    return copy
