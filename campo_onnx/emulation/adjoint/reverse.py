"""The graph of a step and of the gradients of a direction in its outputs, back to every reading of a tensor.

A direction ``v`` is an input for each output. With ``g``, its gradient at a tensor, ``v . J d = g . d``: so
much the outputs move along ``v`` when the tensor is moved by a little ``d``.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy

import onnx
from onnx import ModelProto, TensorProto

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint import elementwise, microsoft, movement, products
from campo_onnx.emulation.adjoint.rule import Call, NoRuleError, Rule
from campo_onnx.ir.opsets import version_of
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey

RULES: Mapping[str, Rule] = {**elementwise.RULES, **movement.RULES, **products.RULES, **microsoft.RULES}
"""By operator, with its domain where that is not the standard one."""

ROUNDING = "rounding"
"""Scope of what tells a rounding's effect, followed by a number."""

LEAST_OPSET = 18
"""The rules are written for axes as inputs, and for sums that Scatter makes."""


class Reverse:
    """Gradients of a step, added behind it node by node.

    `directions`: for each output that counts, the name of the input that has its direction.

    Raises NoRuleError if a node that gradients pass has no rule, or a tensor there no static shape.
    """

    def __init__(self, model: ModelProto, view: GraphView, directions: Mapping[str, str]) -> None:
        opset = version_of(model) or 0
        if opset < LEAST_OPSET:
            raise NoRuleError(f"opset {opset}")
        self.graph = Graph(opset=opset)
        self._model, self._view = model, view
        self.graph.reserve([*view.tensors, *(node.name for node in view.nodes)])
        self._values: dict[str, Value] = {}
        self._of_tensor: dict[str, Value] = {}
        self._of_reading: dict[tuple[str, int], Value] = {}
        self._directions = {
            name: self.graph.input(name, TensorProto.FLOAT, self.value(output).shape)
            for output, name in directions.items()
        }
        self._of_tensor |= {output: self._directions[name] for output, name in directions.items()}
        for node in reversed(model.graph.node):
            self._differentiate(node)

    def value(self, tensor: str) -> Value:
        """Give a tensor of the step to read."""
        if tensor not in self._values:
            info = self._view.tensors.get(tensor)
            if info is None or info.shape is None or not info.dtype:
                raise NoRuleError(f"{tensor}: unknown shape or type")
            self._values[tensor] = Value(
                name=tensor,
                dtype=info.dtype,
                shape=info.shape,
                constant=self._view.values.get(tensor),
                graph=self.graph,
            )
        return self._values[tensor]

    def gradient(self, tensor: str, reader: tuple[str, int] | None = None) -> Value | None:
        """Give the gradient of a tensor as all read it, or as one input of one node does; None where zero."""
        return self._of_tensor.get(tensor) if reader is None else self._of_reading.get(reader)

    def _differentiate(self, node: onnx.NodeProto) -> None:
        gradients = tuple(self._of_tensor.get(name) if name else None for name in node.output)
        if not any(gradients):
            return
        floats = [name for name in node.input if name and self.value(name).is_float]
        if not floats:
            return
        key = OpKey.of(node)
        rule = RULES.get(key.label)
        if rule is None:
            raise NoRuleError(key.label)
        call = Call(
            op_type=node.op_type,
            attributes={a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute},
            inputs=tuple(self.value(name) if name else None for name in node.input),
            outputs=tuple(self.value(name) if name else None for name in node.output),
            gradients=gradients,
        )
        with self.graph.within(f"adjoint/{node.name}"):
            for position, (name, gradient) in enumerate(
                zip(node.input, rule(self.graph, call), strict=False)
            ):
                if gradient is None or not name or not self.value(name).is_float:
                    continue
                self._of_reading[node.name, position] = gradient
                before = self._of_tensor.get(name)
                self._of_tensor[name] = gradient if before is None else before + gradient

    def model(self, outputs: Mapping[str, Value]) -> ModelProto:
        """Write the step with its gradients; only `outputs` are computed."""
        added = self.graph.model(outputs, optional_inputs=frozenset())
        result = deepcopy(self._model)
        del result.graph.output[:], result.graph.value_info[:]
        stored = {tensor.name for tensor in result.graph.initializer} | set(self._view.tensors)
        result.graph.input.extend(added.graph.input)
        result.graph.node.extend(_soon(added.graph.node))
        result.graph.initializer.extend(t for t in added.graph.initializer if t.name not in stored)
        result.graph.output.extend(added.graph.output)
        return result


def _soon(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Put the nodes of a scope ``rounding/N`` behind the last gradient they read: else all would wait."""
    position = {tensor: index for index, node in enumerate(nodes) for tensor in node.output}
    reads = [[position[name] for name in node.input if name in position] for node in nodes]
    scopes = [node.name.split("/")[1] if node.name.startswith(f"{ROUNDING}/") else "" for node in nodes]
    place = [*range(len(nodes))]
    last: dict[str, int] = {}
    for index, scope in enumerate(scopes):
        if scope:  # behind the last gradient that it reads, itself or through others
            place[index] = max((place[i] for i in reads[index]), default=0)
            last[scope] = max(last.get(scope, 0), place[index])
    place = [last[scope] if scope else index for index, scope in enumerate(scopes)]
    for index in reversed(range(len(nodes))):
        for i in reads[index]:
            if scopes[i]:  # what scopes share comes before the first that reads it
                place[i] = min(place[i], place[index])
    return [nodes[index] for index in sorted(range(len(nodes)), key=place.__getitem__)]


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
