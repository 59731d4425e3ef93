"""Raise what a file computes in low precision to FP32, so that every node can be planned anew.

A converter by op lists leaves Casts where two precisions meet::

    g (float[4, 8] x, float16[8, 8] w) => (float[4, 8] y)
    { x16 = Cast<to = 10> (x)  h = MatMul (x16, w)  r = Relu (h)  y = Cast<to = 1> (r) }

becomes::

    g (float[4, 8] x, float16[8, 8] w) => (float[4, 8] y)
    { w_fp32 = Cast<to = 1> (w)  h = MatMul (x, w_fp32)  y = Relu (h) }

Inputs, outputs and initializers keep their types. A node is raised only if lowering it again gives the very
node that was there, so that the file itself stays among the assignments that a plan chooses from.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, tensor_names
from campo_onnx.ir.view import CAPTURE, FLOAT, OpNode
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import CAST
from campo_onnx.ops.ports import Ports, lowered
from campo_onnx.ops.precision import Precision, low_precision_of
from campo_onnx.ops.signature import Operand, Signature


def widened(imported: Imported, low: Precision, dims: Mapping[str, int] | None = None) -> Imported:
    """Raise the nodes of a graph that compute in low precision.

    `low` is the precision to plan in. What the file computes in a format of a wider range stays as it is.
    Gives the object itself where nothing is raised. Else ``as_given`` is the graph before, and
    ``low_as_given`` has the nodes to lower to get it back, if `low` is the format that they were in.
    """
    formats = {low_precision_of(info.dtype) for info in imported.view.tensors.values()}
    result = imported
    for form in sorted((each for each in formats if each is not None), key=lambda each: each.value):
        if form is not low and form.largest > low.largest:
            continue
        rise = _Rise(result, form)
        if rise.raised:
            wide = import_model(rise.model(), dims, any_type=True, folder=imported.folder)
            was_low = rise.chosen if form is low else result.low_as_given
            result = replace(wide, low_as_given=was_low & wide.view.node.keys())
    if result is imported:
        return imported
    return replace(
        result, data_files=imported.data_files, converted_from=imported.converted_from, as_given=imported
    )


def _wide(signature: Signature, low: Precision) -> Signature:
    """The same node with FP32 where it has the low format."""

    def wide(operand: Operand | None) -> Operand | None:
        is_low = operand is not None and operand.dtype == low.onnx_dtype
        return operand._replace(dtype=FLOAT) if operand is not None and is_low else operand

    dtype = helper.tensor_dtype_to_np_dtype(low.onnx_dtype)
    attributes = dict(signature.attributes)
    for name, value in attributes.items():
        if name in ("to", "dtype") and value == low.onnx_dtype:
            attributes[name] = FLOAT
        elif isinstance(value, np.ndarray) and value.dtype == dtype:
            attributes[name] = value.astype(np.float32)
    return replace(
        signature,
        inputs=tuple(map(wide, signature.inputs)),
        outputs=tuple(map(wide, signature.outputs)),
        attributes=attributes,
        constants={
            position: value.astype(np.float32) if value.dtype == dtype else value
            for position, value in signature.constants.items()
        },
    )


class _Rise:
    """One raising of a graph from one format."""

    def __init__(self, imported: Imported, low: Precision) -> None:
        self._imported, self._low = imported, low
        self._view = imported.view
        self._taken = tensor_names(imported.model.graph) | set(self._view.node)
        self._ports: dict[str, Ports] = {}
        for node in self._view.nodes:
            if any(map(self._is_low, (*node.inputs, *node.outputs))):
                self._ports[node.name] = ports_of(_wide(self._view.signature(node.name), low), low)
        self.raised = {node.name for node in self._view.nodes if self._can_rise(node)}
        for name in [name for name in self.raised if self._ports[name].follows_readers]:
            # Such a Cast follows all who read it: it stays where one of them stays.
            if any(map(self._is_pinned, self._view.node[name].outputs)):
                self.raised.discard(name)
        self._wide_name: dict[str, str] = {}  # of low tensors, once it is made
        self._same: dict[str, str] = {}  # FP32 tensors that another one stands for
        self._nodes: list[NodeProto] = []

    @property
    def chosen(self) -> frozenset[str]:
        """Raised nodes that a plan may choose to lower."""
        return frozenset(name for name in self.raised if not self._ports[name].follows_readers)

    def model(self) -> onnx.ModelProto:
        """Write the graph in which these nodes compute in FP32."""
        model = deepcopy(self._imported.model)
        for node in model.graph.node:
            own = self._view.node[node.name]
            if self._is_bridge(own) and not self._rounds(own):
                self._cross(node)
            elif node.name in self.raised:
                self._rise(node)
            else:
                self._stay(node, own)
        replace_items(model.graph.node, self._nodes)
        for info in model.graph.value_info:
            if self._wide_name.get(info.name) == info.name:
                info.type.tensor_type.elem_type = FLOAT
        return model

    def _is_low(self, tensor: str) -> bool:
        info = self._view.tensors.get(tensor)
        return info is not None and info.dtype == self._low.onnx_dtype

    def _is_bridge(self, node: OpNode) -> bool:
        """Whether a node is a Cast among FP32 and the low format, which raising makes superfluous."""
        if node.op != CAST or not any(map(self._is_low, (*node.inputs, *node.outputs))):
            return False
        source, target = node.inputs[0], node.outputs[0]
        return all(self._is_low(tensor) or self._view.is_float32(tensor) for tensor in (source, target))

    def _can_rise(self, node: OpNode) -> bool:
        ports = self._ports.get(node.name)
        if ports is None or (ports.refusal and not ports.follows_readers) or node.captures:
            return False
        signature = self._view.signature(node.name)
        again = lowered(_wide(signature, self._low), replace(ports, refusal=None), self._low)
        if again is None:
            return False
        low_outputs = {i for i, tensor in enumerate(node.outputs) if self._is_low(tensor)}
        return bool(low_outputs or ports.low_inputs) and all(
            mine is None or theirs is None or mine.dtype == theirs.dtype
            for mine, theirs in zip(signature.operands, again.operands, strict=True)
        )

    def _is_pinned(self, tensor: str) -> bool:
        """Whether somebody reads the low tensor itself: the caller, a body, or a node that stays."""
        if self._view.tensors[tensor].is_output:
            return True
        for use in self._view.consumers.get(tensor, ()):
            reader = self._view.node[use.node]
            if use.position == CAPTURE:
                return True
            is_either = use.position in self._ports[use.node].any_inputs
            is_bridge = self._is_bridge(reader) and not self._rounds(reader)
            if not (is_either or is_bridge or reader.name in self.raised):
                return True
        return False

    def _rounds(self, node: OpNode) -> bool:
        """Whether a Cast widens what another one has just rounded: on purpose, so that both stay."""
        before = self._view.producer.get(node.inputs[0])
        return (
            self._view.is_float32(node.outputs[0])
            and before is not None
            and self._is_bridge(before)
            and self._view.is_float32(before.inputs[0])
        )

    def _keeps_name(self, tensor: str) -> bool:
        """Whether an FP32 tensor has to be there under its name: an output, or read by a body."""
        uses = self._view.consumers.get(tensor, ())
        return self._view.tensors[tensor].is_output or any(use.position == CAPTURE for use in uses)

    def _cross(self, node: NodeProto) -> None:
        """Leave a Cast out where both its tensors are one now."""
        source, target = node.input[0], node.output[0]
        if self._is_low(source) and self._is_low(target):
            node.input[0] = self._wide_name[target] = self._wide(source)
            if self._is_pinned(target):
                self._nodes.append(node)
            return
        if self._is_low(target):
            source = self._same.get(source, source)
            self._wide_name[target] = source
            if self._is_pinned(target):
                node.input[0] = source
                self._nodes.append(node)
            return
        wide = self._wide_name.get(source)
        if wide is None:
            self._wide_name[source] = target
            self._nodes.append(node)
        elif wide != target and self._keeps_name(target):
            self._nodes.append(helper.make_node("Identity", [wide], [target], name=node.name))
        elif wide != target:
            self._same[target] = wide

    def _rise(self, node: NodeProto) -> None:
        for position, tensor in enumerate(node.input):
            node.input[position] = (
                self._wide(tensor) if self._is_low(tensor) else self._same.get(tensor, tensor)
            )
        attribute = self._ports[node.name].attribute
        for each in node.attribute:
            if each.name != attribute:
                continue
            if each.type == onnx.AttributeProto.TENSOR:
                value = numpy_helper.to_array(each.t).astype(np.float32)
                each.t.CopyFrom(numpy_helper.from_array(value, each.t.name))
            else:
                each.i = FLOAT
        self._nodes.append(node)
        for position, tensor in enumerate(node.output):
            if self._is_low(tensor):
                node.output[position] = self._output(tensor)

    def _output(self, tensor: str) -> str:
        """Name what a raised node makes, and cast it for those who want it low."""
        casts = (self._view.node[use.node] for use in self._view.consumers.get(tensor, ()))
        names = (cast.outputs[0] for cast in casts if self._is_bridge(cast))
        is_pinned = self._is_pinned(tensor)
        own_name = fresh(f"{tensor}_fp32", self._taken) if is_pinned else tensor
        wide = self._wide_name[tensor] = next(filter(self._keeps_name, names), own_name)
        if is_pinned:
            name = fresh(f"{wide}_to_{self._low.value}", self._taken)
            self._nodes.append(helper.make_node("Cast", [wide], [tensor], name=name, to=self._low.onnx_dtype))
        return wide

    def _stay(self, node: NodeProto, own: OpNode) -> None:
        for position, tensor in enumerate(node.input):
            reads_either = node.name in self._ports and position in self._ports[node.name].any_inputs
            if self._is_low(tensor) and reads_either:
                node.input[position] = self._wide_name.get(tensor, tensor)
            else:
                node.input[position] = self._same.get(tensor, tensor)
        self._nodes.append(node)

    def _wide(self, tensor: str) -> str:
        """The FP32 version of a low tensor, cast here where nobody raised makes it."""
        if tensor not in self._wide_name:
            wide = self._wide_name[tensor] = fresh(f"{tensor}_fp32", self._taken)
            name = fresh(f"{tensor}_to_fp32", self._taken)
            self._nodes.append(helper.make_node("Cast", [tensor], [wide], name=name, to=TensorProto.FLOAT))
        return self._wide_name[tensor]
