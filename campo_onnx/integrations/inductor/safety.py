"""Nodes of a joint graph that may be low: this project's lists and rules, asked about a translation to ONNX.

Before the graph is translated, each operation is marked with its own name, so that the names of ONNX nodes
begin with the operation that they come from. There is one decision for each operation: where its parts
disagree, it stays FP32, but of a library kernel its products alone decide. An operation without a
translation, or one that draws random numbers, is left out of the ONNX graph: what it gives is an input there.
Fused attention is left out as well, and may be low where a list allows MatMul: its softmax is computed in
FP32 whatever its operands are. Other library kernels that are left out stay FP32.
"""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
import torch.fx.traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from campo_onnx.export.torch.origin import Origin, mark
from campo_onnx.export.torch.translate import TRANSLATIONS, translate
from campo_onnx.export.translate import UntranslatedUseError
from campo_onnx.integrations.inductor.library import ATTENTION, CONVERT, is_candidate, is_view
from campo_onnx.integrations.torch_compile.concrete import Symbols, concrete_graph, listed
from campo_onnx.integrations.torch_compile.flat import is_translatable
from campo_onnx.integrations.torch_compile.planning import with_handover
from campo_onnx.integrations.torch_compile.random_inputs import is_random
from campo_onnx.integrations.torch_compile.tracing import decompositions
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.eligibility import fixed_nodes
from campo_onnx.optimize.lists.classify import classify
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.safety import protected
from campo_onnx.optimize.updates import weight_update

_OPSET = 22  # the first that types Conv in BF16
_PRODUCTS = (Family.MATRIX_PRODUCT, Family.CONVOLUTION)
_MATMUL = OpKey("", "MatMul")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Nodes of a joint graph that may be low."""

    kernels: frozenset[torch.fx.Node]  # library kernels
    values: frozenset[torch.fx.Node]  # generated operations whose results may be stored low
    untranslated: tuple[str, ...]  # operations without a translation


def allowed(graph: torch.fx.Graph, lists: OpLists, low: Precision) -> Allowed:
    """Ask lists and safety rules which nodes may be low.

    Raises UnsupportedModelError if sizes depend on data.
    """
    parts = _Parts(graph)
    products, others = _free_parts(parts.model, lists, low)
    has_attention = lists.class_of(_MATMUL) in MAY_BE_LOW
    kernels, values = set(), set()
    for node in graph.nodes:
        if is_candidate(node):
            own = [has_attention] if node.target in ATTENTION else products.get(node.name, [])
            kernels.update([node] if own and all(own) else [])
        elif node.op == "call_function" and not is_view(node) and node.target is not CONVERT:
            own = [*products.get(node.name, ()), *others.get(node.name, ())]
            values.update([node] if own and all(own) else [])
    return Allowed(kernels=frozenset(kernels), values=frozenset(values), untranslated=parts.untranslated)


_Verdicts = Mapping[str, list[bool]]


def _free_parts(model: onnx.ModelProto | None, lists: OpLists, low: Precision) -> tuple[_Verdicts, _Verdicts]:
    """Say by operation of each of its parts that could be low whether lists and rules allow it.

    Products are apart from other parts: a library kernel is a product, and sums and moves in FP32 what else
    it does.
    """
    if model is None:
        return {}, {}
    imported = import_model(model, any_type=True)
    view = imported.view
    ports = {node.name: ports_of(view.signature(node.name), low) for node in view.nodes}
    fixed = fixed_nodes(imported, ports, low=low, target=None, protected=protected(view, lists))
    classification = classify(view, lists, weight_update(view))
    unsafe = {*fixed, *taint(view, classification)}
    free: dict[bool, dict[str, list[bool]]] = {True: {}, False: {}}
    for node in view.nodes:
        if any(ports[node.name].low_among(node.inputs, node.outputs)):
            is_product = spec(node.op).family in _PRODUCTS
            is_free = classification.classes[node.name].op_class in MAY_BE_LOW and node.name not in unsafe
            free[is_product].setdefault(node.name.split("/")[0], []).append(is_free)
    return free[True], free[False]


class _Parts:
    """A joint graph at the sizes that it was traced with, as ONNX.

    `model` is None if nothing of the graph has a translation.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._gm = _traced_again(graph)
        self._graph = self._gm.graph
        self._cut: dict[str, None] = {}
        # Those of the joint graph at their places, then what is read by operations that are left out.
        self._results: list[Any] = list(listed(self._graph.output_node().args[0]))
        self._tangents = _tangents(graph)
        self._leave_out([n for n in self._operations() if not _has_translation(n)])
        self.model = self._translated()

    @property
    def untranslated(self) -> tuple[str, ...]:
        """Names of the operations that are left out, attention aside."""
        return tuple(self._cut)

    def _operations(self) -> list[torch.fx.Node]:
        calls = (n for n in self._graph.nodes if n.op == "call_function")
        return [n for n in calls if n.target is not operator.getitem]

    def _leave_out(self, nodes: Collection[torch.fx.Node]) -> None:
        """Let results of some operations be inputs, and what they read be results."""
        for node in nodes:
            self._results += [n for n in node.all_input_nodes if n.target is not operator.getitem]
            if node.target not in ATTENTION:
                self._cut[str(node.target)] = None
            items = [user for user in node.users if user.target is operator.getitem]
            for result in items if isinstance(node.meta.get("val"), list | tuple) else [node]:
                if isinstance(result.meta.get("val"), torch.Tensor):
                    with self._graph.inserting_before(next(iter(self._graph.nodes))):
                        stand_in = self._graph.placeholder(f"given_{result.name}")
                    stand_in.meta = {"val": result.meta["val"]}
                    result.replace_all_uses_with(stand_in)
                    self._results = [stand_in if r is result else r for r in self._results]
            for result in items:
                self._graph.erase_node(result)
            self._results = [None if r is node else r for r in self._results]
            self._graph.erase_node(node)

    def _translated(self) -> onnx.ModelProto | None:
        while True:
            inputs, outputs = self._interface()
            if not outputs:
                return None
            try:
                model = translate(self._gm, inputs, list(outputs), TRANSLATIONS, opset=_OPSET)
            except UntranslatedUseError as error:
                used = {ref[0] for ref in error.results if isinstance(ref, tuple)}
                refused = [node for node in self._operations() if node.name in used]
                if not refused:
                    raise
                self._leave_out(refused)
            else:
                return with_handover(model, self._handed_over(inputs, outputs))

    def _interface(self) -> tuple[list[str], Mapping[str, torch.fx.Node]]:
        """Let the graph give all that is computed for others, each tensor once; name inputs and outputs."""
        results = dict.fromkeys(
            r for r in self._results if isinstance(r, torch.fx.Node) and r.op == "call_function"
        )
        self._graph.output_node().args = (tuple(results),)
        self._graph.eliminate_dead_code()
        for node in [n for n in self._graph.nodes if n.op == "placeholder" and not n.users]:
            self._graph.erase_node(node)
        inputs = [n.meta.get("called", n.name) for n in self._graph.nodes if n.op == "placeholder"]
        return inputs, {f"result.{i}": node for i, node in enumerate(results)}

    def _handed_over(self, inputs: Sequence[str], outputs: Mapping[str, torch.fx.Node]) -> Mapping[str, str]:
        """Say which output each tangent is the gradient of."""
        named = {node: name for name, node in outputs.items()}
        pairs = ((name, self._results[place]) for name, place in self._tangents.items() if name in inputs)
        return {name: named[result] for name, result in pairs if result in named}


def _has_translation(node: torch.fx.Node) -> bool:
    return is_translatable(node) and not is_random(node)


def _tangents(graph: torch.fx.Graph) -> Mapping[str, int]:
    """Say by gradient that comes from outside which result of the graph it belongs to."""
    descriptions = graph.output_node().meta.get("desc") or ()
    places = {description: place for place, description in enumerate(descriptions) if description is not None}
    of_input = (
        (n.name, getattr(n.meta.get("desc"), "output", None)) for n in graph.nodes if n.op == "placeholder"
    )
    return {name: places[output] for name, output in of_input if output in places}


def _traced_again(graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Trace a joint graph at the sizes that it was traced with, in operations that have translations.

    Operations carry the names of those that they come from. What is written into the caller's tensors are
    results.
    """
    gm: Any = graph.owning_module
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    symbols = Symbols.of(placeholders)
    sizes = symbols.traced_at(placeholders) if symbols.names else ()
    with _disable_current_modes():
        concrete = concrete_graph(gm, symbols, sizes)
        written = [n for n in concrete.graph.nodes if n.target is torch.ops.aten.copy_.default]
        output = concrete.graph.output_node()
        output.args = ((*listed(output.args[0]), *(n.args[1] for n in written)),)
        for node in written:
            node.replace_all_uses_with(node.args[1])
            concrete.graph.erase_node(node)
        for node in concrete.graph.nodes:
            mark(node, Origin(node.name))
        traced_at = {n.name: n.meta["val"] for n in concrete.graph.nodes if n.op == "placeholder"}
        mode = next(v.fake_mode for v in traced_at.values())
        with fx_traceback.preserve_node_meta(), mode:
            # The tracer tells inputs apart as objects, and those of a static graph that are alike are one.
            inputs = [
                torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)
                for v in traced_at.values()
            ]
            traced = make_fx(torch.fx.Interpreter(concrete).run, decomposition_table=decompositions())(
                *inputs
            )
    for node, name in zip((n for n in traced.graph.nodes if n.op == "placeholder"), traced_at, strict=True):
        node.meta["called"] = name
    return traced
