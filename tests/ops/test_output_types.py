import numpy as np
import pytest
from onnx import TensorProto

from campo_onnx.ops.facts import output_types
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import Signature, TensorType, make_signature

F32, F16, I64, BOOL = (
    int(t) for t in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
)
X = TensorType(F32, (4, 3, 8, 8))
W = TensorType(F32, (16, 3, 3, 3))
DY = TensorType(F32, (4, 16, 8, 8))
C = TensorType(F32, (3,))
HALF = TensorType(F16, (2, 5))
FULL = TensorType(F32, (2, 5))
LABELS = TensorType(I64, (2,))
SCALAR = TensorType(F32, ())
NONE = TensorType()


def signature(op: OpKey, inputs, count: int, **attributes) -> Signature:
    """Make a signature; an input is its type, or the value of an integer tensor."""
    types = [x if isinstance(x, TensorType) else TensorType(I64, (len(x),)) for x in inputs]
    values = {i: np.array(x, np.int64) for i, x in enumerate(inputs) if not isinstance(x, TensorType)}
    return make_signature(op, types, [TensorType()] * count, attributes=attributes, constants=values)


def outputs(op_type: str, *inputs, count: int = 1, domain: str = "com.microsoft", **attributes):
    types = output_types(signature(OpKey(domain, op_type), inputs, count, **attributes))
    assert types is not None
    return list(types)


def aten(operator: str, *inputs):
    return outputs("ATen", *inputs, domain="org.pytorch.aten", operator=operator)


@pytest.mark.parametrize(
    "op_type",
    [
        *("ReluGrad", "GeluGrad", "FastGeluGrad", "QuickGeluGrad", "TanhGrad", "SigmoidGrad"),
        *("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13", "BiasGeluGrad_dX"),
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "DropoutGrad", "BitmaskDropoutGrad"),
        *("InPlaceAccumulator", "Scale", "ZeroGradient"),
    ],
)
def test_elementwise_ops_keep_the_first_input(op_type):
    assert outputs(op_type, HALF, C) == [HALF]


@pytest.mark.parametrize(
    ("op_type", "inputs", "expected"),
    [
        ("ConvGrad", [DY, X, W], [X, W, TensorType(F32, (16,))]),
        ("BatchNormalizationGrad", [X, X, C, C, C], [X, C, C]),
        ("BatchNormInternal", [X, C, C, C, C], [X, C, C, C, C]),
        ("LayerNormalizationGrad", [FULL, HALF, C, SCALAR, SCALAR], [HALF, C, C]),
        ("SimplifiedLayerNormalizationGrad", [FULL, HALF, C, SCALAR], [HALF, C]),
        ("InvertibleLayerNormalizationGrad", [FULL, HALF, C, C, SCALAR], [HALF, C, C]),
        ("DivGrad", [FULL, HALF, C], [HALF, C]),
        ("ResizeGrad", [DY, X], [X]),
        ("YieldOp", [HALF, C], [HALF, C]),
        ("InPlaceAccumulatorV2", [FULL, HALF, NONE], [TensorType(BOOL, (1,)), FULL]),
        ("BiasDropout", [HALF, C], [HALF, TensorType(BOOL, (2, 5))]),
        ("BitmaskDropout", [X], [X, TensorType(int(TensorProto.UINT32), (24,))]),
        ("MaxPoolGrad", [HALF, NONE], [TensorType(F16)]),
        ("AveragePoolGrad", [HALF], [TensorType(F16)]),
        ("BroadcastGradientArgs", [LABELS, LABELS], [TensorType(I64), TensorType(I64)]),
        ("SoftmaxCrossEntropyLossGrad", [SCALAR, FULL, LABELS], [FULL]),
        ("SoftmaxCrossEntropyLossInternalGrad", [SCALAR, FULL, LABELS], [FULL]),
        ("AdamWOptimizer", [SCALAR, TensorType(I64, (1,)), NONE], [TensorType(I64, (1,))]),
        ("AdamOptimizer", [SCALAR, LABELS, FULL, HALF, X, W, C], [LABELS, X, W, FULL, HALF, C]),
        ("SGDOptimizer", [SCALAR, FULL, HALF], [FULL, HALF]),
        ("SGDOptimizerV2", [SCALAR, NONE], [TensorType(BOOL, ())]),
        ("LambOptimizer", [NONE, NONE, NONE, SCALAR, LABELS, FULL, HALF], [LABELS, FULL, HALF]),
    ],
)
def test_outputs_that_look_like_inputs(op_type, inputs, expected):
    assert outputs(op_type, *inputs, count=len(expected)) == expected


def test_conv_transpose_grad_has_one_bias_per_output_channel():
    assert outputs("ConvTransposeGrad", DY, X, W, count=3, group=2)[2] == TensorType(F32, (6,))


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("GatherGrad", [(50, 32), LABELS, HALF]),
        ("GatherNDGrad", [(50, 32), LABELS, HALF]),
        ("GatherElementsGrad", [HALF, (50, 32), LABELS]),
        ("SliceGrad", [HALF, (50, 32), (0,), (1,)]),
    ],
)
def test_the_value_of_an_input_is_the_shape(op_type, inputs):
    assert outputs(op_type, *inputs) == [TensorType(F16, (50, 32))]
    unknown = [NONE if isinstance(i, tuple) and not isinstance(i, TensorType) else i for i in inputs]
    assert outputs(op_type, *unknown) == [TensorType(F16)]


@pytest.mark.parametrize(
    ("a", "b", "attributes", "expected"),
    [
        ((2, 3), (3, 4), {}, (2, 4)),
        ((3, 2), (3, 4), {"transA": 1}, (2, 4)),
        ((2, 3), (4, 3), {"transB": 1}, (2, 4)),
        ((7, 2, 3), (3, 4), {}, (7, 2, 4)),
        ((7, 1, 2, 3), (5, 3, 4), {}, (7, 5, 2, 4)),
        ((3,), (3, 4), {"transA": 1}, (4,)),
        ((2, 3), (3,), {"transB": 1}, (2,)),
        ((2, 7, 3), (7, 3, 4), {"transBatchA": 1}, (7, 2, 4)),
        ((3, 7, 2), (7, 3, 4), {"transBatchA": 1, "transA": 1}, (7, 2, 4)),
        ((7, 2, 3), (3, 7, 4), {"transBatchB": 1}, (7, 2, 4)),
        ((2, 7, 5, 3), (7, 5, 3, 4), {"transBatchA": 1}, (7, 5, 2, 4)),
    ],
)
def test_fused_matmul(a, b, attributes, expected):
    assert outputs("FusedMatMul", TensorType(F16, a), TensorType(F16, b), **attributes) == [
        TensorType(F16, expected)
    ]


@pytest.mark.parametrize(("a", "b"), [((2, 3), (4, 5)), ((), (3,)), ((2, 1, 3), (3, 3, 4))])
def test_fused_matmul_refuses_what_does_not_fit(a, b):
    with pytest.raises(ValueError, match=r"differ|scalar|broadcast"):
        outputs("FusedMatMul", TensorType(F32, a), TensorType(F32, b))


def test_fused_matmul_of_unknown_shape_has_a_type():
    assert outputs("FusedMatMul", HALF, TensorType(F16)) == [TensorType(F16)]


def test_layer_normalization_before_opset_17():
    statistics = TensorType(F32, (4, 3, 1, 1))
    half = TensorType(F16, X.shape)
    assert outputs("LayerNormalization", half, C, C, count=3, domain="", axis=2) == [
        half,
        statistics,
        statistics,
    ]
    assert outputs("SimplifiedLayerNormalization", half, C, count=2, domain="", axis=2) == [half, statistics]


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal"])
def test_cross_entropy(op_type):
    assert outputs(op_type, FULL, LABELS, count=2) == [SCALAR, FULL]
    assert outputs(op_type, FULL, LABELS, count=2, reduction="none") == [TensorType(F32, (2,)), FULL]


def test_output_type_decouples_the_loss_from_the_logits():
    assert outputs("SoftmaxCrossEntropyLossInternal", HALF, LABELS, count=2, output_type=1) == [SCALAR, FULL]
    assert outputs("SoftmaxCrossEntropyLossInternalGrad", SCALAR, FULL, LABELS, output_type=10) == [HALF]


@pytest.mark.parametrize(
    ("axes", "attributes", "expected"),
    [
        ((1, -1), {}, (4, 1, 8, 1)),
        ((0,), {"keepdims": 0}, (3, 8, 8)),
        ((), {}, (1, 1, 1, 1)),
        ((), {"noop_with_empty_axes": 1}, (4, 3, 8, 8)),
    ],
)
def test_reduce_sum_training(axes, attributes, expected):
    assert outputs("ReduceSumTraining", X, axes, **attributes) == [TensorType(F32, expected)]


def test_reduce_sum_training_with_unknown_axes():
    assert outputs("ReduceSumTraining", X, NONE) == [TensorType(F32)]


def test_concat_training():
    lengths = TensorType(I64, (2,))
    wide = TensorType(F16, (2, 7))
    assert outputs("ConcatTraining", HALF, wide, count=2, axis=-1) == [TensorType(F16, (2, 12)), lengths]
    assert outputs("ConcatTraining", HALF, TensorType(F16), count=2) == [TensorType(F16), lengths]
    with pytest.raises(ValueError, match="axis 0"):
        outputs("ConcatTraining", HALF, wide, count=2, axis=0)


def test_split_training():
    assert outputs("SplitTraining", HALF, (1, 4), count=2, axis=1) == [
        TensorType(F16, (2, 1)),
        TensorType(F16, (2, 4)),
    ]
    assert outputs("SplitTraining", HALF, NONE, count=2) == [TensorType(F16), TensorType(F16)]
    with pytest.raises(ValueError, match="does not split"):
        outputs("SplitTraining", HALF, (1, 1), count=2, axis=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([(2, 2), (2, 2), (0, 0), (1, 1), (0,)], (4, 4)),
        ([(2,), (), (), (), ()], (4, 4)),  # the stride is the kernel's size
        ([(3, 3), (2, 2), (1, 1), (1, 1), (0,)], (4, 4)),
        ([(3, 3), (2, 2), (0, 0), (1, 1), (0,)], (3, 3)),
        ([(3, 3), (2, 2), (0, 0), (1, 1), (1,)], (4, 4)),
        ([(1, 1), (3, 3), (0, 0), (1, 1), (1,)], (3, 3)),
        ([(2, 2), (9, 9), (1, 1), (1, 1), (1,)], (1, 1)),  # the second window would start in the padding
        ([(2, 3), (1, 1), (0, 0), (2, 2), (0,)], (6, 4)),
    ],
)
def test_max_pool(settings, expected):
    pooled = (4, 3, *expected)
    assert aten("max_pool2d_with_indices", X, *settings) == [TensorType(F32, pooled), TensorType(I64, pooled)]


@pytest.mark.parametrize("prefix", ["", "aten::"])
def test_aten_operators(prefix):
    ids = TensorType(I64, (2, 8))
    table = TensorType(F32, (50, 32))
    assert aten(prefix + "_adaptive_avg_pool2d", X, (1, 2)) == [TensorType(F32, (4, 3, 1, 2))]
    assert aten(prefix + "adaptive_avg_pool2d", X, (2,)) == [TensorType(F32, (4, 3, 2, 2))]
    assert aten(prefix + "_adaptive_avg_pool2d_backward", DY, X) == [X]
    assert aten(prefix + "max_pool2d_with_indices_backward", DY, X) == [X]
    assert aten(prefix + "embedding", table, ids, (-1,)) == [TensorType(F32, (2, 8, 32))]
    gradient = TensorType(F32, (2, 8, 32))
    assert aten(prefix + "embedding_backward", gradient, ids, (50,)) == [table]


def test_aten_operators_with_unknown_inputs():
    assert aten("embedding", TensorType(F32), LABELS) == [TensorType(F32)]
    assert aten("embedding_backward", FULL, LABELS, NONE) == [TensorType(F32)]
    assert aten("adaptive_avg_pool2d", X, NONE) == [TensorType(F32)]
    assert aten("max_pool2d_with_indices", X, NONE) == [TensorType(F32), TensorType(I64)]


def test_unknown_ops_have_no_rule():
    for op, attributes in (
        (OpKey("com.microsoft", "PythonOp"), {}),
        (OpKey("my.domain", "ReluGrad"), {}),
        (OpKey("org.pytorch.aten", "ATen"), {"operator": "einsum"}),
    ):
        assert output_types(signature(op, [X], 1, **attributes)) is None
