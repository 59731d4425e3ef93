"""A random graph in the making: every node is run as it is added, so that its values are known."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

Array: TypeAlias = NDArray[Any]

LARGEST = 2000.0
"""Data and activations stay below this: what unknown inputs may hold is nobody's fault."""
SMALLEST = 2.0**-9
"""The largest magnitude of a tensor of data that is not all zero is at least this."""

SIZES = (1, 2, 3, 4, 4, 6, 8)

_IN_NUMPY = frozenset(
    {
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    }
)


class RejectedError(Exception):
    """The node that was drawn is not valid, does not run, or makes values out of bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomGraph:
    """A graph, a value for each of its inputs, and the value of every tensor of it.

    Parameters
    ----------
    seed
        What it was drawn from.
    model
        The graph.
    feeds
        Values of the inputs; of those with an initializer there may be none.
    values
        Values of all tensors of the main graph, as they were computed node by node.
    """

    seed: int
    model: ModelProto
    feeds: Mapping[str, Array]
    values: Mapping[str, Array]


def dtype_of(value: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def session_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # A product with a weight that is packed ahead adds up in another order than one with an activation.
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def run(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a model on ONNX Runtime's CPU provider, node by node."""
    session = ort.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    wanted = {value.name for value in session.get_inputs()}
    wanted |= {value.name for value in session.get_overridable_initializers()}
    names = [value.name for value in session.get_outputs()]
    values = session.run(names, {name: value for name, value in feeds.items() if name in wanted})
    return dict(zip(names, values, strict=True))


@cache
def schema_of(op_type: str, opset: int, domain: str = "") -> OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@dataclass(slots=True)
class Builder:
    """Grows a graph node by node.

    Parameters
    ----------
    rng
        Where chance comes from.
    opset
        Of the standard domain.
    values
        Value of every tensor that a node may read.
    """

    rng: random.Random
    opset: int
    values: dict[str, Array] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    initializers: list[str] = field(default_factory=list)
    prefix: str = ""
    outer: "Builder | None" = None
    private: set[str] = field(default_factory=set)  # tensors that one node has for itself
    _count: int = 0

    # --- chance ---

    def chance(self, one_in: float) -> bool:
        return self.rng.random() * one_in < 1.0

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.getrandbits(32))

    def size(self) -> int:
        return 0 if self.chance(60) else self.rng.choice(SIZES)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3, 4)) if rank is None else rank
        return tuple(self.size() for _ in range(rank))

    def data(self, shape: Sequence[int]) -> Array:
        """Floats as activations and weights have them."""
        values = self.numpy().standard_normal(tuple(shape)) * self.rng.choice((1.0, 1.0, 0.3))
        return np.asarray(values, np.float32)

    # --- tensors ---

    def name(self, stem: str) -> str:
        root = self
        while root.outer is not None:
            root = root.outer
        root._count += 1
        return f"{self.prefix}{stem}{root._count}"

    def input(self, value: Array) -> str:
        """Add a graph input."""
        if self.outer is not None:
            return self.constant(value)
        name = self.name("x")
        self.values[name] = value
        self.inputs.append(name)
        return name

    def constant(self, value: Array | Sequence[Any], dtype: Any = None) -> str:
        """Add a constant: an initializer or a Constant node."""
        array = np.asarray(value, dtype)
        name = self.name("k")
        self.values[name] = array
        if self.chance(3) or (self.outer is not None and self.chance(2)):
            self.nodes.append(_constant_node(self, name, array))
        else:
            self.initializers.append(name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def source(self, shape: Sequence[int]) -> str:
        """A new float tensor: input or weight."""
        value = self.data(shape)
        return self.input(value) if self.chance(2) else self.constant(value)

    def find(self, fits: Callable[[Array], bool], dtype: Any = np.float32) -> str | None:
        """Pick a tensor that there is, late ones rather than early ones."""
        names = [n for n, v in self.values.items() if v.dtype == dtype and n not in self.private and fits(v)]
        if not names:
            return None
        return names[min(self.rng.randrange(len(names)), self.rng.randrange(len(names))) * -1 - 1]

    def pick(
        self, fits: Callable[[Array], bool] = lambda value: True, shape: Sequence[int] | None = None
    ) -> str:
        """Pick a float tensor that fits, or make one of `shape`."""
        tensor = None if self.chance(8) else self.find(fits)
        return tensor if tensor is not None else self.source(self.shape() if shape is None else shape)

    def of_rank(self, *ranks: int) -> str:
        rank = self.rng.choice(ranks)
        return self.pick(
            lambda v: v.ndim in ranks and v.size > 0, [self.rng.choice(SIZES) for _ in range(rank)]
        )

    def of_shape(self, shape: Sequence[int]) -> str:
        wanted = tuple(shape)
        return self.pick(lambda v: v.shape == wanted, wanted)

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    # --- nodes ---

    def schema(self, op_type: str, domain: str = "") -> OpSchema:
        schema = schema_of(op_type, self.opset if not domain else 1, domain)
        if schema is None:
            raise RejectedError(f"{op_type} is not in opset {self.opset}")
        return schema

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: int | Sequence[bool] = 1,
        *,
        domain: str = "",
        wild: bool = False,
        **attributes: Any,
    ) -> str:
        """Add a node and return its first output; see :meth:`emit_all`."""
        return self.emit_all(op_type, inputs, outputs, domain=domain, wild=wild, **attributes)[0]

    def emit_all(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: int | Sequence[bool] = 1,
        *,
        domain: str = "",
        wild: bool = False,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add a node.

        Parameters
        ----------
        inputs
            Tensor names; ``""`` where an optional one is left out.
        outputs
            How many, or which of them are wanted.
        wild
            Whether values out of bounds are meant: they come from constants.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        names = [self.name("t") if is_wanted else "" for is_wanted in wanted]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, list(inputs), names, domain=domain, **attributes)
        if not domain:
            self.schema(op_type)
        self.add([node], [name for name in names if name], wild=wild)
        return tuple(names)

    def add(self, nodes: Sequence[NodeProto], results: Sequence[str], *, wild: bool = False) -> None:
        """Add nodes that belong together: only `results` are read by others (the rest may be no tensors)."""
        values = self._run(nodes, results)
        if not wild:
            _refuse_out_of_bounds(values)
        self.values.update(values)
        self.nodes.extend(nodes)

    def _run(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> dict[str, Array]:
        own = {name for node in nodes for name in node.output}
        reads = dict.fromkeys(name for node in nodes for name in (*node.input, *captured(node)))
        feeds = {name: self.values[name] for name in reads if name and name not in own}
        opset_imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(
            list(nodes),
            "one",
            [helper.make_tensor_value_info(n, dtype_of(v), v.shape) for n, v in feeds.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
        )
        model = helper.make_model(graph, opset_imports=opset_imports, ir_version=10)
        try:
            if _only_in_reference(nodes, feeds, outputs):
                results = dict(zip(outputs, ReferenceEvaluator(model).run(None, feeds), strict=True))
            else:
                results = run(model, feeds)
        except Exception as error:  # whatever makes it fail, the node is not part of the graph
            raise RejectedError(str(error)) from error
        return {name: np.asarray(value) for name, value in results.items()}

    def reducing(
        self, op_type: str, data: str, axes: Sequence[int] | None, outputs: int = 1, **attributes: Any
    ) -> str:
        """Add a node whose axes are an attribute or an input, as the opset has it."""
        if axes is None:
            return self.emit(op_type, [data], outputs, **attributes)
        if any(formal.name == "axes" for formal in self.schema(op_type).inputs):
            return self.emit(op_type, [data, self.ints(*axes)], outputs, **attributes)
        return self.emit(op_type, [data], outputs, axes=list(axes), **attributes)

    def body(self, prefix: str) -> "Builder":
        """Begin a body of a node: it sees the tensors around it."""
        return Builder(self.rng, self.opset, dict(self.values), prefix=self.name(prefix) + "_", outer=self)

    def graph(self, inputs: Sequence[str], outputs: Sequence[str]) -> GraphProto:
        """Finish a body."""
        return helper.make_graph(
            self.nodes,
            f"{self.prefix}body",
            [self.value_info(name) for name in inputs],
            [self.value_info(name) for name in outputs],
            [numpy_helper.from_array(self.values[name], name) for name in self.initializers],
        )

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        value = self.values[name]
        return helper.make_tensor_value_info(name, dtype_of(value), value.shape)


def _constant_node(builder: Builder, name: str, array: Array) -> NodeProto:
    if builder.opset >= 12 and array.ndim < 2 and builder.chance(2):
        kind = {np.dtype(np.float32): "float", np.dtype(np.int64): "int"}.get(array.dtype)
        if kind is not None and array.size:
            stem = f"value_{kind}" + ("s" if array.ndim else "")
            return helper.make_node("Constant", [], [name], **{stem: array.tolist()})
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def captured(node: NodeProto) -> list[str]:
    """Tensors that bodies of a node read from around it."""
    tensors: list[str] = []
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {v.name for v in body.input} | {t.name for t in body.initializer}
            for inner in body.node:
                tensors += [t for t in (*inner.input, *captured(inner)) if t and t not in own]
                own.update(inner.output)
            tensors += [v.name for v in body.output if v.name not in own]
    return tensors


def _refuse_out_of_bounds(values: Mapping[str, Array]) -> None:
    for value in values.values():
        if value.size > 4096:
            raise RejectedError("large")
        if value.dtype.kind == "f" and value.size:
            largest = np.abs(value).max()
            if not (largest == 0 or SMALLEST <= largest <= LARGEST):
                raise RejectedError("out of bounds")


def _only_in_reference(
    nodes: Sequence[NodeProto], feeds: Mapping[str, Array], outputs: Sequence[str]
) -> bool:
    """Whether NumPy arrays of a type are read or made that ONNX Runtime does not exchange."""
    if any(dtype_of(value) not in _IN_NUMPY for value in feeds.values()):
        return True
    targets = {n.output[0]: a.i for n in nodes for a in n.attribute if n.op_type == "Cast" and a.name == "to"}
    return any(targets.get(name, TensorProto.FLOAT) not in _IN_NUMPY for name in outputs)
