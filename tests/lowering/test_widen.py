"""Files that hold low precision already: raised, planned both ways, and the same by value."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import parser

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.widen import widened
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.graph_kind import Storage
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.planning.comparison import AS_GIVEN, compare
from campo_onnx.planning.pipeline import problem_of, stays
from tests.random_graphs.builder import run
from tests.random_graphs.generate import random_graph
from tests.random_graphs.oracles import Setting

# Random graphs in which op lists lower something, and on which ONNX Runtime's own Casts change nothing.
SEEDS = (1, 4, 9, 14, 22, 33, 43, 78, 90, 97, 158, 181, 202, 250)

PAIRS = {
    "between casts": (
        """g (float[4, 8] x, float16[8, 8] w) => (float[4, 8] y) {
            x16 = Cast<to = 10>(x) h = MatMul(x16, w) r = Relu(h) y = Cast<to = 1>(r) }""",
        "Cast MatMul Relu",
        {"MatMul", "Relu"},
    ),
    "all of it, outputs too": (
        "g (float16[4, 8] x, float16[8, 8] w) => (float16[4, 8] y) { h = MatMul(x, w) y = Relu(h) }",
        "Cast Cast MatMul Relu Cast",
        {"MatMul", "Relu"},
    ),
    "rounding on purpose stays": (
        """g (float[4] x) => (float[4] y, float16[4] n) {
            l = Cast<to = 10>(x) y = Cast<to = 1>(l) n = Neg(l) }""",
        "Cast Cast Neg Cast",
        {"Neg"},
    ),
    "what a body reads stays low": (
        """g (float16[4] x, bool c) => (float16[4] y) { h = Neg(x)
            y = If(c) < then_branch = a () => (float16[4] t) { t = Identity(h) },
                        else_branch = b () => (float16[4] e) { e = Abs(h) } > }""",
        "Cast Neg Cast If",
        {"Neg"},
    ),
    "a Cast among low tensors": (
        "g (float16[4] x) => (float16[4] y) { h = Cast<to = 10>(x) y = Neg(h) }",
        "Cast Neg Cast",
        {"Neg"},
    ),
    "numbers of another type": (
        """g (float16[4] x, int64[4] i) => (float16[4] y, int64[1] s) {
            j = Cast<to = 10>(i) y = Mul(x, j) s = Shape(y) }""",
        "Cast Cast Mul Cast Shape",
        {"Mul"},
    ),
}


PAYS = "g (float16[512, 512] x, float16[512, 512] w) => (float16[512, 512] y) { h = MatMul(x, w) y = Exp(h) }"


def model_of(graph: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}')


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.asarray(rng.standard_normal(shape) * 2).astype(dtype)
    return feeds


def types(model: onnx.ModelProto) -> list[tuple[str, int]]:
    graph = model.graph
    values = [(v.name, v.type.tensor_type.elem_type) for v in (*graph.input, *graph.output)]
    return values + [(tensor.name, tensor.data_type) for tensor in graph.initializer]


def without_stamp(model: onnx.ModelProto) -> onnx.ModelProto:
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    return bare


def options_for(device: str, **more: object) -> Options:
    return Options(target=target(device), lists=oplists("campo"), **more)


@pytest.mark.parametrize("case", PAIRS)
def test_what_is_raised_and_what_stays(case: str) -> None:
    text, op_types, low = PAIRS[case]
    low_model = model_of(text)
    wide = widened(import_model(low_model), Precision.FP16)
    assert [node.op_type for node in wide.model.graph.node] == op_types.split()
    assert wide.low_as_given == low
    assert types(wide.model) == types(low_model)
    onnx.checker.check_model(wide.model, full_check=True)
    before, after = (run(model, drawn(low_model)) for model in (low_model, wide.model))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_lowered_again_it_is_the_file(seed: int) -> None:
    """Op lists' low nodes, raised and lowered again, have the file's values to the bit, and its price."""
    graph, setting = random_graph(seed), Setting.drawn(seed)
    lists = oplists("tf2")
    options = replace(setting.options, strategy="tf-amp", lists=lists, pads=False, min_gain=0.0)
    mixed = optimize_model(graph.model, options)
    low_model = without_stamp(mixed.model)
    wide = widened(import_model(low_model), options.low)
    casts = {node.name for node in mixed.imported.view.nodes if node.op.label == "Cast"}
    assert mixed.plan.low_nodes - casts <= wide.low_as_given
    assert types(wide.model) == types(low_model)

    problem = problem_of(wide, options)
    kept = stays(problem, options, wide.low_as_given, Verdict(decided_by=Reason.AS_WRITTEN))
    before, again = (run(model, graph.feeds) for model in (low_model, rewrite(wide, kept)))
    for name, value in before.items():
        np.testing.assert_array_equal(again[name], value)

    best = optimize_model(low_model, replace(options, strategy="optimal"))
    if best.problem.starts_low:
        assert best.plan.predicted_us <= best.as_given_us * (1 + 1e-9)
    assert (
        types(best.model)[: len(graph.model.graph.input)] == types(low_model)[: len(graph.model.graph.input)]
    )
    run(best.model, graph.feeds)


def test_a_file_whose_low_nodes_pay_stays_to_the_byte() -> None:
    model = model_of(PAYS)
    optimized = optimize_model(model, options_for("v100"))
    assert optimized.model.SerializeToString() == import_model(model).model.SerializeToString()
    assert optimized.problem.kind.storage is Storage.LOW
    assert optimized.plan.low_nodes == {"MatMul", "Exp"}, "Exp is denied to FP32 nodes alone"


def test_a_processor_without_fp16_gets_fp32() -> None:
    model = model_of(PAIRS["between casts"][0])
    optimized = optimize_model(model, options_for("cpu"))
    assert not optimized.plan.low_nodes
    assert optimized.plan.predicted_us < optimized.as_given_us
    assert types(optimized.model) == types(model)


def test_small_nodes_are_raised_where_casts_cost_more() -> None:
    text = """g (float[4, 4] x, float[4096, 4096] z, float16[4096, 4096] w)
            => (float[4, 4] y, float[4096, 4096] p) {
        l = Cast<to = 10>(x) h = Neg(l) y = Cast<to = 1>(h)
        m = Cast<to = 10>(z) q = MatMul(m, w) p = Cast<to = 1>(q) }"""
    assert optimize_model(model_of(text), options_for("v100", min_gain=0.0)).plan.low_nodes == {"MatMul"}


def test_keep_fp32_raises_what_is_low() -> None:
    plan = optimize_model(model_of(PAYS), options_for("v100", keep_fp32=("Exp",))).plan
    assert plan.low_nodes == {"MatMul"}
    assert plan.decision["Exp"].decided_by is Reason.USER


def test_a_wider_format_than_the_planned_one_stays() -> None:
    text = PAIRS["between casts"][0].replace("float16", "bfloat16").replace("to = 10", "to = 16")
    imported = import_model(model_of(text))
    assert widened(imported, Precision.FP16) is imported
    assert widened(imported, Precision.BF16).low_as_given == {"MatMul", "Relu"}


def test_fp16_is_raised_for_a_plan_in_bf16() -> None:
    wide = widened(import_model(model_of(PAIRS["between casts"][0])), Precision.BF16)
    assert wide.as_given is not None
    assert not wide.low_as_given, "FP16 is no answer of a plan in BF16"


def test_compare_has_the_file_as_it_is() -> None:
    comparison = compare(model_of(PAIRS["between casts"][0]), options_for("cpu"))
    first = comparison.rows[0].plan
    assert first.strategy == AS_GIVEN
    assert first.low_nodes == {"MatMul", "Relu"}
    best = next(row.plan for row in comparison.rows if row.plan.strategy == "optimal")
    assert best.predicted_us < first.predicted_us
