"""Random graphs that broke an oracle once, made small."""

import numpy as np
import onnx
import pytest

from campo_onnx import Precision
from tests.random_graphs.builder import RandomGraph
from tests.random_graphs.oracles import Setting, check, optimized

FOUND = {
    "the output of RMSNormalization has the type of its scale": (
        23,
        "(float[2,4] x, float[4] s) => (float[2,4] y) { h = RMSNormalization(x, s) y = Relu(h) }",
    ),
    "keys, values and queries of Attention are of one type": (
        23,
        "(float[1,2,2,4] x, float[1,2,3,4] k) => (float[1,2,2,4] y) { h = Attention(x, k, k) y = Relu(h) }",
    ),
    "no Cast makes BF16 before opset 13": (
        11,
        "(float[4,4] x) => (float[4,4] y) { h = com.microsoft.FusedMatMul(x, x) y = com.microsoft.Gelu(h) }",
    ),
    "the CPU provider adds up scattered FP32 only": (
        18,
        "(float[4,3] x, float[2,3] u) => (float[4,3] y) <int64[2,1] i = {3, 1}> "
        '{ h = ScatterND<reduction = "add">(x, i, u) y = Relu(h) }',
    ),
    "positions that a constant holds": (
        17,
        "(float[1] x) => (float[3,1] y) <int64[3] k = {30000, 30001, 30002}, int64[1] a = {1}> "
        "{ t = Cast<to = 1>(k) y = Unsqueeze(t, a) }",
    ),
    "a mask that is the default of an input": (
        17,
        "(float one, double big) => (float[2,2] y) <double big = {-1e9}, float[2,2] m = {1, 0, 1, 1}> "
        "{ b = Cast<to = 1>(big) h = Sub(one, m) y = Mul(h, b) }",
    ),
    "the shape of a statistic of a low normalization": (
        20,
        "(float[2,4] x, float[4] s) => (float[2,4] y, int64[2] z) "
        "{ y, m = LayerNormalization(x, s, s) z = Shape(m) }",
    ),
}


@pytest.mark.parametrize("device", ["v100", "h200", "cpu"])
@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16], ids=lambda low: low.value)
@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_cured(model_text, what, low, device):
    opset, text = FOUND[what]
    model = model_text(f"g {text}", opset)
    chance = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.asarray(chance.standard_normal(shape), dtype)
    feeds |= {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name in feeds}
    setting = Setting(strategy="fine-grained", lists="campo", low=low, device=device, cost_seed=5)
    graph = RandomGraph(seed=0, model=model, feeds=feeds, values={})
    assert check(graph, setting) in ("ok", "ok, nothing low")


@pytest.mark.parametrize(("opset", "is_padded"), [(10, False), (11, True)])
def test_pads_are_written_where_pad_takes_its_sizes_as_an_input(model_text, opset, is_padded):
    model = model_text(
        "g (float[7,9] x, float[9,5] w) => (float[7,5] y) { h = MatMul(x, w) y = Relu(h) }", opset
    )
    setting = Setting(strategy="optimal", lists="campo", low=Precision.FP16, device="v100", cost_seed=4)
    assert bool(optimized(model, setting).plan.pads) == is_padded
    chance = np.random.default_rng(0)
    feeds = {
        name: chance.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (7, 9)), ("w", (9, 5)))
    }
    outcome = check(RandomGraph(seed=0, model=model, feeds=feeds, values={}), setting)
    assert outcome == ("ok" if is_padded else "ok, nothing low")
