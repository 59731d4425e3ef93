"""The facts about an operator: one value, registered once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.schema import fp32_positions, schema_of, schema_ports
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.values.need import AskRule, PassRule
from campo_onnx.ops.values.rule import Rule as ValueRule
from campo_onnx.ops.values.traits import Trait
from campo_onnx.ops.work import WorkForm

PortRule: TypeAlias = Callable[[Signature, Precision], Ports]
ShapeRule: TypeAlias = Callable[[Signature], Sequence[TensorType]]


class Family(Enum):
    """The kind of computation, in the words of charts and reports."""

    MATRIX_PRODUCT = "matrix products"
    CONVOLUTION = "convolutions"
    RECURRENT = "recurrent layers"
    ATTENTION = "attention"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    REDUCTION = "reductions"
    SCATTER = "scatters"
    POOLING = "pooling"
    MOVEMENT = "movement"
    ELEMENTWISE = "element-wise"
    RANDOM = "random sources"
    LOSS = "losses"
    UPDATE = "weight updates"
    CONTROL_FLOW = "control flow"
    SOURCE = "constants and fills"
    SHAPE = "shapes and indices"
    BOUNDARY = "host and communication"
    QUANTIZATION = "quantization"
    OTHER = "others"


PRODUCTS_AND_NORMS = frozenset(
    {Family.MATRIX_PRODUCT, Family.CONVOLUTION, Family.RECURRENT, Family.ATTENTION, Family.NORMALIZATION}
)
"""Families whose results carry the errors of their inputs: to round those once more adds little."""


class Movement(Enum):
    """The way in which an operator that computes nothing arranges the elements of its first input."""

    VIEW = "view"  # the same elements in the same order, under another shape
    REORDER = "reorder"  # each element once
    REPEAT = "repeat"  # each element at least once
    SELECT = "select"  # some elements
    JOIN = "join"  # the elements of several inputs


class Ask(Enum):
    """A condition on the values of an input, without which the result means nothing."""

    POSITIVE = "numbers above zero"
    SHARE = "the share of elements that are dropped"
    INDEX_ALONG_AXIS = "indices into the attribute axis of the first input"
    INDEX_OF_ANY_AXIS = "indices into several axes of the first input"
    INDEX_BELOW_DEPTH = "indices below the value of the second input"
    MASK = "a mask, which is added before a softmax"
    CLASS = "indices into the second axis of the first input"
    CLASS_OF_LAST_AXIS = "indices into the last axis of the first input"
    INDEX_OF_SHAPE = "indices into the attribute axis of a tensor whose shape is the first input"


class ScaledRows(NamedTuple):
    """The inputs of an operator that adds a tensor after scaling it row by row."""

    # rows, factor: positions of the tensor and of its factors.
    rows: int
    factor: int
    # Attribute that counts streams: of more than one, the factors are a matrix that mixes them.
    streams: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One operator."""

    # What it is called. An operator that ONNX Runtime hands to PyTorch has the name of that operator in the
    # domain `org.pytorch.aten`.
    key: OpKey
    family: Family
    work: WorkForm | None = None  # what it computes; None where nobody has said
    # Which of its tensors change type with it; None where ONNX's schema says so.
    ports: PortRule | None = None
    # Types of its outputs in opsets where ONNX has no schema for it. It returns one type for an output, by
    # position (there may be more or fewer of them than outputs), and raises ValueError when the inputs
    # contradict each other.
    shapes: ShapeRule | None = None
    # Low precisions that ONNX Runtime's training build takes it in, where the release wheels have no kernel.
    training_kernels: frozenset[Precision] = frozenset()
    movement: Movement | None = None  # what it does to elements, for those that compute nothing
    # What it makes of the ranges of its inputs; where nobody has said, large values pass through it. For the
    # operators of the package the table in `ops/values/registry.py` says it.
    values: ValueRule | None = None
    # What it does to the size of values. For the operators of the package the table in `ops/values/traits.py`
    # says it, and what follows from `movement` and `values` is added.
    traits: frozenset[Trait] = frozenset()
    # How exactly it needs inputs for results that mean something. For the operators of the package the table
    # in `ops/values/asks.py` says it.
    asks_accuracy: AskRule | None = None
    # How exactly it needs inputs where its results are needed to some accuracy; where nobody has said, it
    # passes nothing on. For the operators of the package the table in `ops/values/passes.py` says it.
    passes_accuracy: PassRule | None = None
    asks: tuple[tuple[int, Ask], ...] = ()  # what it asks of the values of inputs, by position
    # Where it reads a tensor that it scales row by row before it adds it; None where it does not.
    scaled_rows: ScaledRows | None = None
    draws: bool = False
    typed_by_declaration: bool = False  # whether the types of its outputs are in the file only
    # Whether ONNX Runtime registers it in the standard domain also where ONNX has it not: in none of its
    # opsets, or in later ones only.
    standard_in_runtime: bool = False
    is_known: bool = True


LOW_KERNELS = frozenset({Precision.FP16, Precision.BF16})
FP16_KERNELS = frozenset({Precision.FP16})

EVERY = range(1 << 16)
"""Every position of a variadic list."""


def specs(domain: str, names: str, family: Family, **facts: Any) -> tuple[OpSpec, ...]:
    """Say the same of several operators of a domain, named in one text."""
    return tuple(OpSpec(key=OpKey(domain, name), family=family, **facts) for name in names.split())


@dataclass(frozen=True, slots=True)
class FixedPorts:
    """A port rule: the positions that share the data's type, for operators without a schema."""

    inputs: range | tuple[int, ...]
    outputs: range | tuple[int, ...] = (0,)

    def __call__(self, signature: Signature, _: Precision) -> Ports:
        """Keep those of the positions that hold FP32."""
        fp32_inputs, fp32_outputs = fp32_positions(signature)
        return Ports(
            low_inputs=fp32_inputs.intersection(self.inputs),
            low_outputs=fp32_outputs.intersection(self.outputs),
        )


@dataclass(frozen=True, slots=True)
class BeforeSchema:
    """A port rule: what the schema says, and `older` in opsets where ONNX has none."""

    older: FixedPorts

    def __call__(self, signature: Signature, precision: Precision) -> Ports:
        """Look for a schema."""
        has_schema = schema_of(signature.op, signature.opset) is not None
        return schema_ports(signature, precision) if has_schema else self.older(signature, precision)


@dataclass(frozen=True, slots=True)
class Refuses:
    """A port rule: the operator never goes low, whatever its types."""

    why: Refused

    def __call__(self, _signature: Signature, _precision: Precision) -> Ports:
        """Refuse."""
        return Ports(refusal=self.why.of())


@dataclass(frozen=True, slots=True)
class Like:
    """A shape rule: output ``i`` has the type and shape of input ``positions[i]``."""

    positions: tuple[int, ...]

    def __call__(self, signature: Signature) -> list[TensorType]:
        """Copy."""
        return [signature.input(position).type for position in self.positions]


@dataclass(frozen=True, slots=True)
class ShapedBy:
    """A shape rule: the one output has the *value* of an input as its shape."""

    shape: int
    dtype: int

    def __call__(self, signature: Signature) -> list[TensorType]:
        """Read the shape."""
        return [TensorType(signature.input(self.dtype).dtype, signature.ints(self.shape))]


SAME_AS_FIRST = Like((0,))
