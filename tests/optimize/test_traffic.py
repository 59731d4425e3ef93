"""Launches and bytes of a step: as it stands, and as it is planned."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family, Movement
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.traffic import Moved, planned_traffic, traffic
from campo_onnx.planning.pipeline import decide, problem_of

DATA = Path(__file__).parents[1] / "data"
FREE = replace(target("v100"), launch_us=1e-6, host_us=1e-6)  # so that small graphs go low as well


def test_a_node_reads_and_writes_and_a_view_does_neither() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        step (float[8,4] x, float[4,2] w) => (float[16] y, float16[8,2] low) {
            product = MatMul (x, w)
            doubled = Add (product, product)
            low = Cast <to = 10> (doubled)
            shape = Constant <value_ints = [16]> ()
            flat = Reshape (doubled, shape)
            y = Neg (flat)
        }
    """)
    step = traffic(import_model(model).view)
    assert step.by_family == {
        Family.MATRIX_PRODUCT: Moved(launches=1, moved_bytes=4 * (8 * 4 + 4 * 2 + 8 * 2)),
        Family.ELEMENTWISE: Moved(launches=2, moved_bytes=4 * (16 + 16) * 2),  # read once, though named twice
    }
    assert [*step.by_family] == [Family.ELEMENTWISE, Family.MATRIX_PRODUCT]  # the largest first
    assert step.casts == Moved(launches=1, moved_bytes=16 * (4 + 2))
    assert step.total == Moved(launches=4, moved_bytes=224 + 128 + 128 + 96)


def test_a_view_that_is_an_output_is_a_copy() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        step (float[8,4] x) => (float[32] y, float[2,16] z) {
            shape = Constant <value_ints = [32]> ()
            y = Reshape (x, shape)
            halves = Constant <value_ints = [2, 16]> ()
            inner = Reshape (y, halves)
            z = Neg (inner)
        }
    """)
    step = traffic(import_model(model).view)
    assert step.by_family == {
        Family.MOVEMENT: Moved(launches=1, moved_bytes=2 * 128),
        Family.ELEMENTWISE: Moved(launches=1, moved_bytes=2 * 128),
    }
    assert step.peak_bytes == 3 * 128 + 3 * 8  # y is not another name of x


@pytest.mark.parametrize("name", ["mlp", "resblocks", "bert2_mlm_sdpa"])
def test_what_is_planned_is_what_is_written(name: str, imported_data) -> None:
    options = Options(target=FREE, lists=oplists("campo"), pads=False)
    imported = imported_data(DATA / f"{name}.onnx")
    problem, fp32 = problem_of(imported, options), traffic(imported.view)
    for strategy in ("optimal", "tf-amp"):
        plan = decide(problem, imported, replace(options, strategy=strategy))
        planned = planned_traffic(problem, plan)
        written = traffic(import_model(rewrite(imported, plan)).view)
        assert planned.peak_bytes == pytest.approx(written.peak_bytes, rel=0.01)  # Casts stand elsewhere
        assert replace(planned, peak_bytes=written.peak_bytes) == written
        # A low view that makes an output is free: the Cast behind it writes the output.
        outputs = [node for t in problem.view.outputs if (node := problem.view.producer.get(t))]
        views = [n for n in outputs if spec(n.op).movement is Movement.VIEW and n.name in plan.low_nodes]
        assert planned.total.launches == fp32.total.launches + len(plan.casts) - len(views)
        assert planned.total.moved_bytes < fp32.total.moved_bytes


def test_a_plan_that_changes_nothing_moves_what_the_graph_moves() -> None:
    options = Options(target=FREE, lists=oplists("campo"), strategy="fp32")
    result = optimize_model(DATA / "mlp.onnx", options)
    assert planned_traffic(result.problem, result.plan) == traffic(result.problem.view)


def test_neighbouring_pointwise_nodes_are_one_kernel_unless_another_lies_between() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        step (float[8,8] x, float[8,8] w) => (float[64] y) {
            a = Exp (x)
            shape = Constant <value_ints = [64]> ()
            b = Tanh (a)
            product = MatMul (a, w)
            sum = Add (b, product)
            flat = Reshape (sum, shape)
            y = Neg (flat)
        }
    """)
    names = {"a": "layer.0/a", "b": "layer.0/b", "product": "layer.1/grad/MatMul", "sum": "layer.1/grad/Add"}
    for node in model.graph.node:
        node.name = names.get(node.output[0], "")
    step = traffic(import_model(model).view)
    # Exp and Tanh: x in, a and b out. Add and Neg: b and the product in, y out. The product lies between.
    assert step.fused == Moved(launches=3, moved_bytes=256 * (3 + 3 + 3))
    assert step.total == Moved(launches=5, moved_bytes=256 * (2 + 2 + 3 + 3 + 2))
    assert step.by_module == {
        "layer.*, backward": Moved(launches=2, moved_bytes=256 * 6),
        "layer.*": Moved(launches=2, moved_bytes=256 * 4),
        "": Moved(launches=1, moved_bytes=256 * 2),
    }
    # x and w all the time; with them b, the product and their sum.
    assert step.peak_bytes == 256 * 5 + 8


def test_the_families_are_read_only() -> None:
    step = traffic(import_model(DATA / "mlp.onnx").view)
    with pytest.raises(TypeError):
        step.by_family[Family.OTHER] = Moved()  # type: ignore[index]


def test_a_cast_that_the_plan_drops_is_not_counted() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        step (float16[512,512] x16, float[512,512] w) => (float[512,512] z) {
            [up] x = Cast <to = 1> (x16)
            [product] y = MatMul (x, w)
            [sum] z = Add (y, y)
        }
    """)
    options = Options(target=FREE, lists=oplists("campo"), pads=False)
    result = optimize_model(model, options)
    assert [cast.node for cast in result.plan.dropped] == ["up"]
    assert planned_traffic(result.problem, result.plan) == traffic(import_model(result.model).view)
