"""Plans tried on data in units of its own: counts, prices and times, in those inputs that products bear."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import parser

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.batches import draw_batches
from campo_onnx.emulation.probe import Probed, probe
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.values.ranges import DeclaredRange

HEADER = '<ir_version: 10, opset_import: ["": 20]> step '
INPUTS = "(float[64,16] x, float[16,16] v, float[16,8] w) => (float[64,8] y)"
LEAST = "[least] t = Constant<value_float = 1e-6>()"
GATED = f"{LEAST} [log] l = Log(x) [gate] g = MatMul(l, v) [share] s = Sigmoid(g) [scaled] h = Mul(x, s) {{}}"
TITLE = "data in units of its own"


def tried(text: str) -> Probed:
    free = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
    options = Options(
        target=free, lists=oplists("campo"), strategy="fine-grained", margin_us=1e12, min_gain=0.0
    )
    return probe(optimize_model(parser.parse_model(HEADER + text), options), options)


def test_what_overflows_before_a_quotient_tames_it_stays_fp32() -> None:
    """A learned gate times counts: 1e9 * s is infinite in FP16, though the product after it reads 1,000."""
    text = f"{INPUTS} {{ {GATED.format('[tamed] c = Mul(h, t) [dot] y = MatMul(c, w)')} }}"
    outcome = tried(text)
    assert TITLE in outcome.batches
    assert "scaled" in outcome.fp32
    assert outcome.fp32["scaled"].facts["batch"] == TITLE
    assert "gate" in outcome.optimized.plan.low_nodes


@pytest.mark.parametrize("first", ["x", "r"])
def test_data_that_a_product_reads_as_it_comes_is_no_such(first: str) -> None:
    """Nobody trains on it: FP16 overflows in the product itself."""
    text = f"{INPUTS} {{ [r] r = Relu(x) [first] h = MatMul({first}, v) [dot] y = MatMul(h, w) }}"
    outcome = tried(text)
    assert TITLE not in outcome.batches
    assert not outcome.fp32


def test_of_two_inputs_the_one_that_products_bear_is_tried() -> None:
    inputs = INPUTS.replace("(float[64,16] x,", "(float[64,16] x, float[64,16] z,")
    body = GATED.format(
        "[tamed] c = Mul(h, t) [one] a = MatMul(c, w) [other] b = MatMul(z, w) [sum] y = Add(a, b)"
    )
    outcome = tried(f"{inputs} {{ {body} }}")
    assert TITLE in outcome.batches
    assert "scaled" in outcome.fp32
    assert "other" in outcome.optimized.plan.low_nodes


def test_it_holds_counts_of_every_size_but_where_a_range_is_declared() -> None:
    text = f"{HEADER}{INPUTS} {{ l = Log(x) h = MatMul(l, v) y = MatMul(h, w) }}"
    view = import_model(parser.parse_model(text)).view
    products = [node.name for node in view.nodes if node.op.op_type == "MatMul"]
    *others, own = draw_batches(view, products)
    assert own.title == TITLE
    assert own.doubtful == ("x",)
    assert not any(batch.doubtful for batch in others)
    assert own.feeds["x"].min() >= 1.0
    assert own.feeds["x"].max() > 1e8
    np.testing.assert_array_equal(own.feeds["w"], others[0].feeds["w"])
    declared = draw_batches(view, products, {"x": DeclaredRange(lowest=1.0, highest=9.0)})
    assert not any(batch.doubtful for batch in declared)


def test_fp16_holds_no_such_data() -> None:
    text = "(float16[64, 64] x, float16[64, 64] w) => (float16[64, 64] y) { l = Log(x) y = MatMul(l, w) }"
    batches = list(draw_batches(import_model(parser.parse_model(HEADER + text)).view, ["MatMul"]))
    assert batches
    assert not any(batch.doubtful for batch in batches)
