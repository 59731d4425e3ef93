"""Types of a node's inputs and outputs, from ONNX's own schemas."""

from collections.abc import Container, Iterable
from dataclasses import replace
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


class _Types:
    """Type variables of a node's inputs and outputs, and those that admit a precision."""

    def __init__(self, schema: defs.OpSchema, signature: Signature, precision: Precision) -> None:
        name = precision.tensor_type
        self.admitted = {c.type_param_str for c in schema.type_constraints if name in c.allowed_type_strs}
        self.fp32_inputs, self.fp32_outputs = fp32_positions(signature)
        self.inputs = _type_variables(schema.inputs, len(signature.inputs))
        self.outputs = _type_variables(schema.outputs, len(signature.outputs))

    def ports(self, variables: Container[str]) -> Ports:
        """Let the FP32 inputs and outputs of some variables become low."""
        return Ports(
            low_inputs=frozenset(i for i in self.fp32_inputs if self.inputs[i] in variables),
            low_outputs=frozenset(i for i in self.fp32_outputs if self.outputs[i] in variables),
        )


def schema_ports(signature: Signature, precision: Precision) -> Ports:
    """Find the ports of an operator as its schema has them.

    These are the FP32 inputs and outputs that share the type variable of the data input, where
    that variable admits the low precision. All others keep their type (statistics of
    LayerNormalization, ratio of Dropout, scales of Resize).
    """
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    types = _Types(schema, signature, precision)
    # The data's variable: the first FP32 input that may be low decides, among those of an output's
    # type where there are some (the values of OneHot, not its indices); a source has outputs only.
    candidates = [types.inputs[i] for i in sorted(types.fp32_inputs)] or [
        types.outputs[i] for i in sorted(types.fp32_outputs)
    ]
    candidates.sort(key=lambda variable: variable not in types.outputs)
    variable = next((v for v in candidates if v in types.admitted), None)
    if variable is None or (not types.fp32_inputs and variable not in types.inputs):
        return _no_variant(signature, precision)
    return types.ports((variable,))


def one_type_ports(signature: Signature, precision: Precision) -> Ports:
    """Find the ports of an operator whose kernels want one type throughout, whatever its schema admits."""
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    types = _Types(schema, signature, precision)
    ports = types.ports(types.admitted)
    return ports if ports.low_inputs or ports.low_outputs else _no_variant(signature, precision)


def attribute_ports(signature: Signature, precision: Precision, attribute: str) -> Ports:
    """Find the ports of an operator that states the type of its output in an attribute."""
    schema = schema_of(signature.op, signature.opset)
    if schema is None:
        return NO_SCHEMA
    types = _Types(schema, signature, precision)
    if schema.outputs[0].type_str not in types.admitted:
        return _no_variant(signature, precision)
    # Without the attribute the output has the type of the input, so both change together.
    return replace(types.ports(types.admitted), low_outputs=types.fp32_outputs, attribute=attribute)


def fp32_positions(signature: Signature) -> tuple[frozenset[int], frozenset[int]]:
    """List the positions of FP32 inputs, and those of FP32 outputs."""
    inputs = frozenset(i for i, x in enumerate(signature.inputs) if x is not None and x.dtype == FLOAT)
    outputs = frozenset(i for i, y in enumerate(signature.outputs) if y is not None and y.dtype == FLOAT)
    return inputs, outputs


def _no_variant(signature: Signature, precision: Precision) -> Ports:
    return Ports(refusal=Refused.NO_VARIANT.of(op=signature.op.label, low=precision.value))


def _type_variables(formals: Iterable[Any], count: int) -> tuple[str, ...]:
    """Type variable of each of `count` arguments; a variadic last one repeats."""
    names = [formal.type_str for formal in formals]
    return tuple(names[min(i, len(names) - 1)] for i in range(count)) if names else ()


def has_cast_to(precision: Precision, opset: int) -> bool:
    """Whether Cast makes a precision in an opset of the standard domain.

    >>> [has_cast_to(Precision.BF16, opset) for opset in (12, 13)]
    [False, True]
    """
    schema = schema_of(OpKey("", "Cast"), opset)
    return schema is not None and precision.tensor_type in schema.outputs[0].types
