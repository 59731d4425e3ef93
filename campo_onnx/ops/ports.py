"""Which inputs and outputs of a node change type when the node changes precision.

Read from the operator's schema: the FP32 inputs and outputs that share the type variable of the
data input, where that variable admits the low precision. All others keep their type (statistics
of LayerNormalization, ratio of Dropout, scales of Resize).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs

from campo_onnx.ir.view import FLOAT, GraphView, OpNode
from campo_onnx.ops.contrib import CONTRIB_PORTS
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The FP32 inputs and outputs of a node that become low together with it.

    Parameters
    ----------
    low_inputs, low_outputs
        Positions among the node's inputs and outputs. All others keep their type.
    any_inputs
        FP32 inputs the node reads in whatever precision is there (Shape, Size): they never
        cause a Cast.
    attribute
        Name of the attribute that states the output's type (``to`` of Cast, ``value`` of
        ConstantOfShape, ``dtype`` of RandomUniform), if there is one.
    refusal
        Why the node cannot go low, or ``""`` when it can.
    """

    low_inputs: frozenset[int] = frozenset()
    low_outputs: frozenset[int] = frozenset()
    any_inputs: frozenset[int] = frozenset()
    attribute: str | None = None
    refusal: str = ""


NO_FP32 = Ports(refusal="computes no FP32")
"""What every node has that neither reads nor makes FP32; such nodes have no precision to choose."""

_TYPE_NAME = {Precision.FP16: "tensor(float16)", Precision.BF16: "tensor(bfloat16)"}
_CONTROL_FLOW = frozenset({OpKey("", "If"), OpKey("", "Loop"), OpKey("", "Scan")})
_SHAPE_READERS = frozenset({OpKey("", "Shape"), OpKey("", "Size")})
_TYPE_ATTRIBUTE = {
    "Bernoulli": "dtype",
    "ConstantOfShape": "value",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
}
_BARRIERS = frozenset(
    {
        OpKey("com.microsoft", "YieldOp"),
        OpKey("com.microsoft", "PythonOp"),
        OpKey("com.microsoft", "PythonOpGrad"),
        OpKey("org.pytorch.aten", "ATen"),
    }
)


def ports_of(node: OpNode, view: GraphView, precision: Precision) -> Ports:
    """Find the ports of one node.

    Parameters
    ----------
    node
        A node of `view`.
    view
        The graph, for types of tensors and the opset.
    precision
        The low precision in question.
    """
    fp32_inputs = frozenset(i for i, t in enumerate(node.inputs) if t and view.is_float32(t))
    fp32_outputs = frozenset(i for i, t in enumerate(node.outputs) if t and view.is_float32(t))
    captures_fp32 = any(view.is_float32(t) for t in node.captures)
    if node.op in _CONTROL_FLOW:
        return Ports(refusal="control flow: bodies and what they capture stay FP32")
    if not fp32_inputs and not fp32_outputs and not captures_fp32:
        return NO_FP32
    if node.op in _SHAPE_READERS:
        return Ports(any_inputs=fp32_inputs, refusal="reads only the shape")
    if refusal := _refusal(node, view):
        return Ports(refusal=refusal)
    if node.op == OpKey("", "Cast"):
        return _cast_ports(node, view)
    if node.op == OpKey("", "BatchNormalization"):
        return _batch_normalization_ports(node, fp32_inputs, fp32_outputs)
    if node.op in CONTRIB_PORTS:
        rule = CONTRIB_PORTS[node.op]
        return Ports(
            low_inputs=fp32_inputs.intersection(rule.inputs),
            low_outputs=fp32_outputs.intersection(rule.outputs),
        )
    schema = _schema(node.op, view.opset.get(node.op.domain, 1))
    if schema is None:
        return Ports(refusal="an operator ONNX has no schema for")
    if not node.op.domain and node.op.op_type in _TYPE_ATTRIBUTE:
        return _typed_ports(node, schema, precision, fp32_inputs, fp32_outputs)
    return _schema_ports(node, schema, precision, fp32_inputs, fp32_outputs)


def _refusal(node: OpNode, view: GraphView) -> str:
    if node.op in _BARRIERS:
        return "an FP32 boundary to the framework"
    if node.op == OpKey("", "Constant"):
        return "a constant"
    for tensor in (*node.inputs, *node.outputs):
        if tensor and view.tensors[tensor].dtype == TensorProto.UNDEFINED:
            return f"the type of {tensor!r} is unknown or not a tensor"
    return ""


def _cast_ports(node: OpNode, view: GraphView) -> Ports:
    source = view.tensors[node.inputs[0]].dtype
    target = view.tensors[node.outputs[0]].dtype
    if source == TensorProto.BOOL and target == FLOAT:
        return Ports(low_outputs=frozenset({0}), attribute="to")
    if source == FLOAT and target == TensorProto.BOOL:
        return Ports(low_inputs=frozenset({0}))
    if {source, target} <= {FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}:
        return Ports(refusal="an existing change of precision")
    return Ports(refusal="converts numbers that the low precision may not hold")


def _batch_normalization_ports(
    node: OpNode, fp32_inputs: frozenset[int], fp32_outputs: frozenset[int]
) -> Ports:
    if node.attributes.get("training_mode", 0) or len([t for t in node.outputs if t]) > 1:
        return Ports(refusal="BatchNormalization trains in FP32 only")
    # The schema lets scale and statistics keep FP32, but the CUDA provider registers kernels only
    # for one type throughout; it widens scale and statistics to FP32 inside.
    return Ports(low_inputs=fp32_inputs, low_outputs=fp32_outputs)


def _typed_ports(
    node: OpNode,
    schema: defs.OpSchema,
    precision: Precision,
    fp32_inputs: frozenset[int],
    fp32_outputs: frozenset[int],
) -> Ports:
    admitted = _variables_admitting(schema, _TYPE_NAME[precision])
    if schema.outputs[0].type_str not in admitted:
        return Ports(refusal=_no_variant(node, precision))
    # Without the attribute the output has the type of the input, so both change together.
    inputs = _type_variables(schema.inputs, len(node.inputs))
    return Ports(
        low_inputs=frozenset(i for i in fp32_inputs if inputs[i] in admitted),
        low_outputs=fp32_outputs,
        attribute=_TYPE_ATTRIBUTE[node.op.op_type],
    )


def _schema_ports(
    node: OpNode,
    schema: defs.OpSchema,
    precision: Precision,
    fp32_inputs: frozenset[int],
    fp32_outputs: frozenset[int],
) -> Ports:
    admitted = _variables_admitting(schema, _TYPE_NAME[precision])
    inputs = _type_variables(schema.inputs, len(node.inputs))
    outputs = _type_variables(schema.outputs, len(node.outputs))
    # The data's variable: the first FP32 input that may be low decides; a source has outputs only.
    candidates = [inputs[i] for i in sorted(fp32_inputs)] or [outputs[i] for i in sorted(fp32_outputs)]
    variable = next((v for v in candidates if v in admitted), None)
    if variable is None or (not fp32_inputs and variable not in inputs):
        return Ports(refusal=_no_variant(node, precision))
    return Ports(
        low_inputs=frozenset(i for i in fp32_inputs if inputs[i] == variable),
        low_outputs=frozenset(i for i in fp32_outputs if outputs[i] == variable),
    )


def _no_variant(node: OpNode, precision: Precision) -> str:
    return f"{node.op.label} has no {precision.value} variant in this opset"


@cache
def _schema(op: OpKey, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(op.op_type, opset, op.domain)
    except defs.SchemaError:
        return None


def _variables_admitting(schema: defs.OpSchema, type_name: str) -> frozenset[str]:
    return frozenset(c.type_param_str for c in schema.type_constraints if type_name in c.allowed_type_strs)


def _type_variables(formals: Iterable[Any], count: int) -> tuple[str, ...]:
    """Type variable of each of `count` arguments; a variadic last one repeats."""
    names = [formal.type_str for formal in formals]
    return tuple(names[min(i, len(names) - 1)] for i in range(count)) if names else ()


def low_attribute(node: OpNode, ports: Ports, precision: Precision) -> Any:
    """Value of ``ports.attribute`` that makes the node's output low.

    Returns
    -------
    int or onnx.TensorProto
        A data type for ``to`` and ``dtype``, a one-element tensor for ``value``.
    """
    if ports.attribute != "value":
        return precision.onnx_dtype
    value = node.attributes.get("value", np.zeros(1, np.float32))
    return onnx.helper.make_tensor("value", precision.onnx_dtype, [1], [float(np.ravel(value)[0])])
