"""The whole line: every graph, device, strategy and preset; twice is once; safety; damaged input."""

import gc
import random
import weakref
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import apply, decide, optimize, problem_of
from campo_onnx.targets.target import target

ROOT = Path(__file__).parents[2]
GRAPHS = sorted((ROOT / "tests" / "data").glob("*.onnx"))
STANDARD = [path for path in GRAPHS if "training" not in path.stem]

STRATEGIES = ["optimal", "campo", "tf-amp"]
STRATEGIES_OF_PLANS = [*STRATEGIES, "fine-grained", "fp32"]

# Casts and launches next to nothing, so that small graphs are worth rewriting.
EAGER = replace(target("v100"), launch_us=1e-6, host_us=1e-6)


def options(**changes):
    return Options(**{"target": EAGER, "lists": preset("campo")} | changes)


def low_share(optimized):
    return len(optimized.plan.low_nodes) / len(optimized.plan.decisions)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_every_graph_becomes_a_valid_model_on_every_device(path, well_cast, imported_data, tmp_path):
    imported, seen = imported_data(path), set()
    for name, lists in product(("h200", "v100"), ("campo", "tf2", "tf115")):
        chosen = Options(target=target(name), lists=preset(lists))
        problem = problem_of(imported, chosen)
        for strategy in STRATEGIES:
            plan = decide(problem, imported, replace(chosen, strategy=strategy))
            if strategy != "tf-amp":
                assert plan.predicted_us <= plan.fp32_us
            if (plan.low_nodes, plan.pads) not in seen:  # the same decisions need no second check
                model = apply(plan, problem, imported).model
                well_cast(imported, model)
                export_model(model, tmp_path / f"{name}-{lists}-{strategy}.onnx", folder=path.parent)
            seen.add((plan.low_nodes, plan.pads))


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_twice_is_once_and_what_is_written_loads(
    path, precision, well_cast, imported_data, dims_of, run, tmp_path
):
    loads = path in STANDARD and precision is Precision.FP16
    chosen = options(
        dims=dims_of(path),
        low=precision,
        target=EAGER if precision is Precision.FP16 else replace(target("h200"), launch_us=1e-6),
        keep_fp32=("Random.*",) if loads else (),  # ONNX Runtime's CPU provider cannot draw low ones
    )
    imported = imported_data(path)
    problem, seen = problem_of(imported, chosen), set()
    for strategy in STRATEGIES if precision is Precision.FP16 else STRATEGIES[:1]:
        plan = decide(problem, imported, replace(chosen, strategy=strategy))
        if (plan.low_nodes, plan.pads) in seen:
            continue
        seen.add((plan.low_nodes, plan.pads))
        first = apply(plan, problem, imported)
        assert not first.was_optimized_before
        assert Plan.from_json(plan.to_json()) == plan
        well_cast(imported, first.model)
        export_model(first.model, tmp_path / "once.onnx", folder=path.parent)
        if loads:
            assert low_share(first) > 0.05
            run(tmp_path / "once.onnx")
        second = optimize(tmp_path / "once.onnx", replace(chosen, strategy="optimal"))
        assert second.was_optimized_before
        assert not second.plan.low_nodes
        assert not second.plan.pads
        assert second.plan.strategy == strategy
        export_model(second.model, tmp_path / "twice.onnx", folder=tmp_path)
        assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_the_plan_does_not_depend_on_the_order_of_nodes(model_text):
    model = onnx.load(ROOT / "tests" / "data" / "mlp.onnx")
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    random.Random(0).shuffle(nodes)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    plans = [optimize(m, options(strategy="optimal")).plan for m in (model, shuffled)]
    assert plans[0].low_nodes
    assert plans[0].low_nodes == plans[1].low_nodes
    assert plans[0].predicted_us == pytest.approx(plans[1].predicted_us)


def test_the_given_model_is_not_changed():
    model = onnx.load(ROOT / "tests" / "data" / "mlp.onnx")
    before = model.SerializeToString(deterministic=True)
    optimize(model, options(strategy="tf-amp"))
    assert model.SerializeToString(deterministic=True) == before


def test_dimensions_stay_symbolic_in_the_result(model_text):
    model = model_text(
        """g (float[N,64] x, float[64,64] w) => (float[N,64] y) { h = MatMul(x, w) y = MatMul(h, w) }"""
    )
    optimized = optimize(model, options(dims={"N": 256}))
    assert optimized.plan.low_nodes
    assert optimized.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


# --- what stays FP32, and the reason the user reads ---

STEP = """g (float[512,512] x, float[512,512] w, float[1] lr) => (float[512,512] y)
    <float[1] eps = {{1e-08}}, float[1] mask = {{-3.4e+38}}, float[1] two = {{2}}> {{
    h = MatMul(x, w)
    [n] k = Mul(h, {})
    y = MatMul(k, w)
}}"""


@pytest.mark.parametrize(
    ("scalar", "reason"),
    [
        ("eps", "its constant 'eps' holds 1e-08, too small for fp16"),
        ("mask", "its constant 'mask' holds -3.4e+38, which overflows fp16"),
        ("lr", "reads the scalar input 'lr', whose size the graph does not tell"),
        ("two", None),
    ],
)
def test_scalars_decide(model_text, scalar, reason):
    optimized = optimize(model_text(STEP.format(scalar)), options(strategy="tf-amp"))
    decision = {d.node: d for d in optimized.plan.decisions}["n"]
    if reason is None:
        assert decision.precision is Precision.FP16
    else:
        assert (decision.precision, decision.reason) == (Precision.FP32, reason)
    assert optimized.plan.low_nodes


def test_keep_fp32_names_nodes_and_operators(model_text):
    def low_with(*patterns):
        chosen = options(strategy="tf-amp", keep_fp32=patterns)
        return optimize(model_text(STEP.format("two")), chosen).plan.low_nodes

    assert low_with() == {"MatMul", "n", "MatMul_1"}
    assert low_with("n") == {"MatMul", "MatMul_1"}
    assert low_with("MatMul_.*") < low_with()
    assert low_with("MatMul", "MatMul_1") == set()
    with pytest.raises(UsageError, match="is not a regular expression"):
        low_with("(")


def test_an_unknown_strategy(model_text):
    with pytest.raises(UsageError, match="unknown strategy 'best'"):
        optimize(model_text(STEP.format("two")), options(strategy="best"))


@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_control_flow_stays_fp32_and_computes_the_same(model_text, run, well_cast, kind):
    flow = {
        "If": "r = If (c) <then_branch = t () => (float[4,4] o) { o = Add(h, k) },"
        "else_branch = e () => (float[4,4] p) { p = Identity(h) }>",
        "Loop": "r = Loop(n, c, h) <body = b (int64 i, bool go, float[4,4] a) => (bool stay, float[4,4] next)"
        "{ stay = Identity(go) next = Sub(a, k) }>",
        "Scan": "r = Scan<num_scan_inputs = 1, body = b (float[4] row) => (float[4] out)"
        "{ s = ReduceSum<keepdims = 0>(h) out = Sub(row, s) }>(k)",
    }[kind]
    model = model_text(f"""g (float[4,4] x, float[4,4] w, bool c, int64 n) => (float[4,4] y) {{
        h = MatMul(x, w) k = MatMul(w, x) [flow] {flow} y = MatMul(r, w) u = Identity(c) v = Identity(n)
    }}""")
    optimized = optimize(model, options(strategy="tf-amp"))
    assert {d.node: d.reason for d in optimized.plan.decisions}["flow"].startswith("control flow")
    assert {"MatMul", "MatMul_1"} <= optimized.plan.low_nodes
    well_cast(optimized.imported, optimized.model)
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-2, 3, (4, 4)).astype(np.float32) for _ in range(2))
    feeds = {"x": x, "w": w, "c": np.array(True), "n": np.array(3)}
    np.testing.assert_array_equal(run(optimized.model, feeds)["y"], run(model, feeds)["y"])


def test_external_data_goes_the_whole_way(model_text, tmp_path, run):
    w = np.random.default_rng(0).integers(-3, 4, (256, 256)).astype(np.float32)
    model = model_text("g (float[256,256] x) => (float[256,256] y) { h = MatMul(x, w) y = MatMul(h, v) }")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name in "wv")
    (tmp_path / "in").mkdir()
    onnx.save(
        model, tmp_path / "in" / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0
    )
    optimized = optimize(tmp_path / "in" / "m.onnx", options())
    assert len(optimized.plan.low_nodes) == 2
    assert not any(t.raw_data for t in optimized.model.graph.initializer)
    export_model(optimized.model, tmp_path / "m.onnx", folder=optimized.imported.folder)
    low = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert low.keys() == {"w_fp16", "v_fp16"}
    np.testing.assert_array_equal(low["w_fp16"], w.astype(np.float16))
    x = np.eye(256, dtype=np.float32)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", {"x": x})["y"], w @ w)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_model_is_refused_or_optimized_but_never_a_crash(tmp_path, seed):
    chance = random.Random(seed)
    payload = bytearray((ROOT / "tests" / "data" / "mlp.onnx").read_bytes())
    for _ in range(seed % 5 + 1):
        payload[chance.randrange(len(payload))] = chance.randrange(256)
    (tmp_path / "m.onnx").write_bytes(bytes(payload))
    with suppress(UsageError, ModelError, UnsupportedModelError):
        optimized = optimize(tmp_path / "m.onnx", options(strategy="tf-amp"))
        export_model(optimized.model, tmp_path / "out.onnx", folder=tmp_path)


def test_on_a_cpu_lists_alone_lose_and_costs_keep_fp32(imported_data):
    cpu = Options(target=target("cpu"), lists=preset("campo"))
    for path in STANDARD:
        imported = imported_data(path)
        problem = problem_of(imported, cpu)
        by_lists = decide(problem, imported, replace(cpu, strategy="tf-amp"))
        assert by_lists.low_nodes
        assert by_lists.predicted_us > by_lists.fp32_us
        assert not decide(problem, imported, cpu).low_nodes


@pytest.mark.parametrize("strategy", ["optimal", "campo"])
def test_a_gain_too_small_to_be_sure_of_is_left(strategy):
    path = ROOT / "tests" / "data" / "alexnet_like.onnx"
    taken = optimize(path, options(strategy=strategy, min_gain=0.0)).plan
    share = 1 - taken.predicted_us / taken.fp32_us
    assert optimize(path, options(strategy=strategy, min_gain=share * 0.99)).plan == taken
    left = optimize(path, options(strategy=strategy, min_gain=share * 1.01)).plan
    assert not left.low_nodes
    assert not left.casts
    assert {d.decided_by for d in left.decisions} - {d.decided_by for d in taken.decisions} == {
        Reason.MIN_GAIN
    }


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("name", ["mlp", "bert2_mlm_sdpa"])
def test_no_plan_of_any_strategy_is_below_the_bound_that_each_carries(name, pads, imported_data):
    imported = imported_data(ROOT / "tests" / "data" / f"{name}.onnx")
    plans = {}
    for strategy in STRATEGIES_OF_PLANS:
        chosen = options(strategy=strategy, pads=pads, min_gain=0.0)
        plans[strategy] = decide(problem_of(imported, chosen), imported, chosen)
    least_us = min(plan.predicted_us for plan in plans.values())
    for plan in plans.values():
        assert plan.lower_bound_us is not None
        assert plan.lower_bound_us <= least_us * (1 + 1e-9)
    assert plans["campo"].lower_bound_us == pytest.approx(plans["optimal"].predicted_us, rel=1e-6)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_a_graph_that_was_planned_is_let_go(path, dims_of):
    """A loop of changing sizes plans thousands of graphs: what is remembered of one must not keep it."""
    imported = import_model(path, dims_of(path))
    chosen = options()
    problem = problem_of(imported, chosen)
    apply(decide(problem, imported, chosen), problem, imported)
    alive = [weakref.ref(imported), weakref.ref(imported.view)]
    del imported, problem
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
