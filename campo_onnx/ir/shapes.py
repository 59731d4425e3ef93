"""Types and static shapes of every tensor of a training graph, once its input sizes are bound.

What is known of a tensor comes from, best first:

1. inference from the inputs of the node (ONNX's rules, those of :mod:`campo_onnx.ops.registry`, and
   :mod:`campo_onnx.ops.fold` for the values of shape arithmetic);
2. ONNX Runtime's naming rule: ``<tensor>_grad`` has the shape of ``<tensor>``;
3. what the model declares (``value_info`` and graph outputs).

A declared shape that contradicts an inferred one loses: it may be left over from another batch
size, while inference follows from the sizes bound now. One exception: the element types of ``ATen``
and ``PythonOp`` outputs are taken as declared, because ONNX Runtime knows no other source.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto
from onnx.defs import OpSchema
from onnx.shape_inference import InferenceError

from campo_onnx.errors import ModelError
from campo_onnx.ir.check import hide_in_bodies, is_unsafe_to_infer
from campo_onnx.ir.constants import constants_of, is_external
from campo_onnx.ir.dims import bind_type, check_dims, static_shape
from campo_onnx.ir.gradient_names import differentiated_tensor
from campo_onnx.ir.onnx_inference import HIDDEN, infer_types
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ops.facts import output_types
from campo_onnx.ops.fold import Value, fold, is_small, may_decide, may_fold
from campo_onnx.ops.key import CONSTANT, OpKey
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Shape, Signature, TensorType, operands


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTypes:
    """Types, shapes and small values of every tensor of the main graph, by name.

    Parameters
    ----------
    dtypes
        ``TensorProto.DataType``; 0 when unknown or not a tensor (a sequence, say).
    shapes
        Static dimensions, or None when unknown.
    values
        Constants of any type and tensors computed from sizes, of at most
        :data:`campo_onnx.ops.fold.MAX_ELEMENTS` elements. External data is never read.
    """

    dtypes: Mapping[str, int]
    shapes: Mapping[str, Shape | None]
    values: Mapping[str, Value]


def infer(model: ModelProto, dims: Mapping[str, int]) -> TensorTypes:
    """Infer the type and static shape of every tensor of the main graph.

    The model is not modified, and large initializers are not copied.

    Parameters
    ----------
    model
        Nodes in topological order, names unique, local functions inlined; external data need not
        be loaded.
    dims
        Size of each symbolic dimension. A dimension of a graph input without a name is called
        ``<input>[<axis>]``.

    Raises
    ------
    UsageError
        If a size of a graph input is missing, is not positive, or names no dimension.
    ModelError
        If the inputs of a node contradict each other or its operator.
    """
    check_dims(model.graph, dims)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    known = _Known(dims=dims, opsets=opsets, opset_imports=imports)
    for info in (*model.graph.value_info, *model.graph.output):
        known.declared[info.name] = bind_type(info.type, dims)
    _infer_globally(model, known)
    for node in model.graph.node:
        if any(name and name not in known.shapes for name in node.output):
            _resolve(node, known)
        if may_fold(node):
            _fold(node, known)
        elif node.op_type == "Cast" and not node.domain:
            _fold_widening(node, known)
    names = [*known.types, *(name for node in model.graph.node for name in node.output if name)]
    return TensorTypes(
        dtypes=MappingProxyType({name: known.spec(name).dtype for name in names}),
        shapes=MappingProxyType({name: known.shapes.get(name) for name in names}),
        values=MappingProxyType(known.values),
    )


@dataclass(slots=True, kw_only=True)
class _Known:
    """The types and shapes that are inferred so far."""

    dims: Mapping[str, int]
    opsets: Mapping[str, int]
    opset_imports: Sequence[OperatorSetIdProto]
    types: dict[str, TypeProto] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)  # static ones only
    values: dict[str, Value] = field(default_factory=dict)
    declared: dict[str, TypeProto] = field(default_factory=dict)
    # Tensors that rest on a name or a declaration, directly or not: a contradiction there is no proof
    # that the model is wrong.
    assumed: set[str] = field(default_factory=set)

    def record(self, name: str, tensor: TypeProto) -> None:
        self.types[name] = tensor
        shape = static_shape(tensor)
        if shape is not None:
            self.shapes[name] = shape

    def spec(self, name: str) -> TensorType:
        declared = self.types.get(name)
        return TensorType(declared.tensor_type.elem_type if declared else 0, self.shapes.get(name))


# --- one global pass of ONNX's own inference -----------------------------------------------------


def _infer_globally(model: ModelProto, known: _Known) -> None:
    payload = _slim_copy(model, known).SerializeToString()
    try:
        wanted = [t for node in model.graph.node for t in node.output if t and t not in known.types]
        types = infer_types(payload, known.types, wanted)
    except (InferenceError, ValueError, MemoryError) as error:  # the latter two: what its C++ throws
        raise ModelError(
            "ONNX cannot infer the shapes of the model", why=_readable(error), remedy=_CHECK_REMEDY
        ) from error
    for name, inferred in types.items():
        known.record(name, inferred)


def _slim_copy(model: ModelProto, known: _Known) -> ModelProto:
    """Copy what inference needs: inputs bound, large constants as mere inputs, nothing declared."""
    graph = model.graph
    # From IR 4 on an initializer need not be an input as well.
    slim = ModelProto(ir_version=max(model.ir_version, 4), graph=GraphProto(name=graph.name))
    slim.opset_import.extend(known.opset_imports)
    slim.opset_import.add(domain=HIDDEN, version=1)
    constants = constants_of(graph)
    for name, tensor in constants.items():
        known.record(name, onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
        if is_small(tensor.dims) and not is_external(tensor):
            known.values[name] = _value_of(tensor)
            slim.graph.initializer.add().CopyFrom(tensor)
        else:
            slim.graph.input.add(name=name, type=known.types[name])
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        known.record(name, onnx.helper.make_tensor_type_proto(sparse.values.data_type, sparse.dims))
        slim.graph.input.add(name=name, type=known.types[name])
    for info in graph.input:
        if info.name not in known.types:
            known.record(info.name, bind_type(info.type, known.dims, info.name))
            slim.graph.input.add(name=info.name, type=known.types[info.name])
    for node in graph.node:
        if OpKey.of(node) != CONSTANT or node.output[0] not in constants:
            copy = slim.graph.node.add()
            copy.CopyFrom(node)
            if is_unsafe_to_infer(node):
                copy.domain = HIDDEN  # resolved below, once it is known what it reads
            hide_in_bodies(copy, HIDDEN)
    return slim


def _value_of(tensor: TensorProto) -> Value:
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"Constant {tensor.name!r} is damaged", why=str(error), remedy="Export the model again."
        ) from error


# --- one pass over what is left ------------------------------------------------------------------


def _resolve(node: NodeProto, known: _Known) -> None:
    rests_on_assumption = bool(known.assumed.intersection(node.input))
    types: Mapping[str, TypeProto] = {}
    try:
        types = _infer_outputs(node, known)
    except (InferenceError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        if not rests_on_assumption:
            raise _contradiction(node, known, error) from error
    for name in filter(None, node.output):
        if name in known.shapes:
            continue
        if name in types:
            known.record(name, types[name])
        declared_dtype = known.declared[name].tensor_type.elem_type if name in known.declared else 0
        if declared_dtype and spec(OpKey.of(node)).typed_by_declaration:
            known.record(name, _tensor_type(TensorType(declared_dtype, known.shapes.get(name))))
        if name not in known.shapes:
            _assume(name, known)
        elif rests_on_assumption:
            known.assumed.add(name)


def _infer_outputs(node: NodeProto, known: _Known) -> Mapping[str, TypeProto]:
    """Types of the outputs as far as they follow from the inputs; raises where these disagree."""
    version = known.opsets.get(node.domain, 1)
    if onnx.defs.has(node.op_type, version, node.domain):
        return _infer_by_schema(node, onnx.defs.get_schema(node.op_type, version, node.domain), known)
    pairs = zip(node.output, output_types(_signature(node, known)) or (), strict=False)
    return {name: _tensor_type(inferred) for name, inferred in pairs if name and inferred.dtype}


def _signature(node: NodeProto, known: _Known) -> Signature:
    """Describe a node by what is known so far: values of all small inputs are constants."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    values = {i: known.values[name] for i, name in enumerate(node.input) if name in known.values}
    return Signature(
        op=OpKey.of(node),
        opset=known.opsets.get(node.domain, 1),
        inputs=operands("x", ((name, *known.spec(name)) for name in node.input)),
        outputs=operands("y", ((name, 0, None) for name in node.output)),
        attributes={
            name: value.decode(errors="replace") if isinstance(value, bytes) else value
            for name, value in attributes.items()
        },
        constants=values,
    )


def _infer_by_schema(node: NodeProto, schema: OpSchema, known: _Known) -> Mapping[str, TypeProto]:
    types = {name: known.types[name] for name in (*node.input, *outer_reads(node)) if name in known.types}
    if any(name and not _has_type(types.get(name)) for name in node.input):
        return {}
    values = {name: known.values[name] for name in node.input if name in known.values}
    shown = NodeProto()
    shown.CopyFrom(node)
    hide_in_bodies(shown, HIDDEN)
    return onnx.shape_inference.infer_node_outputs(
        schema,
        shown,
        types,
        input_data={name: onnx.numpy_helper.from_array(value) for name, value in values.items()},
        opset_imports=[*known.opset_imports, onnx.helper.make_opsetid(HIDDEN, 1)],
    )


def _assume(name: str, known: _Known) -> None:
    """Take the shape from the naming rule or the declaration, keeping a type that was inferred."""
    declared = known.declared.get(name, TypeProto())
    assumed = known.types.get(name, declared)
    if assumed.WhichOneof("value") not in (None, "tensor_type"):
        known.types[name] = assumed
        return
    forward = differentiated_tensor(name)
    by_name = TensorType() if forward is None else known.spec(forward)
    shape = by_name.shape if by_name.shape is not None else static_shape(declared)
    dtype = assumed.tensor_type.elem_type or declared.tensor_type.elem_type or by_name.dtype
    if shape is None and name in known.types:
        return  # what was inferred may at least tell the rank
    known.record(name, _tensor_type(TensorType(dtype, shape)))
    known.assumed.add(name)


def _fold(node: NodeProto, known: _Known) -> None:
    standard = not node.domain
    for name in filter(None, node.output):
        spec = known.spec(name)
        if not may_decide(node, spec.dtype) or (
            standard and (spec.shape is None or not is_small(spec.shape))
        ):
            return
    shapes = [known.shapes.get(name) for name in node.input]
    values = [known.values.get(name) for name in node.input]
    folded = fold(node, shapes, values, known.opsets.get("", 1))
    for name, value in zip(node.output, folded, strict=False):
        if name and value is not None:
            known.values[name] = value
            dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            known.record(name, _tensor_type(TensorType(dtype, value.shape)))
            if known.assumed.intersection(node.input):
                known.assumed.add(name)


def _fold_widening(node: NodeProto, known: _Known) -> None:
    """Follow small constants of a low format through a Cast to FP32, which changes no value."""
    value = known.values.get(node.input[0])
    is_low = is_low_dtype(known.spec(node.input[0]).dtype)
    if value is not None and is_low and known.spec(node.output[0]).dtype == TensorProto.FLOAT:
        known.values[node.output[0]] = value.astype(np.float32)


# --- types and messages --------------------------------------------------------------------------


def _tensor_type(spec: TensorType) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(spec.dtype, spec.shape)


def _has_type(found: TypeProto | None) -> bool:
    return found is not None and (not found.HasField("tensor_type") or found.tensor_type.elem_type != 0)


_CHECK_REMEDY = "Check the model with onnx.checker.check_model(model, full_check=True)."


def _contradiction(node: NodeProto, known: _Known, error: Exception) -> ModelError:
    inputs = (f"{name}: {_spelled(known.spec(name))}" for name in node.input if name)
    options = " ".join(f"--dim {name}={size}" for name, size in known.dims.items())
    return ModelError(
        f"The inputs of node {node.name!r} ({node.op_type}) do not fit together",
        why=f"{_readable(error)} ({', '.join(inputs)})",
        remedy=f"Are these sizes meant: {options}?" if options else _CHECK_REMEDY,
    )


def _spelled(spec: TensorType) -> str:
    shape = "of unknown shape" if spec.shape is None else "x".join(map(str, spec.shape)) or "scalar"
    return f"{TensorProto.DataType.Name(spec.dtype)} {shape}"


def _readable(error: Exception) -> str:
    """Drop ONNX's own error names: what is left says what disagrees."""
    return re.sub(r"\[\w+Error\]\s*|\(op_type:[^)]*\):\s*|Inference error\(s\):\s*", "", str(error)).strip()
