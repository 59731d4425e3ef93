"""Effects of operators on the size of values, in words: the table that fills ``OpSpec.traits``.

Searches for values that a low precision loses go by these. Which elements an operator moves, and the bounds
of what it computes, are said elsewhere (``movement``, ``values``), and the traits that follow from them are
added in ``ops/registry.py``.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from campo_onnx.ops.key import OpKey


class Trait(Enum):
    """One thing that an operator does to the size of values."""

    MOVES = "gives the elements of its first input, moved, repeated or converted"
    BOUNDED = "gives values of moderate size, whatever it reads"
    AT_MOST_ONE = "gives values between -1 and 1, whatever it reads"
    SUM = "adds up values, along axes or in windows"
    SUM_OF_SQUARES = "adds up squares"
    ADDS = "adds or subtracts two values or a few, element by element"
    SCALES = "multiplies or divides two values, element by element"
    CONTRACTION = "multiplies matrices"
    SIGN = "changes the sign at most"
    SAME_SIZE = "gives values as large as those it reads, or sums of a few"
    NO_LARGER = "gives at most the sum of what it reads"
    NORMALIZES = "gives values of mean square 1"
    EXACT = "tells close values apart, so that rounding what it reads gives another result"
    EXTREME = "gives the largest or the smallest of what it reads"
    PART = "gives some of the elements of its first input, which others of its inputs or attributes choose"
    ROUNDS = "gives whole numbers"
    SHARES = "gives shares of a whole"
    NEAR_ZERO = "gives exponentials or shares, which come close to zero"


_BY_TRAIT: tuple[tuple[Trait, str], ...] = (
    (Trait.MOVES, "Cast"),
    (
        Trait.BOUNDED,
        """BatchNormalization Clip GRU GroupNormalization InstanceNormalization LpNormalization LSTM
        MeanVarianceNormalization""",
    ),
    (
        Trait.SUM,
        """AveragePool CumSum GlobalAveragePool ReduceL1 ReduceLogSum ReduceMean ReduceSum
        com.microsoft:ReduceSumTraining""",
    ),
    (Trait.SUM_OF_SQUARES, "ReduceSumSquare ReduceL2"),
    (Trait.ADDS, "Add Sub Sum"),
    (Trait.SCALES, "Div Mul"),
    (Trait.CONTRACTION, "Einsum Gemm MatMul com.microsoft:FusedMatMul"),
    (Trait.SIGN, "Abs Neg"),
    (
        Trait.SAME_SIZE,
        """Add Concat Dropout Gather LeakyRelu Max MaxPool Mean Min PRelu Relu ReduceMax ReduceMean ReduceMin
        Shrink Slice Split Sub Sum ThresholdedRelu Where""",
    ),
    (Trait.NO_LARGER, "GatherElements GatherND Log ScatterElements ScatterND Sqrt"),
    (
        Trait.NORMALIZES,
        """BatchNormalization GroupNormalization InstanceNormalization LayerNormalization RMSNormalization
        SimplifiedLayerNormalization""",
    ),
    (
        Trait.EXACT,
        """ArgMax ArgMin Ceil Cos CumSum Equal Floor Greater GreaterOrEqual Less LessOrEqual Mod OneHot Range
        Round Sin Tan TopK""",
    ),
    (Trait.EXTREME, "Max Min ReduceMax ReduceMin"),
    (Trait.PART, "Gather Slice Split"),
    (Trait.ROUNDS, "Ceil Floor Round"),
    (Trait.SHARES, "Softmax com.microsoft:BiasSoftmax"),
    (Trait.NEAR_ZERO, "Celu Elu Erf Exp Sigmoid Softmax Softplus Tanh com.microsoft:BiasSoftmax"),
)


def _by_operator() -> Mapping[OpKey, frozenset[Trait]]:
    traits_of: dict[OpKey, set[Trait]] = {}
    for trait, labels in _BY_TRAIT:
        for label in labels.split():
            traits_of.setdefault(OpKey.parse(label), set()).add(trait)
    return MappingProxyType({op: frozenset(traits) for op, traits in traits_of.items()})


TRAITS = _by_operator()
"""The traits by operator."""
