"""Plan a translated graph, with the framework on the other side of its loss."""

from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper

from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.integrations.torch_compile.settings import Settings
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sizes.any_size import AnySize
from campo_onnx.ir.sizes.formulas import ArrayFormula, Sizes, declared
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.kept_plans import form_once, planned_once
from campo_onnx.runtime.api import Program, Support
from campo_onnx.runtime.machine import CPU, DEFAULT
from campo_onnx.runtime.registry import runtime_called

_HANDOVER = "handed_to_the_framework"


class Loaded(NamedTuple):
    """A part of a graph, loaded, and what its inputs and outputs are called, in order."""

    program: Program
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A graph as it will run."""

    plan: Plan
    imported: Imported  # the graph with the plan executed; FP16 is emulated on a CPU
    runtime: str = DEFAULT
    any_size: AnySize | None = None  # the FP32 graph that runs at any size; None for one of static sizes
    sizes: Sizes = ()
    # for each tensor of a graph of any size one of its shape in the FP32 graph
    in_fp32: Mapping[str, str] = field(default_factory=dict)
    programs: dict[Hashable, Loaded] = field(default_factory=dict)

    def at(self, sizes: Sizes) -> "Planned":
        """Give the same at other sizes."""
        return replace(self, sizes=sizes)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        if self.any_size is None:
            return self.imported.view.tensors[tensor].shape or ()
        return self.any_size.shape(self.in_fp32[tensor], self.sizes)

    def nbytes(self, tensor: str) -> int:
        """Size of a tensor in memory."""
        info = self.imported.view.tensors[tensor]
        return prod(self.shape(tensor)) * helper.tensor_dtype_to_np_dtype(info.dtype).itemsize

    def declared_shape(self, tensor: str) -> tuple[int | None, ...]:
        """Shape of a tensor as a program declares it: None where it depends on sizes."""
        if self.any_size is None:
            return self.shape(tensor)
        return declared(self.any_size.shapes[self.in_fp32[tensor]])

    @property
    def by_size(self) -> Mapping[str, ArrayFormula]:
        """Constants that depend on sizes: inputs of the programs."""
        return {} if self.any_size is None else self.any_size.constants

    def constants(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Give constants that depend on sizes at those that it runs at."""
        return {name: self.by_size[name].at(self.sizes) for name in names}


def plan_graph(
    model: onnx.ModelProto,
    tangents: Mapping[str, str],
    settings: Settings,
    provider: str,
    runtime: str = DEFAULT,
) -> Planned:
    """Plan a graph and execute the plan.

    `tangents` are inputs that come with the backward pass: the gradient of which output each is. ONNX Runtime
    cannot compute in low precision on a CPU: there the graph computes in FP32 and rounds as planned.
    """
    fp32 = import_model(with_handover(model, tangents), any_type=True)
    options = settings.options(provider, runtime)
    if runtime != DEFAULT:
        fp32 = form_once(fp32, options, settings.folder)
    plan, mixed = planned_once(fp32, options, settings.folder)
    mixed = _without_handover(mixed)
    if plan.low_nodes and provider == CPU and not runtime_called(runtime).capabilities.has_low_cpu_kernels:
        mixed = emulate(mixed)
    planned = Planned(plan=plan, imported=import_model(mixed, any_type=True), runtime=runtime)
    if runtime != DEFAULT:
        _refuse_unknown(planned.imported.view, provider, runtime)
    return planned


def _refuse_unknown(view: GraphView, provider: str, runtime: str) -> None:
    support = runtime_called(runtime).support
    refused = {
        node.op.label
        for node in view.nodes
        if support(view.signature(node.name), provider, Precision.FP32) is Support.REFUSED
    }
    if refused:
        raise UnsupportedModelError(
            f"{runtime} refuses {len(refused)} operator{'s' * (len(refused) > 1)} of the graph",
            why=f"it does not run {', '.join(sorted(refused))}, or nobody tried it",
            remedy=f'Choose options={{"runtime": "{DEFAULT}"}}.',
        )


def plan_any_size(graph: AnySize, tangents: Mapping[str, str], settings: Settings, provider: str) -> Planned:
    """Plan a graph of any sizes at those of its example.

    UnsupportedModelError says that the plan holds at those sizes only: it pads tensors, or stores a low
    version of a constant that depends on sizes.
    """
    planned = plan_graph(graph.model, tangents, settings, provider)
    plan = planned.plan
    bound = [c.tensor for c in plan.constants if c.tensor in graph.constants]
    if plan.pads or bound:
        raise UnsupportedModelError(
            "the plan of a graph of changing sizes pads or stores what depends on them"
        )
    return replace(planned, any_size=graph, in_fp32=_same_shapes(graph, planned.imported.model))


def _same_shapes(graph: AnySize, mixed: onnx.ModelProto) -> Mapping[str, str]:
    """Give for each tensor one of its shape in the FP32 graph: itself, or the one of its node there."""
    before = {node.name: node.output for node in graph.model.graph.node}
    same = {name: name for name in graph.shapes}
    for node in mixed.graph.node:
        sources = before.get(node.name, node.input[:1] if node.op_type == "Cast" else ())
        for output, source in zip(node.output, sources, strict=False):
            if output not in same and source in same:
                same[output] = same[source]
    return same


def with_handover(model: onnx.ModelProto, tangents: Mapping[str, str]) -> onnx.ModelProto:
    """Let the gradients come from the node that hands the forward pass's results to the framework.

    This is how ONNX Runtime's training graphs say it, and what safety rules and loss scaling look for.
    """
    copy = deepcopy(model)
    graph = copy.graph
    present = [value for value in graph.input if value.name in tangents]
    if not present:
        return copy
    sources = [tangents[value.name] for value in present]
    outputs = [value.name for value in present]
    # Nodes of the backward pass may stand before it: the importer sorts.
    handover = helper.make_node("YieldOp", sources, outputs, name=_HANDOVER, domain=MICROSOFT)
    graph.node.insert(max(_made_at(graph.node, source) for source in sources) + 1, handover)
    graph.value_info.extend(present)
    replace_items(graph.input, [value for value in graph.input if value.name not in tangents])
    copy.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return copy


def _made_at(nodes: Sequence[NodeProto], tensor: str) -> int:
    return next((i for i, node in enumerate(nodes) if tensor in node.output), -1)


def _without_handover(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let the gradients come from outside again."""
    copy = deepcopy(model)
    graph = copy.graph
    handover = next((node for node in graph.node if node.name == _HANDOVER), None)
    if handover is None:
        return copy
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    for output, source in zip(handover.output, handover.input, strict=True):
        value = deepcopy(types.get(output, types[source]))
        value.name = output
        graph.input.append(value)
    replace_items(graph.value_info, [v for v in graph.value_info if v.name not in handover.output])
    graph.node.remove(handover)
    if not any(node.domain == MICROSOFT for node in graph.node):
        replace_items(copy.opset_import, [each for each in copy.opset_import if each.domain != MICROSOFT])
    return copy
