"""Operators read from their schemas: whatever maps one or two float tensors to one."""

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from tests.random_graphs.builder import Builder, RejectedError

# What the general rule would draw wrongly: random, sized by a value, or with a sampler elsewhere.
_ELSEWHERE = """
    Bernoulli BitCast BlackmanWindow Cast CastLike Constant ConstantOfShape DFT Det Dropout EyeLike Gather
    GatherElements Gemm Gradient HammingWindow HannWindow If ImageDecoder Loop MatMul Multinomial NonZero
    Optional OptionalGetElement OptionalHasElement RandomNormalLike RandomUniformLike STFT Scan
    SequenceConstruct SequenceEmpty SequenceLength Shape Size SplitToSequence Swish Upsample
"""


@cache
def schemas(opset: int, tensors: int) -> tuple[OpSchema, ...]:
    """Operators of an opset that need this many tensors of one float type and make one tensor."""
    by_name = {}
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.name in _ELSEWHERE.split() or not onnx.defs.has(schema.name, opset):
            continue
        current = onnx.defs.get_schema(schema.name, opset)
        required = [f for f in current.inputs if f.option != OpSchema.FormalParameterOption.Optional]
        if current.deprecated or len(required) != tensors or len(current.outputs) > 2:
            continue
        floats = {
            c.type_param_str for c in current.type_constraints if "tensor(float)" in c.allowed_type_strs
        }
        if all(f.type_str in floats for f in required):
            by_name[schema.name] = current
    return tuple(by_name.values())


def attributes_of(b: Builder, schema: OpSchema, rank: int) -> dict[str, Any]:
    """Draw attributes: those that are required, and some others."""
    drawn: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        if not attribute.required and b.chance(2):
            continue
        value = _attribute(b, name, attribute, rank)
        if value is not None:
            drawn[name] = value
        elif attribute.required:
            raise RejectedError(f"{schema.name} needs {name}")
    return drawn


def _attribute(b: Builder, name: str, attribute: Any, rank: int) -> Any:
    draws = {
        "alpha": lambda: b.rng.choice((0.1, 0.5, 1.0)),
        "beta": lambda: b.rng.choice((0.2, 0.75)),
        "gamma": lambda: 1.1,
        "bias": lambda: 0.25,
        "lambd": lambda: 0.4,
        "epsilon": lambda: b.rng.choice((1e-3, 1e-5)),
        "axis": lambda: b.rng.randrange(-rank, rank) if rank else 0,
        "axes": lambda: [b.rng.randrange(rank)] if rank else None,
        "keepdims": lambda: b.rng.randrange(2),
        "fmod": lambda: 1,
        "size": lambda: 3,
        "p": lambda: b.rng.choice((1, 2)),
        "blocksize": lambda: 2,
        "kernel_shape": lambda: [2] * max(rank - 2, 1),
        "perm": lambda: b.rng.sample(range(rank), rank),
        "exclusive": lambda: b.rng.randrange(2),
        "reverse": lambda: b.rng.randrange(2),
        "largest": lambda: b.rng.randrange(2),
        "select_last_index": lambda: b.rng.randrange(2),
        "noop_with_empty_axes": lambda: b.rng.randrange(2),
        "upper": lambda: b.rng.randrange(2),
        "approximate": lambda: b.rng.choice(("none", "tanh")),
        "scale": lambda: 0.5,
        "threshold": lambda: 0.1,
        "min": lambda: -0.5,
        "max": lambda: 0.7,
        "detect_negative": lambda: b.rng.randrange(2),
    }
    return draws[name]() if name in draws else None


def one(b: Builder) -> None:
    """Any operator of one tensor: Abs to Where the alphabet ends, reductions, pools and layouts too."""
    schema = b.rng.choice(schemas(b.opset, 1))
    x = b.pick()
    rank = b[x].ndim
    wanted = [True] + [b.chance(2) for _ in schema.outputs[1:]]
    b.emit_all(schema.name, [x], wanted, **attributes_of(b, schema, rank))


def two(b: Builder) -> None:
    """Any operator of two tensors, of one shape or broadcast."""
    schema = b.rng.choice(schemas(b.opset, 2))
    x = b.pick()
    shape = b[x].shape
    other = b.rng.choice((shape, shape, shape[-1:], (), tuple(1 if b.chance(3) else s for s in shape)))
    y = b.of_shape(other)
    pair = [x, y] if schema.name in ("PRelu", "Pow") or b.chance(2) else [y, x]
    b.emit(schema.name, pair, **attributes_of(b, schema, len(shape)))


def variadic(b: Builder) -> None:
    """Max, Mean, Min and Sum of one to four tensors, one of them perhaps twice."""
    op_type = b.rng.choice(("Max", "Mean", "Min", "Sum"))
    x = b.pick()
    others = [b.rng.choice((x, b.of_shape(b[x].shape))) for _ in range(b.rng.randrange(4))]
    b.emit(op_type, [x, *others])


def clip(b: Builder) -> None:
    """Clip with and without its optional inputs."""
    x = b.pick()
    if b.opset < 11:
        b.emit("Clip", [x], min=b.rng.choice((None, -0.5)), max=b.rng.choice((None, 0.7)))
        return
    low = b.constant(-0.5, np.float32) if b.chance(2) else ""
    high = b.constant(0.7, np.float32) if b.chance(2) else ""
    b.emit("Clip", [x, low, high] if high or b.chance(2) else [x, low])


def where(b: Builder) -> None:
    """A comparison, and what it selects."""
    x = b.pick()
    y = b.of_shape(b.rng.choice((b[x].shape, ())))
    op_type = b.rng.choice(("Greater", "Less", "Equal"))
    if op_type == "Equal" and b.opset < 11:
        op_type = "Less"
    mask = b.emit(op_type, [x, y])
    match b.rng.randrange(4):
        case 0:
            b.emit("Where", [mask, x, y])
        case 1:
            b.emit("Where", [mask, b.of_shape(b[x].shape), b.constant(0.0, np.float32)])
        case 2:
            b.emit("Mul", [x, b.emit("Cast", [mask], to=1)])
        case 3:
            b.emit("Where", [b.emit("Not", [mask]), y, x])


def dropout(b: Builder) -> None:
    """Dropout of inference, with and without its mask, ratio and mode."""
    x = b.pick()
    wanted = [True, b.chance(2)]
    if b.opset < 12:
        b.emit_all("Dropout", [x], wanted, ratio=0.3)
    else:
        ratio = b.constant(0.3, np.float32) if b.chance(2) else ""
        mode = [b.constant(False, np.bool_)] if b.chance(2) else []
        b.emit_all("Dropout", [x, ratio, *mode] if ratio or mode else [x], wanted)
