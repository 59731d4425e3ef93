"""The table of OpenVINO's kernels, held against the plugin that is installed."""

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.openvino.kernels import sums_low, support, table
from scripts import probe_openvino

BF16, FP16, FP32 = Precision.BF16, Precision.FP16, Precision.FP32
ROWS, INT = (FLOAT, (16, 64)), 7


def node(op, inputs=(ROWS,), outputs=(ROWS,), **rest):
    return make_signature(
        OpKey.parse(op), opset=rest.pop("opset", 22), inputs=inputs, outputs=outputs, **rest
    )


def image(channels, size):
    return FLOAT, (2, channels, size, size)


SAMPLE = [
    node("MatMul", [ROWS, (FLOAT, (64, 64))]),
    node("Gemm", [ROWS, (FLOAT, (64, 64)), (FLOAT, (64,))]),
    node("Conv", [image(8, 9), (FLOAT, (8, 8, 3, 3))], [image(8, 7)]),
    node("ConvTranspose", [image(8, 7), (FLOAT, (8, 8, 3, 3))], [image(8, 9)]),
    node("MaxPool", [image(8, 8)], [image(8, 4)], attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    node("Softmax"),
    node("Add", [ROWS, ROWS]),
    node("Tanh"),
    node("LayerNormalization", [ROWS, (FLOAT, (64,))]),
    node("Transpose", outputs=[(FLOAT, (64, 16))], attributes={"perm": [1, 0]}),
    node("com.microsoft:FusedMatMul", [ROWS, (FLOAT, (64, 64))], opset=1),
    node("com.microsoft:GatedAdd", [ROWS, ROWS], opset=1),
]


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize("signature", SAMPLE, ids=lambda signature: signature.op.label)
def test_the_plugin_does_what_the_table_says(signature):
    # An operator's row is the worst of its nodes.
    order = (Support.NATIVE, Support.STORAGE, Support.UPCAST, Support.REFUSED)
    probed = probe_openvino.probe([signature])[signature.op]
    row = table()[signature.op]
    assert probed.fp32 is row.fp32
    assert order.index(probed.bf16) <= order.index(row.bf16)


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize("signature", [*probe_openvino.sums()], ids=lambda signature: signature.op.label)
def test_sums_in_low_precision_are_told(signature):
    assert probe_openvino.sums_low(signature) is sums_low(signature, BF16)


def test_sums_that_stay_exact_only_in_fp32():
    add = {"attributes": {"reduction": "add"}}
    scatter = [ROWS, (INT, (16, 64)), ROWS]
    assert sums_low(node("ScatterElements", scatter, **add), BF16)
    assert not sums_low(node("ScatterElements", scatter, **add), FP32)
    assert not sums_low(node("ScatterElements", scatter), BF16)  # moves, and does not add
    assert not sums_low(node("MatMul", [ROWS, (FLOAT, (64, 64))]), BF16)


def test_products_are_native_and_elementwise_is_storage():
    for signature in SAMPLE[:4]:
        assert support(signature, BF16) is Support.NATIVE
    assert support(node("Add", [ROWS, ROWS]), BF16) is Support.STORAGE


@pytest.mark.parametrize("op", ["MatMul", "Add", "Cast"])
def test_nothing_runs_in_fp16(op):
    assert support(node(op), FP16) is Support.REFUSED


def test_what_nobody_tried_is_refused():
    assert support(node("my.domain:Fancy"), FP32) is Support.REFUSED
    assert support(node("my.domain:Fancy"), BF16) is Support.REFUSED


def test_settings_that_the_plugin_refuses():
    def dropout(training):
        inputs = [ROWS, (FLOAT, ()), (9, ())]
        return node("Dropout", inputs, constants={} if training is None else {2: np.asarray(training)})

    assert support(dropout(False), FP32) is Support.NATIVE
    assert support(dropout(True), FP32) is Support.REFUSED
    assert support(dropout(None), FP32) is Support.REFUSED
    assert support(node("Dropout"), FP32) is Support.NATIVE
    gather = {"attributes": {"axis": 1}}
    assert support(node("GatherElements", [ROWS, (INT, (16, 3))], **gather), FP32) is Support.NATIVE
    assert support(node("GatherElements", [ROWS, (INT, (8, 3))], **gather), FP32) is Support.REFUSED


def depthwise(stride, channels=8, group=8):
    return node(
        "ConvTranspose",
        [image(channels, 7), (FLOAT, (channels, channels // group, 3, 3))],
        [image(channels, 7 * stride)],
        attributes={"group": group, "strides": [stride, stride]},
    )


def test_strided_gradients_of_depthwise_convolutions_stay_fp32():
    assert support(depthwise(2), BF16) is Support.REFUSED
    assert support(depthwise(2), FP32) is Support.NATIVE
    assert support(depthwise(1), BF16) is Support.NATIVE
    assert support(depthwise(2, group=4), BF16) is Support.NATIVE
