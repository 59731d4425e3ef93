"""FLOPs, GEMM geometry and bytes, against numbers done by hand."""

from dataclasses import replace
from typing import Any

import pytest
from onnx import TensorProto

from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.facts import moved_bytes, work_of
from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import spec
from campo_onnx.ops.work import Work, WorkKind

MS = "com.microsoft"
NO_PORTS = Ports()
EIGHT = Multiples.of_all(8)


def one_node(
    label: str,
    inputs: list[tuple[int, ...] | None],
    outputs: list[tuple[int, ...] | str | None],
    dtypes: dict[str, int] | None = None,
    **attributes: Any,
) -> GraphView:
    """Inputs x0, x1, … and outputs y0, y1, …; None is an unknown shape, "" an omitted output."""
    shapes = {f"x{i}": shape for i, shape in enumerate(inputs)}
    shapes |= {f"y{i}": shape for i, shape in enumerate(outputs) if not isinstance(shape, str)}
    node = OpNode(
        name="n",
        op=OpKey.parse(label),
        inputs=tuple(f"x{i}" for i in range(len(inputs))),
        outputs=tuple(shape if isinstance(shape, str) else f"y{i}" for i, shape in enumerate(outputs)),
        attributes=attributes,
    )
    tensors = {
        name: TensorInfo(
            name=name,
            dtype=(dtypes or {}).get(name, TensorProto.FLOAT),
            shape=shape,
            kind=TensorKind.ACTIVATION,
        )
        for name, shape in shapes.items()
    }
    return GraphView(nodes=(node,), tensors=tensors, inputs=(), outputs=(), opset={"": 20})


def count(view: GraphView) -> Work:
    return work_of(view.signature("n"))


def traffic(view: GraphView, ports: Ports = NO_PORTS, low: Precision | None = None) -> float:
    return moved_bytes(view.signature("n"), ports, low)


@pytest.mark.parametrize(
    ("a", "b", "gemm"),
    [
        ((3, 5), (5, 7), GemmShape(m=3, n=7, k=5)),
        ((5,), (5, 7), GemmShape(m=1, n=7, k=5)),
        ((3, 5), (5,), GemmShape(m=3, n=1, k=5)),
        ((5,), (5,), GemmShape(m=1, n=1, k=5)),
        ((2, 3, 5), (5, 7), GemmShape(m=6, n=7, k=5)),
        ((4, 1, 3, 5), (6, 5, 7), GemmShape(m=3, n=7, k=5, batch=24)),
        ((3, 5), (6, 5, 7), GemmShape(m=3, n=7, k=5, batch=6)),
    ],
)
def test_matmul_broadcasts_like_numpy(a: tuple[int, ...], b: tuple[int, ...], gemm: GemmShape) -> None:
    counted = count(one_node("MatMul", [a, b], [()]))
    assert counted.kind is WorkKind.GEMM
    assert counted.gemms == (gemm,)
    assert counted.flops == 2 * gemm.m * gemm.n * gemm.k * gemm.batch


def test_batched_attention_product() -> None:
    # 12 heads of 64, batch 8, 128 tokens: 8 * 12 products of 128 x 64 x 128.
    counted = count(one_node("MatMul", [(8, 12, 128, 64), (8, 12, 64, 128)], [(8, 12, 128, 128)]))
    assert counted.flops == 2 * 96 * 128 * 64 * 128


@pytest.mark.parametrize(
    ("a", "b", "attributes", "gemm"),
    [
        ((5, 3), (5, 7), {"transA": 1}, GemmShape(m=3, n=7, k=5, left_transposed=True)),
        ((3, 5), (7, 5), {"transB": 1}, GemmShape(m=3, n=7, k=5)),
        ((2, 3, 5), (2, 7, 5), {"transB": 1}, GemmShape(m=3, n=7, k=5, batch=2)),
        # dims 0 and 1 swap first: (3, 2, 5) holds two matrices of 3 x 5
        ((3, 2, 5), (2, 5, 7), {"transBatchA": 1}, GemmShape(m=3, n=7, k=5, batch=2)),
        ((2, 3, 5), (7, 2, 5), {"transBatchB": 1, "transB": 1}, GemmShape(m=3, n=7, k=5, batch=2)),
    ],
)
def test_fused_matmul_transposes(
    a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], gemm: GemmShape
) -> None:
    assert count(one_node(f"{MS}:FusedMatMul", [a, b], [()], **attributes)).gemms == (gemm,)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_honours_transpositions(trans_a: int, trans_b: int) -> None:
    a = (5, 3) if trans_a else (3, 5)
    b = (7, 5) if trans_b else (5, 7)
    counted = count(one_node("Gemm", [a, b, (7,)], [(3, 7)], transA=trans_a, transB=trans_b))
    assert counted.gemms == (GemmShape(m=3, n=7, k=5, left_transposed=bool(trans_a)),)


def test_stem_convolution_of_resnet50() -> None:
    counted = count(one_node("Conv", [(64, 3, 224, 224), (64, 3, 7, 7)], [(64, 64, 112, 112)]))
    assert counted.gemms == (GemmShape(m=64 * 112 * 112, n=64, k=147, channels=(3, 64)),)
    assert counted.flops == 2 * 118_013_952 * 64  # 118 M multiply-adds an image
    assert not counted.gemms[0].is_aligned(EIGHT)


def test_grouped_and_depthwise_convolutions() -> None:
    grouped = count(one_node("Conv", [(1, 8, 6, 6), (16, 4, 3, 3)], [(1, 16, 4, 4)], group=2))
    assert grouped.gemms == (GemmShape(m=16, n=8, k=36, batch=2, channels=(4, 8)),)
    depthwise = count(one_node("Conv", [(1, 8, 6, 6), (8, 1, 3, 3)], [(1, 8, 4, 4)], group=8))
    assert depthwise.flops == 2 * 8 * 16 * 9
    assert not depthwise.gemms[0].is_aligned(EIGHT)


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_costs_what_its_convolution_costs(group: int) -> None:
    data, weight, output = (4, 8, 14, 14), (16, 8 // group, 3, 3), (4, 16, 7, 7)
    forward = count(one_node("Conv", [data, weight], [output], group=group, strides=[2, 2]))
    backward = count(one_node("ConvTranspose", [output, weight], [data], group=group, strides=[2, 2]))
    assert backward.flops == forward.flops == 2 * 4 * 49 * 16 * 72 / group


@pytest.mark.parametrize(
    ("outputs", "products"),
    [
        ([(4, 8, 9, 9), (16, 8, 3, 3)], 2),
        (["", (16, 8, 3, 3), (16,)], 1),
        ([(4, 8, 9, 9), ""], 1),
        ([(4, 8, 9, 9)], 1),
    ],
)
def test_conv_grad_counts_the_gradients_asked_for(outputs: list[Any], products: int) -> None:
    forward = count(one_node("Conv", [(4, 8, 9, 9), (16, 8, 3, 3)], [(4, 16, 7, 7)]))
    counted = count(one_node(f"{MS}:ConvGrad", [(4, 16, 7, 7), (4, 8, 9, 9), (16, 8, 3, 3)], outputs))
    assert len(counted.gemms) == products
    assert counted.flops == products * forward.flops


def test_weight_gradient_sums_over_positions() -> None:
    outputs: list[Any] = ["", (16, 8, 3, 3)]
    view = one_node(f"{MS}:ConvGrad", [(4, 16, 7, 7), (4, 8, 9, 9), (16, 8, 3, 3)], outputs)
    assert count(view).gemms == (GemmShape(m=16, n=72, k=196, channels=(8, 16)),)


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(op: str, gates: int) -> None:
    # 10 steps, batch 3, 5 inputs, 7 hidden, two directions
    view = one_node(op, [(10, 3, 5), (2, gates * 7, 5), (2, gates * 7, 7)], [(10, 2, 3, 7)])
    counted = count(view)
    assert counted.flops == 2 * 10 * 3 * 2 * gates * 7 * (5 + 7)
    assert counted.gemms[1].steps == 10
    batch_first = one_node(op, [(3, 10, 5), (2, gates * 7, 5), (2, gates * 7, 7)], [(3, 10, 2, 7)], layout=1)
    assert count(batch_first) == counted


@pytest.mark.parametrize(
    ("equation", "shapes", "gemms"),
    [
        ("ij,jk->ik", [(3, 5), (5, 7)], [GemmShape(m=3, n=7, k=5)]),
        ("ij,jk", [(3, 5), (5, 7)], [GemmShape(m=3, n=7, k=5)]),
        ("bhqd, bhkd -> bhqk", [(2, 4, 8, 16), (2, 4, 9, 16)], [GemmShape(m=8, n=9, k=16, batch=8)]),
        ("...ij,...jk->...ik", [(2, 6, 3, 5), (6, 5, 7)], [GemmShape(m=6, n=7, k=5, batch=6)]),
        ("...i,...i", [(4, 5), (4, 5)], [GemmShape(m=1, n=1, k=5, batch=4)]),
        (
            "ij,jk,kl->il",
            [(3, 5), (5, 7), (7, 2)],
            [GemmShape(m=3, n=7, k=5), GemmShape(m=3, n=2, k=7)],
        ),
        ("ij->ji", [(3, 5)], []),
    ],
)
def test_einsum_goes_pairwise(
    equation: str, shapes: list[tuple[int, ...] | None], gemms: list[GemmShape]
) -> None:
    assert count(one_node("Einsum", shapes, [()], equation=equation)).gemms == tuple(gemms)


def test_alignment_of_products_and_channels() -> None:
    assert GemmShape(m=8, n=16, k=24).is_aligned(EIGHT)
    assert not GemmShape(m=8, n=16, k=20).is_aligned(EIGHT)
    assert GemmShape(m=8, n=16, k=20).is_aligned(Multiples.of_all(4))
    assert GemmShape(m=49, n=64, k=27, channels=(8, 64)).is_aligned(EIGHT)


def test_pairs_along_the_sums_are_enough_where_a_transposed_factor_is_copied() -> None:
    pairs = Multiples(m=1, n=1, k=2, channels=1, repacks_left=True)
    assert GemmShape(m=9, n=17, k=20).is_aligned(pairs)
    assert not GemmShape(m=8, n=16, k=21).is_aligned(pairs)
    assert GemmShape(m=8, n=16, k=21, left_transposed=True).is_aligned(pairs)
    assert not GemmShape(m=8, n=16, k=21, left_transposed=True).is_aligned(EIGHT)
    assert GemmShape(m=49, n=64, k=27, channels=(3, 63)).is_aligned(pairs)


def test_elementwise_and_reduction_count_their_largest_tensor() -> None:
    assert count(one_node("Add", [(4, 5), (5,)], [(4, 5)])).flops == 20
    assert count(one_node("ReduceSum", [(4, 5)], [()])).flops == 20
    cheap, dear = (count(one_node(op, [(4, 5)], [(4, 5)])).flops for op in ("Relu", "Erf"))
    assert dear > 5 * cheap


def test_pools_count_windows_of_their_small_side() -> None:
    view = one_node("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], kernel_shape=[3, 3])
    assert count(view).flops == 32 * 9
    view = one_node("MaxPoolGrad", [(1, 2, 4, 4), (1, 2, 4, 4)], [(1, 2, 8, 8)], kernel_shape=[3, 3])
    assert count(view).flops == 32 * 9


@pytest.mark.parametrize(
    ("op", "kind"),
    [("Reshape", WorkKind.VIEW), (f"{MS}:YieldOp", WorkKind.VIEW), ("Shape", WorkKind.NONE)],
)
def test_views_and_host_ops_do_nothing(op: str, kind: WorkKind) -> None:
    view = one_node(op, [(1000,)], [(1000,)])
    assert count(view) == Work(kind=kind, flops=0.0)
    assert traffic(view) == 0.0


def test_bytes_by_precision_and_ports() -> None:
    view = one_node("Add", [(10,), (10,)], [(10,)])
    assert traffic(view) == 120
    both = Ports(low_inputs=frozenset({0, 1}), low_outputs=frozenset({0}))
    assert traffic(view, both) == 120  # ports count only in a low precision
    assert traffic(view, both, Precision.FP16) == 60
    assert traffic(view, Ports(low_inputs=frozenset({1})), Precision.BF16) == 40 + 20 + 40


def test_a_tensor_read_twice_moves_once() -> None:
    once = one_node("Mul", [(10,)], [(10,)])
    node = OpNode(name="n", op=OpKey("", "Mul"), inputs=("x0", "x0"), outputs=("y0",))
    assert traffic(replace(once, nodes=(node,))) == 80


def test_omitted_tensors_move_nothing() -> None:
    full = one_node("Clip", [(10,)], [(10,)])
    node = OpNode(name="n", op=OpKey("", "Clip"), inputs=("x0", "", ""), outputs=("y0", ""))
    assert traffic(replace(full, nodes=(node,))) == 80


def test_gather_reads_rows_not_the_table() -> None:
    view = one_node("Gather", [(30_000, 64), (8,)], [(8, 64)], dtypes={"x1": TensorProto.INT64})
    assert traffic(view) == 2 * 8 * 64 * 4 + 8 * 8
    ports = Ports(low_inputs=frozenset({0}), low_outputs=frozenset({0}))
    assert traffic(view, ports, Precision.FP16) == 2 * 8 * 64 * 2 + 8 * 8


def test_scatter_copies_its_data() -> None:
    view = one_node(
        "ScatterElements", [(64, 1000), (64, 1), (64, 1)], [(64, 1000)], dtypes={"x1": TensorProto.INT64}
    )
    assert traffic(view) == 2 * 64_000 * 4 + 64 * 8 + 64 * 4


def test_batch_statistics_take_a_second_pass() -> None:
    shapes: list[Any] = [(2, 4, 5, 5), (4,), (4,), (4,), (4,)]
    inference = one_node("BatchNormalization", shapes, [(2, 4, 5, 5)])
    training = one_node("BatchNormalization", shapes, [(2, 4, 5, 5)], training_mode=1)
    assert traffic(training) - traffic(inference) == (200 + 16) * 4
    softmax = one_node("Softmax", [(4, 10)], [(4, 10)])
    assert traffic(softmax) == 2 * 160


def test_unknown_shapes_count_zero_and_are_reported() -> None:
    product = count(one_node("MatMul", [(3, 5), None], [None]))
    assert (product.kind, product.flops, product.known) == (WorkKind.GEMM, 0.0, False)
    add = one_node("Add", [(3,), None], [None])
    assert not count(add).known
    assert traffic(add) == 12
    assert not count(one_node("MatMul", [(3, 5), (5, 7)], [None])).known  # its bytes are not
    assert count(one_node("Add", [(3,), (3,)], [(3,)])).known


def test_unlisted_ops_stream_one_flop_an_element() -> None:
    view = one_node("my.domain:Fancy", [(4, 5)], [(4,)])
    assert spec(view.nodes[0].op).work is None
    assert count(view) == Work(kind=WorkKind.STREAM, flops=20.0)
    assert traffic(view) == 96


EXPORTED_OPS = """
    Add BatchNormalization Cast Constant ConstantOfShape Conv ConvTranspose Div Dropout Equal Erf Exp
    Expand Flatten Gather GatherElements Gelu Gemm Identity LayerNormalization Less LessOrEqual
    LogSoftmax MatMul MaxPool MaxPoolGrad Mul Neg Not RandomUniform Range Reciprocal ReduceMean
    ReduceMin ReduceSum Relu Reshape ScatterElements Shape Slice Softmax SoftmaxCrossEntropyLoss Sqrt
    Squeeze Sub Sum Transpose Unsqueeze Where
    com.microsoft:BatchNormInternal com.microsoft:BatchNormalizationGrad
    com.microsoft:BroadcastGradientArgs com.microsoft:ConcatTraining com.microsoft:ConvGrad
    com.microsoft:DropoutGrad com.microsoft:FusedMatMul com.microsoft:Gelu com.microsoft:GeluGrad
    com.microsoft:InPlaceAccumulatorV2 com.microsoft:LayerNormalizationGrad com.microsoft:ReluGrad
    com.microsoft:SoftmaxCrossEntropyLossGrad com.microsoft:SoftmaxCrossEntropyLossInternal
    com.microsoft:SoftmaxCrossEntropyLossInternalGrad com.microsoft:SoftmaxGrad_13
    com.microsoft:YieldOp org.pytorch.aten:ATen
"""


@pytest.mark.parametrize("label", EXPORTED_OPS.split())
def test_ops_of_exported_training_graphs_are_listed(label: str) -> None:
    assert spec(OpKey.parse(label)).work is not None
