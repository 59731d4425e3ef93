"""Operators of ONNX Runtime's training build, for which only torch's own gradients are at hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F

from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation import translate

_KINDS = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64, torch.bool: TensorProto.BOOL}


def model_of(op: str, inputs: Sequence[Any], outputs: int, attributes: dict[str, Any]) -> ModelProto:
    key = OpKey.parse(op)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(key.op_type, names, results, domain=key.domain, name="node", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, _KINDS[x.dtype], x.shape)
            for name, x in zip(names, inputs, strict=True)
            if name
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(key.domain, 1)]
    return helper.make_model(graph, opset_imports=opsets)


def computed(op: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> tuple[Any, ...]:
    translation = translate(model_of(op, inputs, outputs, attributes))
    with torch.no_grad():
        return translation(*(x for x in inputs if x is not None))


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(function: Callable[..., Any], dy: Any, *inputs: Any) -> tuple[Any, ...]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, dy)


def assert_equal(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


X, DY = drawn(3, 4, 5), drawn(3, 4, 5, seed=1)

FROM_INPUT = {
    "GeluGrad": F.gelu,
    "FastGeluGrad": lambda x: F.gelu(x, approximate="tanh"),
    "QuickGeluGrad": lambda x: x * torch.sigmoid(1.702 * x),
    "SinGrad": torch.sin,
}
FROM_RESULT = {
    "ReluGrad": torch.relu,
    "SigmoidGrad": torch.sigmoid,
    "TanhGrad": torch.tanh,
    "LeakyReluGrad": lambda x: F.leaky_relu(x, 0.01),
    "SoftmaxGrad_13": lambda x: torch.softmax(x, -1),
    "LogSoftmaxGrad_13": lambda x: torch.log_softmax(x, -1),
    "SoftmaxGrad": lambda x: torch.softmax(x.flatten(1), -1).reshape(x.shape),
    "LogSoftmaxGrad": lambda x: torch.log_softmax(x.flatten(1), -1).reshape(x.shape),
}


@pytest.mark.parametrize("op", FROM_INPUT)
def test_a_gradient_from_what_was_read(op):
    assert_equal(computed(f"com.microsoft:{op}", (DY, X)), gradients(FROM_INPUT[op], DY, X))


@pytest.mark.parametrize("op", FROM_RESULT)
def test_a_gradient_from_what_came_out(op):
    result = FROM_RESULT[op](X)
    assert_equal(computed(f"com.microsoft:{op}", (DY, result)), gradients(FROM_RESULT[op], DY, X))


def test_a_bias_before_gelu():
    bias = drawn(5, seed=2)
    expected = gradients(F.gelu, DY, X + bias)
    assert_equal(computed("com.microsoft:BiasGeluGrad_dX", (DY, X, bias)), expected)
    assert_equal(computed("com.microsoft:BiasGelu", (X, bias)), [F.gelu(X + bias)])


@pytest.mark.parametrize(
    "options",
    [
        {"strides": [1, 1], "pads": [1, 1, 1, 1]},
        {"strides": [2, 1], "pads": [0, 1, 1, 2], "dilations": [1, 2]},
        {"group": 2},
    ],
    ids=["padded", "other pads at the end", "groups"],
)
def test_all_gradients_of_a_convolution(options):
    x, w, bias = drawn(2, 4, 7, 8), drawn(6, 4 // options.get("group", 1), 3, 3, seed=1), drawn(6, seed=2)
    top, left, bottom, right = options.get("pads", [0] * 4)

    def convolved(x: Any, w: Any, bias: Any) -> Any:
        return F.conv2d(
            F.pad(x, (left, right, top, bottom)), w, bias, options.get("strides", 1),
            dilation=options.get("dilations", 1), groups=options.get("group", 1),
        )  # fmt: skip

    dy = torch.randn_like(convolved(x, w, bias))
    expected = gradients(convolved, dy, x, w, bias)
    actual = computed("com.microsoft:ConvGrad", (dy, x, w), 3, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_normalizations():
    scale, bias = drawn(5, seed=2), drawn(5, seed=3)
    _, mean, inverse = torch.native_layer_norm(X, [5], scale, bias, 1e-5)
    expected = gradients(lambda x, s, b: F.layer_norm(x, [5], s, b), DY, X, scale, bias)
    assert_equal(computed("com.microsoft:LayerNormalizationGrad", (DY, X, scale, mean, inverse), 3), expected)
    inverse = torch.rsqrt(X.square().mean(-1, keepdim=True) + 1e-5)
    expected = gradients(lambda x, s: F.rms_norm(x, [5], s, 1e-5), DY, X, scale)
    actual = computed("com.microsoft:SimplifiedLayerNormalizationGrad", (DY, X, scale, inverse), 2)
    assert_equal(actual, expected)


def test_batch_normalization_and_its_gradient():
    x, dy, scale, bias = drawn(6, 4, 3), drawn(6, 4, 3, seed=1), drawn(4, seed=2), drawn(4, seed=3)
    zeros, ones = torch.zeros(4), torch.ones(4)
    y, mean, var, saved, inverse = computed(
        "com.microsoft:BatchNormInternal", (x, scale, bias, zeros, ones), 5, momentum=0.9, training_mode=1
    )
    assert_equal([y], [F.batch_norm(x, None, None, scale, bias, training=True)])
    exact = torch.var_mean(x, (0, 2), correction=0)
    assert_equal([mean, var, saved], [0.1 * exact[1], 0.9 + 0.1 * exact[0], exact[1]])
    actual = computed("com.microsoft:BatchNormalizationGrad", (dy, x, scale, saved, inverse), 3)
    expected = gradients(lambda *a: F.batch_norm(a[0], None, None, *a[1:], training=True), dy, x, scale, bias)
    assert_equal(actual, expected)


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_cross_entropy_and_its_gradient(how, is_weighted):
    scores, labels, ignored = drawn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3]), 2
    weight = drawn(5, seed=4).abs() if is_weighted else None

    def loss(x: Any) -> Any:
        return F.cross_entropy(x, labels, weight, reduction=how, ignore_index=ignored)

    index, dy = torch.tensor(ignored), torch.tensor(0.5)
    value, log_prob = computed(
        "com.microsoft:SoftmaxCrossEntropyLossInternal", (scores, labels, weight, index), 2, reduction=how
    )
    assert_equal([value, log_prob], [loss(scores), torch.log_softmax(scores, 1)])
    actual = computed(
        "com.microsoft:SoftmaxCrossEntropyLossInternalGrad",
        (dy, log_prob, labels, weight, index),
        reduction=how,
    )
    assert_equal(actual, gradients(loss, dy, scores))


def test_gradients_of_what_takes_elements():
    shape, index = torch.tensor(X.shape), torch.tensor([[0, -1], [2, 2]])
    dy = drawn(3, 2, 2, 5)
    expected = gradients(lambda x: x[:, index], dy, X)
    assert_equal(computed("com.microsoft:GatherGrad", (shape, index, dy), axis=1), expected)
    places, dy = torch.tensor([[[0, 3, 3, 1, 0]]] * 3), drawn(3, 1, 5)
    expected = gradients(lambda x: torch.gather(x, 1, places), dy, X)
    assert_equal(computed("com.microsoft:GatherElementsGrad", (dy, shape, places), axis=1), expected)
    dy, bounds = drawn(3, 2, 5), [torch.tensor([n]) for n in (3, -9, 1, -2)]
    expected = gradients(lambda x: x.flip(1)[:, ::2], dy, X)
    assert_equal(computed("com.microsoft:SliceGrad", (dy, shape, *bounds)), expected)


def test_axes_of_operands_that_were_broadcast():
    one, other = computed("com.microsoft:BroadcastGradientArgs", map_of([4, 1, 5], [2, 1, 3, 1]), 2)
    assert (one.tolist(), other.tolist()) == ([2, 0], [3, 1])


def map_of(*shapes: list[int]) -> list[Any]:
    return [torch.tensor(shape) for shape in shapes]


def test_gradient_of_dropout():
    mask = DY > 0
    actual = computed("com.microsoft:DropoutGrad", (DY, mask, torch.tensor(0.2), torch.tensor(True)))
    assert_equal(actual, [torch.where(mask, DY / 0.8, 0)])
    assert_equal(
        computed("com.microsoft:DropoutGrad", (DY, mask, torch.tensor(0.2), torch.tensor(False))), [DY]
    )


def test_accumulation_begins_anew_where_that_is_asked_for():
    for overwrites, expected in ((False, X + DY), (True, DY)):
        flag = torch.tensor([overwrites])
        done, total = computed("com.microsoft:InPlaceAccumulatorV2", (X, DY, flag), 2)
        assert_equal([total], [expected])
        assert done.all()


def test_products_of_turned_matrices():
    x, y = drawn(2, 3, 4), drawn(2, 5, 4, seed=1)
    assert_equal(computed("com.microsoft:FusedMatMul", (x, y), transB=1, alpha=0.5), [0.5 * x @ y.mT])
    actual = computed("com.microsoft:FusedMatMul", (x, drawn(3, 4, 5)), transBatchA=1)
    assert_equal(actual, [x.transpose(0, 1) @ drawn(3, 4, 5)])


def test_operators_that_are_torchs_already():
    weight, index = drawn(7, 3), torch.tensor([[1, 6], [0, 1]])
    numbers = [torch.tensor(n) for n in (-1, False, False)]
    actual = computed("org.pytorch.aten:ATen", (weight, index, *numbers), operator="embedding")
    assert_equal(actual, [weight[index]])
    dy = drawn(2, 2, 3)
    rows = torch.tensor(7)
    actual = computed("org.pytorch.aten:ATen", (dy, index, rows, *numbers), operator="embedding_backward")
    assert_equal(actual, gradients(lambda w: w[index], dy, weight))


@pytest.mark.parametrize(("ratio", "share"), [(0.0, 1.0), (0.25, 0.75)])
def test_dropout_keeps_its_share_and_scales_it(ratio, share):
    torch.manual_seed(0)
    x = torch.ones(20_000)
    y, mask = computed(
        "com.microsoft:BiasDropout", (x, torch.ones(1), None, torch.tensor(ratio), torch.tensor(True)), 2
    )
    assert abs(mask.float().mean() - share) < 0.02
    assert_equal([y], [torch.where(mask, torch.full_like(x, 2 / share), 0)])
    assert np.isclose(float(y.mean()), 2, atol=0.05)
