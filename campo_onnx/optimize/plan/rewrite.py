"""Execute a plan: set types, insert Casts, Pads and Slices, leave out what it drops. Nothing is decided.

The plan was compared with itself and the graph before (:mod:`campo_onnx.optimize.plan.consistency`), so that
nothing here need ask whether what it says can be done.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import NodeProto, TensorProto, numpy_helper

from campo_onnx.ir.constants import constants_of, is_external
from campo_onnx.ir.convert import converted
from campo_onnx.ir.edit import Wiring, model_of, read_instead, take_apart, topology_of
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, outer_reads, sort_nodes, tensor_names
from campo_onnx.ir.stamp import Stamp, structure_digest, write_stamp
from campo_onnx.ir.view import OpNode, Use
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports, low_attribute
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.padding.insert import insert_pads
from campo_onnx.optimize.plan.consistency import check_consistent
from campo_onnx.optimize.plan.edits import Decision, ExistingCast, LowConstant, PlannedCast
from campo_onnx.optimize.plan.plan import Plan

_BOUNDS = {OpKey("", "ThresholdedRelu"): "alpha", OpKey("", "Shrink"): "lambd"}
"""Attributes that elements are compared with; kernels round them to the type of the elements."""


def rewrite(imported: Imported, plan: Plan) -> onnx.ModelProto:
    """Write a plan into a graph.

    The FP32 version of a tensor keeps its name; its low version is called ``<name>_fp16``. Casts
    stand right behind the producer (to FP32) or before the first consumer (to the low precision).

    Initializers whose bytes lie outside the model file still do,
    also where a low version of them is wanted; the exporter converts those as it writes.
    """
    check_consistent(plan, imported)
    edited = _edited(imported, plan)
    model = model_of(
        edited.nodes,
        imported.model,
        retyped=edited.retyped,
        dtype=plan.low.onnx_dtype,
        attributes=edited.attributes,
        initializers=edited.initializers,
        dropped=frozenset(c.tensor for c in plan.constants if not c.keeps_fp32),
    )
    write_squares_as_products(model)
    sort_nodes(model.graph)  # an existing Cast that gained earlier consumers moves up
    stamp = Stamp(
        strategy=plan.strategy,
        lists=plan.lists,
        device=plan.device,
        low=plan.low.value,
        digest=structure_digest(model.graph),
        fp32_us=plan.fp32_us,
        predicted_us=plan.predicted_us,
        low_nodes=len(plan.low_nodes),
        casts=len(plan.casts),
        captured=plan.captured,
        runtime=plan.runtime,
    )
    write_stamp(model, stamp)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edited:
    """The edited graph, by names alone."""

    nodes: Sequence[Wiring]
    retyped: Mapping[str, str]  # low tensor's name to its FP32 name
    attributes: Mapping[str, Mapping[str, int | float | TensorProto]]
    initializers: Sequence[TensorProto]


def _edited(imported: Imported, plan: Plan) -> _Edited:
    work = _Rewriting(imported, plan)
    for node in list(work.graph.nodes):
        work.execute(node)
    insert_pads(work, plan.pads, plan.only_padded)
    return work.result()


class _Rewriting:
    """One run of :func:`rewrite`: the topology being edited and what was added to it."""

    def __init__(self, imported: Imported, plan: Plan) -> None:
        self.low = plan.low
        self.view = imported.view
        self.folder = imported.folder
        self.constants = imported.constants
        self.graph = topology_of(imported.model.graph)
        self.nodes: list[gs.Node] = []
        self._attributes: dict[str, Mapping[str, int | float | TensorProto]] = {}
        self.initializers: list[TensorProto] = []
        self._retyped: dict[str, str] = {}
        self._plan = plan
        self._tensors = self.graph.tensors()
        self._low_tensor: dict[str, gs.Tensor] = {}
        self._merged: dict[str, gs.Tensor] = {}  # results of dropped copies of a Cast
        self._taken_tensors = tensor_names(imported.model.graph) | self.view.tensors.keys()
        self._taken_nodes = set(self.view.node)
        self._casts_up = {c.tensor: c for c in plan.casts if c.dst is Precision.FP32}
        self._dropped = {c.node: c for c in plan.dropped}
        self._low_source = self._sources(plan)
        self._own_name = {
            c.tensor: c.low_tensor for c in plan.dropped if c.low_tensor in self._outputs_of(c.node)
        }
        unread = {c.tensor for c in plan.constants if not c.keeps_fp32}
        self._left_out = {
            n.name for n in self.view.nodes if n.op.op_type == "Constant" and unread & {*n.outputs}
        }

    def _outputs_of(self, cast: str) -> tuple[str, ...]:
        return self.view.node[cast].outputs

    @staticmethod
    def _sources(plan: Plan) -> dict[Use, PlannedCast | ExistingCast | LowConstant]:
        """By reading, what the plan says it gets its low version from."""
        source_of: dict[Use, PlannedCast | ExistingCast | LowConstant] = {}
        for cast in plan.casts:
            if cast.dst is plan.low:
                source_of |= dict.fromkeys(cast.consumers, cast)
        for existing in (*plan.reused, *plan.dropped):
            source_of |= dict.fromkeys(existing.consumers, existing)
        for constant in plan.constants:
            source_of |= dict.fromkeys(constant.consumers, constant)
        return source_of

    def execute(self, node: gs.Node) -> None:
        """Give one node its low inputs and outputs, and put it, with its casts, behind the last."""
        decision = self._plan.decision[node.name]
        for position in (*decision.low_inputs, *decision.follows):
            read_instead(node, position, self._low_version(Use(node.name, position)))
        for position, tensor in enumerate(node.inputs):
            if tensor.name in self._merged:
                read_instead(node, position, self._merged[tensor.name])
        if decision.attribute:
            attribute = self.view.node[node.name].attributes.get(decision.attribute)
            value = low_attribute(attribute, Ports(attribute=decision.attribute), self.low)
            self._attributes[node.name] = {decision.attribute: value}
        self._round_bound(self.view.node[node.name], decision)
        if node.name in self._dropped:
            self._drop(self._dropped[node.name])
        elif node.name not in self._left_out:
            self.nodes.append(node)
        self._lower_outputs(node, decision)

    def _round_bound(self, node: OpNode, decision: Decision) -> None:
        bound = _BOUNDS.get(node.op, "")
        if decision.low_inputs and bound in node.attributes:
            self._attributes[node.name] = {bound: _at_most(float(node.attributes[bound]), self.low)}

    def _drop(self, cast: ExistingCast) -> None:
        (target,) = self._outputs_of(cast.node)
        source = self.view.node[cast.node].inputs[0]
        if cast.low_tensor not in (source, target):  # a copy: its consumers are merged with the others
            self._merged[target] = self._existing(cast)

    def _lower_outputs(self, node: gs.Node, decision: Decision) -> None:
        for position in decision.low_outputs:
            fp32 = node.outputs[position]
            low = self._new_low_tensor(fp32.name)
            node.outputs[position] = low
            if fp32.name in self._casts_up:
                self._insert_cast(low, fp32, Precision.FP32)

    def _low_version(self, use: Use) -> gs.Tensor:
        """Return the low version that one reading is to get, making it where there is none yet."""
        name = self.view.node[use.node].inputs[use.position]
        source = self._low_source.get(use)
        if isinstance(source, ExistingCast):
            self._low_tensor.setdefault(name, self._existing(source))
        elif isinstance(source, LowConstant) and name not in self._low_tensor:
            low = self._new_low_tensor(name)
            self.initializers.append(converted(self.constants[name], low.name, self.low, self.folder))
        elif isinstance(source, PlannedCast) and name not in self._low_tensor:
            self._insert_cast(self._tensors[name], self._new_low_tensor(name), self.low)
        return self._low_tensor[name]

    def _existing(self, cast: ExistingCast) -> gs.Tensor:
        return self._merged.get(cast.low_tensor, self._tensors[cast.low_tensor])

    def _new_low_tensor(self, name: str) -> gs.Tensor:
        # Where the graph casts the tensor itself, its low version has a name already.
        if name in self._own_name:
            low = self._tensors[self._own_name[name]]
            low.inputs.clear()
        else:
            low = self.new_tensor(f"{name}_{self.low.value}")
            self._retyped[low.name] = name
        self._low_tensor[name] = low
        return low

    def _insert_cast(self, source: gs.Tensor, target: gs.Tensor, to: Precision) -> None:
        cast = self.new_node("Cast", f"{source.name}_to_{to.value}", [source], target)
        cast.attrs["to"] = to.onnx_dtype
        self.nodes.append(cast)

    def new_tensor(self, stem: str) -> gs.Tensor:
        """Make a tensor with a name of its own, close to `stem`."""
        return gs.Variable(fresh(stem, self._taken_tensors))

    def new_node(self, op_type: str, stem: str, inputs: Sequence[gs.Tensor], output: gs.Tensor) -> gs.Node:
        """Make a node with a name of its own, which stands nowhere yet."""
        name = fresh(stem, self._taken_nodes)
        return gs.Node(op_type, name=name, inputs=list(inputs), outputs=[output])

    def result(self) -> _Edited:
        """Hand over what was made; nothing else can be done afterwards."""
        self.graph.nodes[:] = self.nodes
        return _Edited(
            nodes=take_apart(self.graph, self.view.node, self._tensors.values()),
            retyped=self._retyped,
            attributes=self._attributes,
            initializers=self.initializers,
        )


def _at_most(bound: float, low: Precision) -> float:
    """Give the largest low number that is not above a bound: the low numbers above either are the same."""
    number = np.array(bound).astype(onnx.helper.tensor_dtype_to_np_dtype(low.onnx_dtype))
    return float(number if float(number) <= bound else np.nextafter(number, number.dtype.type(-np.inf)))


_FIRST_OPSET = 17
"""The first opset in which all inputs of LayerNormalization are of one type."""

Find = Callable[[str], NodeProto | None]


def write_squares_as_products(model: onnx.ModelProto) -> None:
    """Write Pow(x, 2) as Mul(x, x) in normalizations of two precisions, in place."""
    graph = model.graph
    if max((o.version for o in model.opset_import if not o.domain), default=0) < _FIRST_OPSET:
        return
    powers = [node for node in graph.node if _is(node, "Pow")]
    if not powers:
        return
    producer = {tensor: node for node in graph.node for tensor in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    constants = constants_of(graph)
    replaced: set[str] = set()
    for power in powers:
        base, exponent = power.input
        if exponent not in constants or not _is_two(constants[exponent]):
            continue
        if any(_is(node, "Cast") for node in _around(base, producer.get, readers)):
            power.op_type, power.input[1] = "Mul", base
            replaced.add(exponent)
    if replaced:
        read = {tensor for node in graph.node for tensor in (*node.input, *outer_reads(node))}
        unread = replaced - read - {value.name for value in (*graph.input, *graph.output)}
        replace_items(
            graph.initializer, [stored for stored in graph.initializer if stored.name not in unread]
        )


def _around(base: str, find: Find, readers: dict[str, list[NodeProto]]) -> Iterator[NodeProto | None]:
    """Yield the nodes that ONNX Runtime looks through, if a difference from a mean is squared."""
    before = find(base)
    difference = find(before.input[0]) if before is not None and _is(before, "Cast") else before
    mean = find(difference.input[1]) if difference is not None and _is(difference, "Sub") else None
    if difference is None or mean is None or not _is(mean, "ReduceMean"):
        return
    yield from (before, find(mean.input[0]))
    for quotient in (*readers.get(base, ()), *readers.get(difference.output[0], ())):
        if _is(quotient, "Div"):
            yield from readers.get(quotient.output[0], ())


def _is(node: NodeProto | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and not node.domain


def _is_two(tensor: onnx.TensorProto) -> bool:
    if is_external(tensor):
        return False
    value = numpy_helper.to_array(tensor)
    return value.size == 1 and value.dtype.kind in "fiu" and float(value.reshape(())) == 2.0
