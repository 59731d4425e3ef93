"""Types of a node's inputs and outputs, from ONNX's own schemas."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from onnx import defs

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.signature import FLOAT, Signature

NO_SCHEMA = Ports(refusal=Refused.NO_SCHEMA.of())


@cache
def schema_of(op: OpKey, opset: int) -> defs.OpSchema | None:
    """Return ONNX's schema of an operator in an opset, or None when it has none."""
    try:
        return defs.get_schema(op.op_type, opset, op.domain)
    except defs.SchemaError:
        return None


def schema_ports(signature: Signature, precision: Precision) -> Ports:
    """Find the ports of an operator as its schema has them.

    These are the FP32 inputs and outputs that share the type variable of the data input, where
    that variable admits the low precision. All others keep their type (statistics of
    LayerNormalization, ratio of Dropout, scales of Resize).
    """
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    admitted = _variables_admitting(schema, precision.tensor_type)
    fp32_inputs, fp32_outputs = fp32_positions(signature)
    inputs = _type_variables(schema.inputs, len(signature.inputs))
    outputs = _type_variables(schema.outputs, len(signature.outputs))
    # The data's variable: the first FP32 input that may be low decides, among those of an output's
    # type where there are some (the values of OneHot, not its indices); a source has outputs only.
    candidates = [inputs[i] for i in sorted(fp32_inputs)] or [outputs[i] for i in sorted(fp32_outputs)]
    candidates.sort(key=lambda variable: variable not in outputs)
    variable = next((v for v in candidates if v in admitted), None)
    if variable is None or (not fp32_inputs and variable not in inputs):
        return _no_variant(signature, precision)
    return Ports(
        low_inputs=frozenset(i for i in fp32_inputs if inputs[i] == variable),
        low_outputs=frozenset(i for i in fp32_outputs if outputs[i] == variable),
    )


def one_type_ports(signature: Signature, precision: Precision) -> Ports:
    """Find the ports of an operator whose kernels want one type throughout, whatever its schema admits."""
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    admitted = _variables_admitting(schema, precision.tensor_type)
    fp32_inputs, fp32_outputs = fp32_positions(signature)
    inputs = _type_variables(schema.inputs, len(signature.inputs))
    outputs = _type_variables(schema.outputs, len(signature.outputs))
    variables = {inputs[i] for i in fp32_inputs} | {outputs[i] for i in fp32_outputs}
    if not variables & admitted:
        return _no_variant(signature, precision)
    return Ports(
        low_inputs=frozenset(i for i in fp32_inputs if inputs[i] in admitted),
        low_outputs=frozenset(i for i in fp32_outputs if outputs[i] in admitted),
    )


def attribute_ports(signature: Signature, precision: Precision, attribute: str) -> Ports:
    """Find the ports of an operator that states the type of its output in an attribute."""
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    admitted = _variables_admitting(schema, precision.tensor_type)
    if schema.outputs[0].type_str not in admitted:
        return _no_variant(signature, precision)
    # Without the attribute the output has the type of the input, so both change together.
    fp32_inputs, fp32_outputs = fp32_positions(signature)
    inputs = _type_variables(schema.inputs, len(signature.inputs))
    return Ports(
        low_inputs=frozenset(i for i in fp32_inputs if inputs[i] in admitted),
        low_outputs=fp32_outputs,
        attribute=attribute,
    )


def fp32_positions(signature: Signature) -> tuple[frozenset[int], frozenset[int]]:
    """List the positions of FP32 inputs, and those of FP32 outputs."""
    inputs = frozenset(i for i, x in enumerate(signature.inputs) if x is not None and x.dtype == FLOAT)
    outputs = frozenset(i for i, y in enumerate(signature.outputs) if y is not None and y.dtype == FLOAT)
    return inputs, outputs


def _no_variant(signature: Signature, precision: Precision) -> Ports:
    return Ports(refusal=Refused.NO_VARIANT.of(op=signature.op.label, low=precision.value))


def _variables_admitting(schema: defs.OpSchema, type_name: str) -> frozenset[str]:
    return frozenset(c.type_param_str for c in schema.type_constraints if type_name in c.allowed_type_strs)


def _type_variables(formals: Iterable[Any], count: int) -> tuple[str, ...]:
    """Type variable of each of `count` arguments; a variadic last one repeats."""
    names = [formal.type_str for formal in formals]
    return tuple(names[min(i, len(names) - 1)] for i in range(count)) if names else ()


def has_cast_to(precision: Precision, opset: int) -> bool:
    """Whether Cast makes a precision in an opset of the standard domain.

    Examples
    --------
    >>> [has_cast_to(Precision.BF16, opset) for opset in (12, 13)]
    [False, True]
    """
    schema = schema_of(OpKey("", "Cast"), opset)
    return schema is not None and precision.tensor_type in schema.outputs[0].types
