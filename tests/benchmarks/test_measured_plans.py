"""Plans, gradients, layers and single operators of measured networks, and models of costs beside them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.measured import calibration, gradients, layers, learning, ops, plans
from benchmarks.measured.sides import DRAWN
from benchmarks.steps import StepError
from campo_onnx.calibrate.in_step import Part
from campo_onnx.calibrate.run import Workload
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.targets.target import target
from tests.conftest import parse_model

MLP = Path(__file__).parents[1] / "data" / "mlp.onnx"


def test_all_plans_of_a_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    facts = plans.write_plans(import_model(MLP), target("cpu", "openvino"), "datasheet", tmp_path)
    assert set(facts) == {"fp32", *plans.PLANS} == set(DRAWN)
    assert {path.stem for path in tmp_path.glob("*.onnx")} == set(facts)
    assert facts["fp32"]["low"] == facts["fp32"]["casts"] == facts["fp32"]["flops_share"] == 0
    assert facts["all-low"]["low"] >= facts["tf-amp"]["low"] > 0
    assert 0 < facts["all-low"]["flops_share"] <= 1
    assert facts["optimal"]["predicted_us"] <= min(one["predicted_us"] for one in facts.values())
    for name, one in facts.items():
        written = [n for n in onnx.load(tmp_path / f"{name}.onnx").graph.node if n.op_type == "Cast"]
        original = [n for n in onnx.load(MLP).graph.node if n.op_type == "Cast"]
        assert len(written) - len(original) == one["casts"]
    view = import_model(MLP).view
    ports = {node.name: ports_of(view.signature(node.name), Precision.BF16) for node in view.nodes}
    for name, one in facts.items():
        low, casts = learning.changes_in(tmp_path / f"{name}.onnx", ports, Precision.BF16)
        assert (len(low), len(casts)) == (one["low"], one["casts"])


def test_nothing_is_dropped_at_random() -> None:
    """BERT's attention calls dropout as a function, with a rate that is an attribute."""
    torch = pytest.importorskip("torch")
    from benchmarks.measured.networks import case_of

    case = case_of("bert_large")
    with torch.no_grad():
        losses = [float(case.loss(case.module(*case.inputs), *case.targets)) for _ in range(2)]
    assert losses[0] == losses[1]


class TestGradients:
    def test_what_roundings_do_not_explain_is_refused(self) -> None:
        fine = {"gradient_error": 0.5, "emulated_error": 0.3}
        gradients.refuse_unexplained({"fp32": {"gradient_error": 1e-6, "emulated_error": 0.0}, "campo": fine})
        for wrong in (0.95, float("nan")):
            with pytest.raises(StepError, match=r"a gradient of campo .* rounding explains 0\.3"):
                gradients.refuse_unexplained({"campo": fine | {"gradient_error": wrong}})

    def test_the_farthest_one_counts(self) -> None:
        """A zero but for rounding does not."""
        expected = {"a": np.array([3.0, 4.0]), "b": np.array([1.0]), "zero": np.array([1e-7])}
        outputs = {"a": np.array([3.0, 4.5]), "b": np.array([0.5]), "zero": np.array([1.0])}
        assert gradients.farthest_gradient(outputs, expected) == pytest.approx(0.5)

    def test_each_plan_is_emulated(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("safetensors")
        plans.write_plans(import_model(MLP), target("cpu", "openvino"), "datasheet", tmp_path)
        model = onnx.load(MLP)
        feeds = synthesize(import_model(MLP).view)
        gradients.write_expected(model, feeds, plans.PLANS, tmp_path)
        errors = json.loads((tmp_path / "errors.json").read_text())
        assert set(errors) == {"fp32", *plans.PLANS}
        assert 0 <= errors["fp32"] < 1e-3 < errors["all-low"] < 0.5
        outputs = gradients._outputs(model, feeds)
        own_errors = gradients.errors_in(tmp_path, "all-low", outputs)
        assert own_errors == {"gradient_error": 0.0, "emulated_error": errors["all-low"]}

    def test_rectifiers_near_zero_explain_a_gradient_in_fp32(self, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        graph = """
        g (float[64] x) => (float[64] "grad.x") <float[1] edge = {1}, float[1] half = {0.5}> {
          above = Greater (x, edge)
          "grad.x" = Where (above, edge, half)
        }
        """
        feeds = {"x": np.full(64, 1 + 2.0**-22, np.float32)}  # two last digits above the edge
        gradients.write_expected(parse_model(graph), feeds, (), tmp_path)
        (error,) = json.loads((tmp_path / "errors.json").read_text()).values()
        assert 0.1 < error < 0.5
        gradients.refuse_unexplained({"fp32": {"gradient_error": error, "emulated_error": error}})


def test_layers_are_binned_by_window_and_image() -> None:
    """Figures 3 and 4: how often low precision is faster."""
    layer = {"op": "Conv", "kernel": 3, "side": 30, "fp32_us": 8.0, "low_us": 4.0}
    slower = layer | {"side": 17, "low_us": 16.0}
    large = layer | {"op": "MaxPool", "side": 100}
    untimed = layer | {"low_us": 0.0}  # shorter than the runtime's clock counts
    bins = layers.binned([layer, large, slower, untimed])
    assert [(b["op"], b["kernel"], b["side"], b["layers"], b["faster"]) for b in bins] == [
        ("Conv", 3, 32, 2, 1),
        ("MaxPool", 3, 0, 1, 1),
    ]
    assert (bins[0]["speedup"], bins[0]["saved_us"]) == (1.25, -2.0)


def test_layers_have_times_in_both_precisions(tmp_path: Path) -> None:
    """Of a convolution and the pooling behind it."""
    pytest.importorskip("openvino")
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = plans.folder_of("net", tmp_path)
    folder.mkdir()
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("MaxPool", ["c"], ["y"], name="pool", kernel_shape=[2, 2]),
    ]
    # Large enough for a clock of whole microseconds.
    values = {"x": np.ones((2, 16, 96, 96), np.float32), "w": np.ones((16, 16, 3, 3), np.float32)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in values.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 16, 93, 93])]
    model = helper.make_model(
        helper.make_graph(nodes, "net", inputs, outputs), opset_imports=[helper.make_opsetid("", 22)]
    )
    for plan in ("fp32", "all-low"):
        onnx.save(model, folder / f"{plan}.onnx")
    safetensors.save_file(values, folder / plans.FEEDS)
    rows = layers.measured_layers(("net",), tmp_path)
    assert [(one["op"], one["kernel"], one["side"]) for one in rows] == [("Conv", 3, 96), ("MaxPool", 2, 94)]
    assert all(one["fp32_us"] > 0 < one["low_us"] for one in rows)


def test_measured_plans_teach_what_single_nodes_do_not_show() -> None:
    """Products run in a step as alone, element-wise nodes in a tenth of the time."""
    random = np.random.default_rng(0)
    measurements = []
    for network in ("mlp", "bert", "random/0", "random/1"):
        products_us, elementwise_us = 1000.0 * random.uniform(1, 4), 1000.0 * random.uniform(1, 4)
        for plan, factor in (("fp32", 1.0), ("all-low", 0.5), ("optimal", 0.6)):
            parts_us = {
                Part.PRODUCTS: products_us * factor,
                Part.ELEMENTWISE: elementwise_us * (1.5 - factor),
            }
            measured_ms = (parts_us[Part.PRODUCTS] + 0.1 * parts_us[Part.ELEMENTWISE]) / 1e3
            measurements.append(
                learning.Measured(
                    network=network,
                    plan=plan,
                    parts_us=dict.fromkeys(learning.MODELS, parts_us),
                    rounds_ms=[measured_ms * jitter for jitter in np.linspace(0.999, 1.001, 8)],
                )
            )
    facts = learning.learned(measurements)
    assert facts is not None
    assert (facts["plans"], facts["networks"]) == (12, 4)
    assert facts["factors"]["element-wise"] < 0.5 < 0.9 < facts["factors"]["products"]
    learned, alone = (facts["models"][name] for name in (learning.LEARNED, learning.PER_OPERATOR))
    assert learned["error"] < 0.5 * alone["error"]
    assert (learned["pairs"], learned["wrong"], learned["loss"]) == (12, 0, 0.0)
    # From a profile the FP32 step is the measured one, and what single nodes do not show falls out in part.
    profiled = facts["models"][learning.PROFILED]
    assert profiled["error"] == pytest.approx(profiled["low_error"] * 2 / 3)  # one plan of three is FP32
    assert profiled["low_error"] < alone["low_error"]
    steps = [
        (one.step.measured_us, sum(one.parts_us[learning.PROFILED].values())) for one in measurements[::3]
    ]
    assert facts["moments"] == pytest.approx(np.mean([profiled_us / us - 1 for us, profiled_us in steps]))
    assert facts["itself"] == pytest.approx(1.0)
    assert json.loads(json.dumps(facts)) == facts
    assert [row["title"] for row in facts["rows"]][2:] == ["random/0", "random/1"]
    assert learning.learned(measurements[:6]) is None
    shapes = {name: parts for name, parts in measurements[-1].parts_us.items() if name != learning.PROFILED}
    unprofiled = learning.learned([*measurements[:-1], replace(measurements[-1], parts_us=shapes)])
    assert unprofiled is not None  # a network that was not profiled: the model is left out
    assert learning.PROFILED not in unprofiled["titles"]
    assert unprofiled["moments"] is None


def test_a_model_that_orders_plans_wrongly_loses_time() -> None:
    parts_us = {"fp32": 1000.0, "all-low": 2000.0}
    group = [
        learning.Measured(
            network="mlp",
            plan=plan,
            parts_us={model: {Part.PRODUCTS: time_us} for model in learning.MODELS},
            rounds_ms=[measured_ms * jitter for jitter in np.linspace(0.99, 1.01, 8)],
        )
        for (plan, time_us), measured_ms in zip(parts_us.items(), (3.0, 2.0), strict=True)
    ]
    predicted_us = {("mlp", plan): time_us for plan, time_us in parts_us.items()}
    missed = learning._misprediction(group, predicted_us)
    assert (missed["chosen"], missed["best"], missed["pairs"], missed["wrong"]) == ("fp32", "all-low", 1, 1)
    assert missed["loss"] == pytest.approx(0.5)


def test_operators_alone_and_between_casts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(ops, "_ROUNDS_S", 0.0)
    folder = plans.folder_of("mlp", tmp_path)
    folder.mkdir()
    shutil.copy(MLP, folder / "fp32.onnx")
    timings = ops.measured_ops(("mlp", "a network that was not prepared"), tmp_path, threads=1)
    assert not timings["failures"]
    assert {row["op"] for row in timings["rows"]} <= set(ops.OPS)
    assert any(row["op"] in ("MatMul", "Gemm") for row in timings["rows"])
    for row in timings["rows"]:
        assert set(row["us"]) == {"fp32", "low", "low_casts"}
        assert row["casts_pay"]["low"] <= row["casts_pay"]["median"] <= row["casts_pay"]["high"]
    assert [row["size"] for row in timings["widths"]] == [*ops.WIDTHS, *ops.CHANNELS]


def test_casts_around_a_node_of_bf16() -> None:
    """The graph takes and gives FP32, and rounds to BF16 in between."""
    low, shape = TensorProto.BFLOAT16, [2, 2]
    values = [helper.make_tensor_value_info(name, low, shape) for name in ("a_0", "b_0", "c_0")]
    node = helper.make_node("MatMul", ["a_0", "b_0"], ["c_0"])
    model = helper.make_model(helper.make_graph([node], "node", values[:2], values[2:]))
    cast = ops.between_casts(model)
    onnx.checker.check_model(cast, full_check=True)
    assert [n.op_type for n in cast.graph.node] == ["Cast", "Cast", "MatMul", "Cast"]
    types = {v.type.tensor_type.elem_type for v in (*cast.graph.input, *cast.graph.output)}
    assert types == {TensorProto.FLOAT}


def test_a_calibration_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is up, the models are fitted to what has been timed."""
    pytest.importorskip("openvino")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "calibration_here", str)  # none is shipped for this machine
    only_stored: list[bool] = []

    def calibrate(chosen: Workload, timer: Any, *rest: Any) -> None:
        only_stored.append(timer.only_stored)
        if len(rest) == 3:
            rest[2](1, 100)
        raise calibration.ProfileError("too few timings")

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    assert calibration.calibrate_here(calibration.workload(is_quick=True), limit_s=-1.0) == ""
    assert only_stored == [False, True]
