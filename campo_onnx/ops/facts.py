"""Facts of one node, from the registry: its ports, its work, its traffic, the types of its outputs.

Each is a pure function of the signature, computed once for all nodes that share it.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.ports import NO_FP32, Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.registry import Registry, current
from campo_onnx.ops.schema import fp32_positions, schema_ports
from campo_onnx.ops.signature import Operand, Shape, Signature, TensorType
from campo_onnx.ops.spec import Family, Refuses
from campo_onnx.ops.work import GUESS, Gemm, Stream, Work, WorkForm, WorkKind

_REMEMBERED = 1 << 12  # signatures; a large training graph has some hundreds


def ports_of(signature: Signature, precision: Precision) -> Ports:
    """Find the FP32 inputs and outputs of a node that become low together with it."""
    return _ports_of(signature, precision, current())


@lru_cache(_REMEMBERED)
def _ports_of(signature: Signature, precision: Precision, registry: Registry) -> Ports:
    spec = registry.spec_of(signature)
    refuses = isinstance(spec.ports, Refuses)
    computes_fp32 = any(fp32_positions(signature)) or signature.has_body
    if not computes_fp32 and not (refuses and spec.family is Family.CONTROL_FLOW):
        return NO_FP32
    if not refuses and (unknown := _unknown_type(signature)) is not None:
        return unknown
    return (spec.ports or schema_ports)(signature, precision)


def _unknown_type(signature: Signature) -> Ports | None:
    for what, operands in (("input", signature.inputs), ("output", signature.outputs)):
        for position, operand in enumerate(operands):
            if operand is not None and not operand.dtype:
                return Ports(refusal=Refused.UNKNOWN_TYPE.of(what=what, position=position))
    return None


def work_of(signature: Signature) -> Work:
    """Count what a node computes."""
    return _work_of(signature, current())


@lru_cache(_REMEMBERED)
def _work_of(signature: Signature, registry: Registry) -> Work:
    match _form(signature, registry):
        case WorkKind() as kind:
            return Work(kind=kind, flops=0.0)
        case Gemm() as gemm:
            return _gemm_work(gemm, signature)
        case Stream() as stream:
            return _stream_work(stream, signature)


def _form(signature: Signature, registry: Registry) -> WorkForm:
    return registry.spec_of(signature).work or GUESS


def _gemm_work(form: Gemm, signature: Signature) -> Work:
    positions = range(len(signature.inputs)) if form.inputs is None else form.inputs
    shapes = [signature.input(i).shape for i in positions] + [signature.output(i).shape for i in form.outputs]
    if None in shapes:
        return Work(kind=WorkKind.GEMM, flops=0.0, known=False)
    try:
        gemms = form.formula(signature, *shapes)
    except _UNFIT:
        return Work(kind=WorkKind.GEMM, flops=0.0, known=False)
    return Work(
        kind=WorkKind.GEMM,
        flops=sum(gemm.flops for gemm in gemms),
        gemms=gemms,
        known=None not in _shapes(signature),
    )


# What formulas raise on shapes and attributes that no such node has: ONNX does not check those of every
# operator, and what runs the graph is what refuses it.
_UNFIT = (ValueError, LookupError, TypeError, ArithmeticError)


def _stream_work(form: Stream, signature: Signature) -> Work:
    shapes = _shapes(signature)
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    window = signature.attributes.get("kernel_shape")
    # A pool computes one window for each element of its small side.
    elements = max(sizes, default=0) if window is None else min(sizes, default=0) * math.prod(window)
    rows = form.rows(signature) if form.rows is not None else None
    return Work(
        kind=WorkKind.STREAM,
        flops=form.flops * elements,
        rows=0 if rows is None else math.prod(rows),
        known=None not in shapes,
    )


def _shapes(signature: Signature) -> list[Shape | None]:
    return [operand.shape for operand in signature.operands]


def moved_bytes(signature: Signature, ports: Ports, low: Precision | None) -> float:
    """Bytes a node reads and writes in main memory.

    `low`: precision of those tensors, or None to count every tensor as it is stored.

    A tensor is read once, however many positions read it: caches do the rest. That holds for
    Softmax and LayerNormalization too, whose rows fit on the chip, but not for normalizations
    over the batch and for gradients that reduce twice: they read everything again.
    """
    return _moved_bytes(signature, ports, low, current())


@lru_cache(_REMEMBERED)
def _moved_bytes(signature: Signature, ports: Ports, low: Precision | None, registry: Registry) -> float:
    form = _form(signature, registry)
    if isinstance(form, WorkKind):
        return 0.0
    low_inputs, low_outputs = (ports.low_inputs, ports.low_outputs) if low is not None else ((), ())
    reads = {(x, i in low_inputs): None for i, x in enumerate(signature.inputs) if x is not None}
    written = sum(_nbytes(y, low, i in low_outputs) for i, y in enumerate(signature.outputs) if y is not None)
    passes = 1
    if isinstance(form, Stream):
        passes = form.passes if isinstance(form.passes, int) else form.passes(signature)
        if form.gathers:
            # Only the rows asked for are read, and they are as large as what is written.
            reads = {(x, is_low): None for x, is_low in reads if x != signature.inputs[0]}
            written *= 2
    return written + passes * sum(_nbytes(x, low, is_low) for x, is_low in reads)


def _nbytes(operand: Operand, low: Precision | None, is_low: bool) -> float:
    return float(operand.elements * low.itemsize_bytes) if is_low and low is not None else operand.nbytes


def axes_of(signature: Signature) -> tuple[str, ...] | None:
    """Say what part each axis of each input, and then of the first output, plays in a product.

    An axis has one letter, as in :mod:`campo_onnx.ops.gemms`; the answer is None for a node that zeros at
    the ends of its axes would change, or that is not a single product.
    """
    form = _form(signature, current())
    try:
        return form.axes(signature) if isinstance(form, Gemm) and form.axes is not None else None
    except _UNFIT:
        return None


def output_types(signature: Signature) -> Sequence[TensorType] | None:
    """Say what the outputs of an operator are that ONNX has no schema for.

    ONNX Runtime's training operators were in the standard domain once: what is known of an operator
    of one domain holds for its namesake in the other.

    They are by output position (there may be more or fewer of them than outputs); None when nothing is known.
    """
    registry = current()
    rule = registry.spec_of(signature).shapes
    if rule is None and signature.op.domain in ("", MICROSOFT):
        namesake = OpKey("" if signature.op.domain else MICROSOFT, signature.op.op_type)
        rule = registry.spec(namesake).shapes
    return None if rule is None else rule(signature)
