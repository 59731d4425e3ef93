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
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto
from onnx.defs import OpSchema
from onnx.shape_inference import InferenceError

from campo_onnx.errors import ModelError
from campo_onnx.ir.check import hide_in_bodies, is_unsafe_to_infer
from campo_onnx.ir.constants import array_of, constants_of, is_external
from campo_onnx.ir.dims import bind_type, check_dims, static_shape
from campo_onnx.ir.gradient_names import differentiated_tensor
from campo_onnx.ir.limits import MAX_ELEMENTS, MAX_RANK, is_too_large
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
    """Types, shapes and small values of every tensor of the main graph, by name."""

    dtypes: Mapping[str, int]  # `TensorProto.DataType`; 0 when unknown or not a tensor (a sequence, say)
    shapes: Mapping[str, Shape | None]
    # Constants of any type and tensors computed from sizes, of at most MAX_ELEMENTS elements. External data
    # is never read.
    values: Mapping[str, Value]


def infer(model: ModelProto, dims: Mapping[str, int]) -> TensorTypes:
    """Infer the type and static shape of every tensor of the main graph.

    The model is not modified, and large initializers are not copied.

    `model`: nodes in topological order, names unique, local functions inlined; external data need not be
    loaded.
    `dims`: size of each symbolic dimension. A dimension of a graph input without a name is called
    ``<input>[<axis>]``.
    """
    check_dims(model.graph, dims)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    context = _Context(dims=dims, opsets=opsets, opset_imports=imports)
    for info in (*model.graph.value_info, *model.graph.output):
        context.declared[info.name] = bind_type(info.type, dims)
    _infer_globally(model, context)
    for node in model.graph.node:
        if any(name and name not in context.shapes for name in node.output):
            _resolve(node, context)
        if may_fold(node):
            _fold(node, context)
        elif node.op_type == "Cast" and not node.domain:
            _fold_widening(node, context)
    names = [*context.types, *(name for node in model.graph.node for name in node.output if name)]
    return TensorTypes(
        dtypes=MappingProxyType({name: context.spec(name).dtype for name in names}),
        shapes=MappingProxyType({name: context.shapes.get(name) for name in names}),
        values=MappingProxyType(context.values),
    )


@dataclass(slots=True, kw_only=True)
class _Context:
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
        rank = len(tensor.tensor_type.shape.dim)
        if rank > MAX_RANK:
            raise ModelError(
                f"the tensor {name!r} has {rank:,} axes",
                why=f"{MAX_RANK} are the most",
                remedy="Check the shapes in the file.",
            )
        self.types[name] = tensor
        shape = static_shape(tensor)
        if shape is None:
            return
        if is_too_large(shape):
            raise ModelError(
                f"the tensor {name!r} of shape {list(shape)} is too large",
                why=f"{MAX_ELEMENTS:,} elements are the most",
                remedy=_are_these_meant(self.dims) or "Check the sizes in the file.",
            )
        self.shapes[name] = shape

    def spec(self, name: str) -> TensorType:
        declared = self.types.get(name)
        return TensorType(declared.tensor_type.elem_type if declared else 0, self.shapes.get(name))


# --- one global pass of ONNX's own inference -----------------------------------------------------


def _infer_globally(model: ModelProto, context: _Context) -> None:
    payload = _slim_copy(model, context).SerializeToString()
    try:
        wanted = [t for node in model.graph.node for t in node.output if t and t not in context.types]
        types = infer_types(payload, context.types, wanted)
    except (InferenceError, ValueError, MemoryError) as error:  # the latter two: what its C++ throws
        raise ModelError(
            "ONNX cannot infer the shapes of the model", why=_readable(error), remedy=_CHECK_REMEDY
        ) from error
    for name, inferred in types.items():
        context.record(name, inferred)


def _slim_copy(model: ModelProto, context: _Context) -> ModelProto:
    """Copy what inference needs: inputs bound, large constants as mere inputs, nothing declared."""
    graph = model.graph
    # From IR 4 on an initializer need not be an input as well.
    slim = ModelProto(ir_version=max(model.ir_version, 4), graph=GraphProto(name=graph.name))
    slim.opset_import.extend(context.opset_imports)
    slim.opset_import.add(domain=HIDDEN, version=1)
    constants = constants_of(graph)
    for name, tensor in constants.items():
        context.record(name, onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
        if is_small(tensor.dims) and not is_external(tensor):
            context.values[name] = array_of(tensor, "Constant")
            slim.graph.initializer.add().CopyFrom(tensor)
        else:
            slim.graph.input.add(name=name, type=context.types[name])
    for info in graph.input:
        if info.name not in context.types:
            context.record(info.name, bind_type(info.type, context.dims, info.name))
            slim.graph.input.add(name=info.name, type=context.types[info.name])
    for node in graph.node:
        if OpKey.of(node) != CONSTANT or node.output[0] not in constants:
            copy = slim.graph.node.add()
            copy.CopyFrom(node)
            if is_unsafe_to_infer(node):
                copy.domain = HIDDEN  # resolved below, once it is known what it reads
            hide_in_bodies(copy, HIDDEN)
    return slim


# --- one pass over what is left ------------------------------------------------------------------


def _resolve(node: NodeProto, context: _Context) -> None:
    rests_on_assumption = bool(context.assumed.intersection(node.input))
    types: Mapping[str, TypeProto] = {}
    try:
        types = _infer_outputs(node, context)
    except (InferenceError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        if not rests_on_assumption:
            raise _contradiction(node, context, error) from error
    for name in filter(None, node.output):
        if name in context.shapes:
            continue
        if name in types:
            context.record(name, types[name])
        declared_dtype = context.declared[name].tensor_type.elem_type if name in context.declared else 0
        if declared_dtype and spec(OpKey.of(node)).typed_by_declaration:
            context.record(name, _tensor_type(TensorType(declared_dtype, context.shapes.get(name))))
        if name not in context.shapes:
            _assume(name, context)
        elif rests_on_assumption:
            context.assumed.add(name)


def _infer_outputs(node: NodeProto, context: _Context) -> Mapping[str, TypeProto]:
    """Types of the outputs as far as they follow from the inputs; raises where these disagree."""
    version = context.opsets.get(node.domain, 1)
    if onnx.defs.has(node.op_type, version, node.domain):
        return _infer_by_schema(node, onnx.defs.get_schema(node.op_type, version, node.domain), context)
    pairs = zip(node.output, output_types(_signature(node, context)) or (), strict=False)
    return {name: _tensor_type(inferred) for name, inferred in pairs if name and inferred.dtype}


def _signature(node: NodeProto, context: _Context) -> Signature:
    """Describe a node by what is known so far: values of all small inputs are constants."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    values = {i: context.values[name] for i, name in enumerate(node.input) if name in context.values}
    return Signature(
        op=OpKey.of(node),
        opset=context.opsets.get(node.domain, 1),
        inputs=operands("x", ((name, *context.spec(name)) for name in node.input)),
        outputs=operands("y", ((name, 0, None) for name in node.output)),
        attributes={
            name: value.decode(errors="replace") if isinstance(value, bytes) else value
            for name, value in attributes.items()
        },
        constants=values,
    )


def _infer_by_schema(node: NodeProto, schema: OpSchema, context: _Context) -> Mapping[str, TypeProto]:
    types = {name: context.types[name] for name in (*node.input, *outer_reads(node)) if name in context.types}
    if any(name and not _has_type(types.get(name)) for name in node.input):
        return {}
    values = {name: context.values[name] for name in node.input if name in context.values}
    shown = deepcopy(node)
    hide_in_bodies(shown, HIDDEN)
    return onnx.shape_inference.infer_node_outputs(
        schema,
        shown,
        types,
        input_data={name: onnx.numpy_helper.from_array(value) for name, value in values.items()},
        opset_imports=[*context.opset_imports, onnx.helper.make_opsetid(HIDDEN, 1)],
    )


def _assume(name: str, context: _Context) -> None:
    """Take the shape from the naming rule or the declaration, keeping a type that was inferred."""
    declared = context.declared.get(name, TypeProto())
    assumed = context.types.get(name, declared)
    if assumed.WhichOneof("value") not in (None, "tensor_type"):
        context.types[name] = assumed
        return
    forward = differentiated_tensor(name)
    by_name = TensorType() if forward is None else context.spec(forward)
    shape = by_name.shape if by_name.shape is not None else static_shape(declared)
    dtype = assumed.tensor_type.elem_type or declared.tensor_type.elem_type or by_name.dtype
    if shape is None and name in context.types:
        return  # what was inferred may at least tell the rank
    context.record(name, _tensor_type(TensorType(dtype, shape)))
    context.assumed.add(name)


def _fold(node: NodeProto, context: _Context) -> None:
    standard = not node.domain
    for name in filter(None, node.output):
        spec = context.spec(name)
        if not may_decide(node, spec.dtype) or (
            standard and (spec.shape is None or not is_small(spec.shape))
        ):
            return
    shapes = [context.shapes.get(name) for name in node.input]
    values = [context.values.get(name) for name in node.input]
    folded = fold(node, shapes, values, context.opsets.get("", 1))
    for name, value in zip(node.output, folded, strict=False):
        if name and value is not None:
            context.values[name] = value
            dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            context.record(name, _tensor_type(TensorType(dtype, value.shape)))
            if context.assumed.intersection(node.input):
                context.assumed.add(name)


def _fold_widening(node: NodeProto, context: _Context) -> None:
    """Follow small constants of a low format through a Cast to FP32, which changes no value."""
    value = context.values.get(node.input[0])
    is_low = is_low_dtype(context.spec(node.input[0]).dtype)
    if value is not None and is_low and context.spec(node.output[0]).dtype == TensorProto.FLOAT:
        context.values[node.output[0]] = value.astype(np.float32)


# --- types and messages --------------------------------------------------------------------------


def _tensor_type(spec: TensorType) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(spec.dtype, spec.shape)


def _has_type(declared: TypeProto | None) -> bool:
    return declared is not None and (
        not declared.HasField("tensor_type") or declared.tensor_type.elem_type != 0
    )


_CHECK_REMEDY = "Check the model with onnx.checker.check_model(model, full_check=True)."


def _contradiction(node: NodeProto, context: _Context, error: Exception) -> ModelError:
    inputs = (f"{name}: {_spelled(context.spec(name))}" for name in node.input if name)
    return ModelError(
        f"The inputs of node {node.name!r} ({node.op_type}) do not fit together",
        why=f"{_readable(error)} ({', '.join(inputs)})",
        remedy=_are_these_meant(context.dims) or _CHECK_REMEDY,
    )


def _are_these_meant(dims: Mapping[str, int]) -> str:
    options = " ".join(f"--dim {name}={size}" for name, size in dims.items())
    return f"Are these sizes meant: {options}?" if options else ""


def _spelled(spec: TensorType) -> str:
    shape = "of unknown shape" if spec.shape is None else "x".join(map(str, spec.shape)) or "scalar"
    return f"{TensorProto.DataType.Name(spec.dtype)} {shape}"


def _readable(error: Exception) -> str:
    """Drop ONNX's own error names: what is left says what disagrees."""
    return re.sub(r"\[\w+Error\]\s*|\(op_type:[^)]*\):\s*|Inference error\(s\):\s*", "", str(error)).strip()
