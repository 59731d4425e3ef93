"""Opsets that graphs of the world have: read as they are, converted, or refused by the operator."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper, parser

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.importer import import_model

SHIPPED = Path(os.path.dirname(onnx.backend.test.__file__), "data")
OLD_MODELS = sorted(SHIPPED.glob("pytorch-*/*/model.onnx"))


def lowered(source):
    """Everything low that may be."""
    options = Options(
        target=target("v100"), lists=oplists("campo"), strategy="fine-grained", margin_us=1e12, min_gain=0.0
    )
    return optimize_model(source, options)


TRAINING = {
    9: """(float[8,16] x, float[16,4] w, float[4] b, float[8,4] target) => (float loss, float[16,4] w_new) {
        half = Constant<value = float {0.5}>()
        rate = Constant<value = float {0.125}>()
        h = MatMul(x, w)
        s = Add(h, b)
        y = Relu(s)
        d = Sub(y, target)
        q = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(q)
        zero = Constant<value = float {0}>()
        m = Greater(s, zero)
        f = Cast<to = 1>(m)
        g = Mul(d, f)
        gh = Mul(g, half)
        xt = Transpose<perm = [1, 0]>(x)
        gw = MatMul(xt, gh)
        u = Unsqueeze<axes = [0]>(gw)
        v = Squeeze<axes = [0]>(u)
        sw = Mul(v, rate)
        w_new = Sub(w, sw)
    }""",
    11: """(float[2,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[2,4,3,3] y, float[4] gb,
        float[2,3,8,8] gx) {
        c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
        low = Constant<value = float {0}>()
        r = Clip(c, low)
        y, i = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(r)
        gb = ReduceSum<axes = [0, 2, 3], keepdims = 0>(r)
        gx = ConvTranspose<pads = [1, 1, 1, 1]>(r, w)
    }""",
    12: """(float[4,6] x, float[6,10] w, int64[4] labels) => (float loss, float[4,10] grad, float[6,10] gw) {
        h = MatMul(x, w)
        ratio = Constant<value = float {0.0}>()
        training = Constant<value = bool {0}>()
        z, mask = Dropout(h, ratio, training)
        loss, logs = SoftmaxCrossEntropyLoss(z, labels)
        p = Softmax<axis = 1>(z)
        depth = Constant<value = int64[1] {10}>()
        pair = Constant<value = float[2] {0, 1}>()
        hot = OneHot(labels, depth, pair)
        grad = Sub(p, hot)
        xt = Transpose<perm = [1, 0]>(x)
        gw = MatMul(xt, grad)
    }""",
}


@pytest.mark.parametrize("opset", TRAINING)
def test_training_graphs_of_old_opsets_are_written_as_they_are(opset, run, well_cast):
    model = parser.parse_model(f'<ir_version: 6, opset_import: ["": {opset}]> g {TRAINING[opset]}')
    optimized = lowered(model)
    assert optimized.imported.converted_from is None
    assert optimized.plan.low_nodes
    assert [o.version for o in optimized.model.opset_import] == [opset]
    onnx.checker.check_model(optimized.model, full_check=True)
    well_cast(optimized.imported, optimized.model)
    chance = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        is_label = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[value.name] = (
            chance.integers(0, 10, shape) if is_label else chance.standard_normal(shape).astype(np.float32)
        )
    for name, expected in run(model, feeds).items():
        np.testing.assert_allclose(run(optimized.model, feeds)[name], expected, rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_shipped_models_of_opset_6_are_converted_and_compute_what_they_did(run):
    converted = 0
    for path in OLD_MODELS:
        model = onnx.load(path)
        opset = model.opset_import[0].version
        if opset > 6 or "PReLU" in str(path):
            continue
        if all(v.type.tensor_type.elem_type != onnx.TensorProto.FLOAT for v in model.graph.input):
            continue
        optimized = lowered(path)
        assert optimized.imported.converted_from == opset
        onnx.checker.check_model(optimized.model, full_check=True)
        assert list(optimized.model.graph.input) == list(model.graph.input)
        assert list(optimized.model.graph.output) == list(model.graph.output)
        inputs, outputs = (stored_data(path, kind) for kind in ("input", "output"))
        stored = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in stored]
        results = run(optimized.model, dict(zip(names, inputs, strict=True)))
        for actual, expected in zip(results.values(), outputs, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.02, err_msg=str(path))
        converted += 1
    assert converted > 80


def stored_data(path, kind):
    files = sorted((path.parent / "test_data_set_0").glob(f"{kind}_*.pb"))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


HEAD = '<ir_version: 3, opset_import: ["": 6, "shop": 1]> g (float[2,3,4] x, float[3] w) => (float[2,3,4] y)'


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ("y = PRelu(x, w)", "PRelu changed its meaning"),
        ("y = Dropout(x)", "Dropout changed its meaning"),
        ("y = BatchNormalization(x, w, w, w, w)", "BatchNormalization changed its meaning"),
        ("h = GRU<hidden_size = 3>(x, x, x) y = Relu(x)", "the operator GRU cannot be converted"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_its_operator(nodes, why):
    with pytest.raises(UnsupportedModelError, match=f"opset 6, which onnx cannot convert.*{why}"):
        import_model(parser.parse_model(f"{HEAD} {{ {nodes} }}"))


def test_a_dropout_that_does_not_train_is_converted():
    imported = import_model(parser.parse_model(f"{HEAD} {{ y = Dropout<is_test = 1>(x) }}"))
    assert (imported.converted_from, imported.view.opset[""]) == (6, 13)


def test_weights_outside_an_old_file_are_refused(tmp_path):
    text = "(float[512] x, float[512] w) => (float[512] y) { y = Mul(x, w) }"
    model = parser.parse_model(f'<ir_version: 3, opset_import: ["": 6]> g {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.ones(512, np.float32), "w"))
    onnx.external_data_helper.convert_model_to_external_data(model, location="data", size_threshold=0)
    onnx.save(model, tmp_path / "old.onnx")
    with pytest.raises(UnsupportedModelError, match="outside the file"):
        import_model(tmp_path / "old.onnx")


def test_a_model_of_other_domains_only(run):
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["com.microsoft": 1]> '
        "g (float[8,8] a, float[8,8] b) => (float[8,8] y)"
        "{ h = com.microsoft.FusedMatMul<transA = 1>(a, b) y = com.microsoft.Gelu(h) }"
    )
    optimized = lowered(model)
    assert len(optimized.plan.low_nodes) == 2
    assert {o.domain: o.version for o in optimized.model.opset_import} == {"com.microsoft": 1, "": 20}
    onnx.checker.check_model(optimized.model, full_check=True)
    values = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    feeds = dict(zip("ab", values, strict=True))
    np.testing.assert_allclose(run(optimized.model, feeds)["y"], run(model, feeds)["y"], atol=0.05)


def test_standard_operators_without_a_version_are_refused():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["com.microsoft": 1]> g (float[2] x) => (float[2] y)'
        "{ h = com.microsoft.Gelu(x) y = Relu(h) }"
    )
    with pytest.raises(ModelError, match="no opset of the standard domain"):
        import_model(model)
