"""An ONNX graph under construction: static types, one node per distinct computation, readable names."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from campo_onnx.builder.cuda_fusions import bias_dropouts, sums
from campo_onnx.builder.peepholes import (
    PAD_NAMES_AXES,
    ending_in_computation,
    merged_pairs,
    pads_of_their_own,
    splits,
    without_unread,
)
from campo_onnx.builder.summed_products import summed_products
from campo_onnx.builder.target import CUDA, Target, may_use
from campo_onnx.builder.value import Node, Value
from campo_onnx.ir.origin import asks_for_fp32
from campo_onnx.ops.facts import output_types
from campo_onnx.ops.fold import evaluated
from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import TensorType, make_signature

T = TypeVar("T")

IR_VERSION = 10
"""Read by every ONNX Runtime since 1.18; opset 21 came with it."""

MAX_FOLDED_BYTES = 1 << 17
"""Constant computations up to this size are done at export; larger ones would only swell the file."""

_MICROSOFT_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(kw_only=True)
class Graph:
    """Nodes are added in topological order; one that computes what is there already is not added again."""

    opset: int
    target: Target = "standard"  # where the graph is to run: what other operators it may have
    scope: str = ""  # where the nodes being added come from; the first part of their names
    # Whether the graph is to be the same at other sizes: then only numbers are computed now, no tables, and
    # no form is chosen by how long a sum is.
    sizes_change: bool = False
    # Random numbers by what tells them from others, for translations that may meet a draw again.
    drawn: dict[Hashable, Value] = field(default_factory=dict)
    # Makes choices among forms in place of the graph, so that they are the same at other sizes.
    choices: Callable[[Callable[[], Any]], Any] | None = None
    _inputs: list[Value] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)
    _producer: dict[str, Node] = field(default_factory=dict)
    _consumers: dict[str, list[Node]] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], tuple[Value, ...]] = field(default_factory=dict)
    _constants: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def choice(self, choose: Callable[[], T]) -> T:
        """Choose among forms of a computation."""
        chosen: T = choose() if self.choices is None else self.choices(choose)
        return chosen

    def input(self, name: str, dtype: int, shape: Sequence[int]) -> Value:
        """Add a graph input; names of inputs are unique."""
        value = Value(name=name, dtype=dtype, shape=tuple(shape), graph=self)
        self._inputs.append(value)
        self._names[name] = 1
        return value

    def reserve(self, names: Iterable[str]) -> None:
        """Give these names to no new node or constant."""
        self._names |= dict.fromkeys(names, 1)

    def constant(self, array: NDArray[Any] | np.generic, name: str = "") -> Value:
        """Give a constant; equal ones are one, with the name of the first."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = Value(
                name=name or self._fresh("constant"),
                dtype=helper.np_dtype_to_tensor_dtype(array.dtype),
                shape=array.shape,
                constant=array,
                graph=self,
            )
        return self._constants[key]

    def scalar(self, number: float, dtype: int) -> Value:
        """Give a constant without dimensions."""
        return self.constant(np.asarray(number, helper.tensor_dtype_to_np_dtype(dtype)))

    def integers(self, numbers: Sequence[int]) -> Value:
        """Give a vector of int64: axes, shapes, bounds."""
        return self.constant(np.asarray(numbers, np.int64))

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Add a node with one output. See :meth:`ops`."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(self, op_type: str, *inputs: Value | None, outputs: int, **attributes: Any) -> tuple[Value, ...]:
        """Add a node, unless it would compute constants or what another node computes already.

        `op_type`: a standard operator, or one of ONNX Runtime's as ``"com.microsoft:FusedMatMul"``.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        attributes = {k: _attribute(v) for k, v in sorted(attributes.items()) if v is not None}
        key = self._node_key(op_type, inputs, outputs, attributes)
        if key in self._known and not _draws(op_type):
            return self._known[key]
        results = self._add(op_type, inputs, outputs, attributes)
        self._known[key] = results
        return results

    def copy(self, node: Node) -> tuple[Value, ...]:
        """Add a node of another graph under its own name, unless another computes the same."""
        attributes = dict(sorted(node.attributes.items()))
        key = self._node_key(node.op_type, node.inputs, len(node.outputs), attributes)
        if key in self._known and not _draws(node.op_type):
            return self._known[key]
        self._known[key] = self._placed(node)
        return node.outputs

    def _add(
        self, op_type: str, inputs: tuple[Value | None, ...], outputs: int, attributes: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        if ":" in op_type:
            return self._append(
                op_type, inputs, _types_of_microsoft(op_type, inputs, outputs, attributes), attributes
            )
        names = [v.name if v else "" for v in inputs]
        node = helper.make_node(op_type, names, [f"output{i}" for i in range(outputs)], **attributes)
        types = self._infer(node, inputs)
        is_left = op_type == "ConstantOfShape" or _draws(op_type)
        foldable = not is_left and all(v is None or v.constant is not None for v in inputs)
        if foldable and self._is_small(types):
            return self._fold(node, inputs)
        return self._append(op_type, inputs, types, attributes)

    def _is_small(self, types: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
        if self.sizes_change:
            return all(not shape for _, shape in types)
        return sum(_nbytes(*t) for t in types) <= MAX_FOLDED_BYTES

    def may_use(self, op_type: str, *operands: Value) -> bool:
        """Whether ONNX Runtime's operator `op_type` may be written, for these tensors where they are given.

        Its own operators take floating-point numbers of at most 32 bits, and several fail on empty tensors.
        """
        fit = all(x.elements > 0 and x.dtype in _MICROSOFT_FLOATS for x in operands)
        return fit and may_use(self.target, op_type)

    def _append(
        self,
        op_type: str,
        inputs: tuple[Value | None, ...],
        types: Sequence[tuple[int, tuple[int, ...]]],
        attributes: Mapping[str, Any],
    ) -> tuple[Value, ...]:
        label = OpKey.parse(op_type).op_type
        name = self._fresh(f"{self.scope}/{label}" if self.scope else label)
        values = tuple(
            Value(name=name if i == 0 else f"{name}.{i}", dtype=dtype, shape=shape, graph=self)
            for i, (dtype, shape) in enumerate(types)
        )
        return self._placed(
            Node(op_type=op_type, inputs=inputs, outputs=values, attributes=attributes, name=name)
        )

    def _placed(self, node: Node) -> tuple[Value, ...]:
        self._nodes.append(node)
        self._producer.update(dict.fromkeys((v.name for v in node.outputs), node))
        for name in {v.name for v in node.inputs if v is not None}:
            self._consumers.setdefault(name, []).append(node)
        return node.outputs

    def _infer(
        self, node: onnx.NodeProto, inputs: tuple[Value | None, ...]
    ) -> list[tuple[int, tuple[int, ...]]]:
        values = {v.name: v for v in inputs if v is not None}
        types = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, self.opset),
            node,
            {name: helper.make_tensor_type_proto(v.dtype, v.shape) for name, v in values.items()},
            {
                name: numpy_helper.from_array(v.constant)
                for name, v in values.items()
                if v.constant is not None
            },
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSION,
        )
        return [_static(types[name].tensor_type, node.op_type) for name in node.output]

    def _fold(self, node: onnx.NodeProto, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        feeds = {v.name: v.constant for v in inputs if v is not None}
        graph = onnx.GraphProto(
            node=[node],
            input=[onnx.ValueInfoProto(name=name) for name in feeds],
            output=[onnx.ValueInfoProto(name=name) for name in node.output],
        )
        with np.errstate(all="ignore"):  # log(0), overflow: what the runtime would compute as well
            results = evaluated(graph, feeds, self.opset)
        return tuple(self.constant(np.asarray(result)) for result in results)

    def _node_key(
        self, op_type: str, inputs: Sequence[Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        names = [v and v.name for v in inputs]
        written = ((k, _key(v)) for k, v in attributes.items())
        return (op_type, outputs, asks_for_fp32(self.scope), *names, *written)

    def producer(self, value: Value, op_type: str) -> Node | None:
        """Find the node that computes `value` as its first output, if it is of this operator."""
        node = self.source(value)
        if node is None or node.op_type != op_type or node.outputs[0] is not value:
            return None
        return node

    def before(self, value: Value, op_type: str) -> Value | None:
        """Find the first input of the node that computes `value`, if it is of this operator."""
        node = self.producer(value, op_type)
        return None if node is None else node.inputs[0]

    def source(self, value: Value) -> Node | None:
        """Find the node that computes `value`, as whichever of its outputs.

        Rules that make one node of several ask this: what is to stay in FP32 is apart from other nodes.
        """
        node = self._producer.get(value.name)
        return node if node is not None and asks_for_fp32(node.name) == asks_for_fp32(self.scope) else None

    def consumers(self, value: Value) -> Sequence[Node]:
        """Find the nodes so far that read `value`."""
        return tuple(self._consumers.get(value.name, ()))

    @contextmanager
    def within(self, scope: str) -> Iterator[None]:
        """Name the nodes added meanwhile after `scope`."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    def _fresh(self, stem: str) -> str:
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        return stem if number == 0 else self._fresh(f"{stem}_{number}")

    def model(self, outputs: Mapping[str, Value], *, optional_inputs: frozenset[str]) -> onnx.ModelProto:
        """Write the graph: only what the outputs need."""
        outputs = {name: self._own(value, name, outputs) for name, value in outputs.items()}
        names = {value.name: name for name, value in outputs.items()}
        outside = frozenset(names)
        needed = ending_in_computation(self.nodes_behind(*outputs.values()), outside, self.integers)
        needed = merged_pairs(needed, outside)
        if not self.sizes_change or self.choices is not None:
            needed = summed_products(needed, outside, self._fresh, self.choice)
        if self.target == CUDA:
            needed = sums(bias_dropouts(needed, outside, self.constant), outside)
        needed = without_unread(splits(needed, self.integers), outside)
        if self.opset >= PAD_NAMES_AXES:
            needed = pads_of_their_own(needed, self.integers)
        read = {v.name: v for needed_node in needed for v in needed_node.inputs if v is not None}
        graph = onnx.GraphProto(name="training_step")
        for needed_node in needed:
            domain, op_type = OpKey.parse(needed_node.op_type)
            node = graph.node.add(op_type=op_type, domain=domain, name=needed_node.name)
            node.input.extend(names.get(v.name, v.name) if v else "" for v in needed_node.inputs)
            node.output.extend(names.get(v.name, v.name) for v in needed_node.outputs)
            node.attribute.extend(helper.make_attribute(k, v) for k, v in needed_node.attributes.items())
            graph.value_info.extend(_info(v, v.name) for v in needed_node.outputs if v.name not in names)
        graph.input.extend(
            _info(v, v.name) for v in self._inputs if v.name in read or v.name not in optional_inputs
        )
        graph.initializer.extend(
            numpy_helper.from_array(v.constant, v.name) for v in read.values() if v.constant is not None
        )
        graph.output.extend(_info(value, name) for name, value in outputs.items())
        return onnx.ModelProto(
            ir_version=IR_VERSION,
            producer_name="campo-onnx",
            opset_import=[
                helper.make_opsetid("", self.opset),
                *(helper.make_opsetid(MICROSOFT, 1) for _ in range(any(n.domain for n in graph.node))),
            ],
            graph=graph,
        )

    def _own(self, value: Value, name: str, outputs: Mapping[str, Value]) -> Value:
        """Copy what may not bear the name of an output: inputs, constants, and another output's value."""
        first = next(n for n, v in outputs.items() if v is value)
        if value.name in self._producer and first == name:
            return value
        with self.within(name):
            return self._append("Identity", (value,), [(value.dtype, value.shape)], {})[0]

    def nodes_behind(self, *values: Value) -> list[Node]:
        """Find the nodes that it takes to compute `values`, in order."""
        wanted = {value.name for value in values}
        needed = []
        for node in reversed(self._nodes):
            if wanted.intersection(v.name for v in node.outputs):
                needed.append(node)
                wanted.update(v.name for v in node.inputs if v is not None)
        return needed[::-1]


def _types_of_microsoft(
    op_type: str, inputs: tuple[Value | None, ...], outputs: int, attributes: Mapping[str, Any]
) -> list[tuple[int, tuple[int, ...]]]:
    """Say what an operator of ONNX Runtime gives; ValueError where its inputs do not fit."""
    signature = make_signature(
        OpKey.parse(op_type),
        [None if v is None else TensorType(v.dtype, v.shape) for v in inputs],
        [None] * outputs,
        attributes=attributes,
        opset=1,
    )
    types = [(each.dtype, each.shape) for each in (output_types(signature) or ())[:outputs]]
    if len(types) < outputs or any(shape is None for _, shape in types):
        raise shape_inference.InferenceError(f"the shape of {op_type}'s result is not known")
    return [(dtype, shape) for dtype, shape in types if shape is not None]


def _info(value: Value, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, value.dtype, value.shape)


def _nbytes(dtype: int, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * helper.tensor_dtype_to_np_dtype(dtype).itemsize


def _static(tensor: onnx.TypeProto.Tensor, op_type: str) -> tuple[int, tuple[int, ...]]:
    dims = tensor.shape.dim
    if not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in dims):
        raise shape_inference.InferenceError(f"the shape of {op_type}'s result is not static")
    return tensor.elem_type, tuple(dim.dim_value for dim in dims)


def _attribute(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _key(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return value.SerializeToString()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _draws(op_type: str) -> bool:
    return spec(OpKey.parse(op_type)).draws
