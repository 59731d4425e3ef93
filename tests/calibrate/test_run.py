"""Calibrating, on made-up timings and on this CPU: models, file, predictions."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from campo_onnx.calibrate.calibration import Calibration, load_calibration
from campo_onnx.calibrate.fit import Sample, fit_by, split
from campo_onnx.calibrate.in_step import InStep
from campo_onnx.calibrate.op_model import OpModel
from campo_onnx.calibrate.run import Workload, calibrate
from campo_onnx.calibrate.samples import Sampling, samples_of
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.predicted import CostModel
from campo_onnx.errors import ProfileError, UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.events import EVENTS, events_of
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.one_node import NODE, one_node_view, step_samples
from campo_onnx.measure.store import Store
from campo_onnx.ops.facts import moved_bytes, ports_of, work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.ports import Ports, lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, Signature, make_signature
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Timing
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
GPU = Machine(
    provider="cuda", device="NVIDIA H200", driver="580", cuda="13.0", ort="1.31.1", tf32=True, threads=0
)
H200 = target("h200")
TINY = Workload(
    ops=("MatMul", "Add", "Gather"),
    sampling=Sampling(count=36, largest_bytes=4e6, largest_flops=1e9),
    casts=6,
    largest_cast_elements=1 << 20,
)


def physics_us(signature: Signature) -> float:
    """A GPU that obeys its bytes and FLOPs, with faster products in FP16 where they are aligned."""
    is_low = any(info.dtype == TensorProto.FLOAT16 for info in signature.operands)
    work = work_of(signature)
    aligned = bool(work.gemms) and all(gemm.is_aligned(Multiples.of_all(8)) for gemm in work.gemms)
    rate = 1e6 * (8 if is_low and aligned else 1)
    return 4 + moved_bytes(signature, Ports(), None) / 1e6 + work.flops / rate


class Imagined(NodeTimer):
    """A timer whose times come from :func:`physics_us`."""

    def time(self, signature: Signature) -> Timing:
        timing = Timing(median_us=physics_us(signature), spread_us=0.0, repeats=1)
        self.store.add(self.key(signature), timing)
        return timing


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(TINY, Imagined(machine=GPU, store=Store()), H200, Precision.FP16)


@pytest.fixture(scope="module")
def view() -> GraphView:
    return import_model(DATA / "mlp.onnx").view


def ports(view: GraphView) -> Mapping[str, Ports]:
    return {node.name: ports_of(view.signature(node.name), Precision.FP16) for node in view.nodes}


def test_tensor_cores_have_a_model_of_their_own(calibration: Calibration) -> None:
    groups = {(entry.op, entry.on_tensor_cores) for entry in calibration.entries}
    assert groups == {("MatMul", True), ("MatMul", False), ("Add", False), ("Gather", False)}
    for entry in calibration.entries:
        assert entry.scores.chosen > 0.9, entry.op
        assert entry.scores.fp32 > 0.9, entry.op
        assert entry.scores.chosen >= entry.scores.general - 0.02
    assert calibration.score > 0.95
    assert calibration.cast_score > 0.95
    assert calibration.failures == {}
    assert calibration.target == H200


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    timer = Imagined(machine=GPU, store=Store())
    calibrate(TINY, timer, H200, Precision.FP16, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3 * 36 * 2 + 12 + 1,) * 2
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))


def test_ops_without_a_kernel_are_named_and_the_rest_is_kept() -> None:
    workload = replace(TINY, ops=("Add", "LogSoftmax"))
    fit = calibrate(workload, Imagined(machine=GPU, store=Store()), H200, Precision.BF16)
    assert {entry.op for entry in fit.entries} == {"Add"}
    assert "no bf16 kernel" in fit.failures["LogSoftmax"]
    with pytest.raises(ProfileError, match="no bf16 kernel"):
        calibrate(
            replace(TINY, ops=("LogSoftmax",)), Imagined(machine=GPU, store=Store()), H200, Precision.BF16
        )


def test_events_are_complete_and_follow_the_shapes() -> None:
    (small, large) = sorted(samples_of("Add", replace(TINY.sampling, count=2)), key=lambda s: s.nbytes)
    first, second = (events_of(s, 10.0, H200) for s in (small, large))
    assert tuple(first) == EVENTS
    assert first["moved_bytes"] < second["moved_bytes"]
    assert second["bytes_per_us"] == pytest.approx(second["moved_bytes"] / 10)
    assert events_of(small, 0.0, H200)["bytes_per_us"] == 0.0


def test_file_round_trip(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_text(calibration.to_json())
    assert load_calibration(path) == calibration
    lines = calibration.to_json().splitlines()
    assert sum('"op": "MatMul"' in line for line in lines) == 2  # one model a line: diffs stay readable


def test_a_calibration_without_entries_has_no_score(calibration: Calibration, tmp_path: Path) -> None:
    bare = replace(calibration, entries=())
    assert bare.score is None
    assert bare.mean(lambda scores: scores.fp32) is None
    assert bare.operators == 0
    assert Calibration.from_json(bare.to_json()) == bare


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("entires",), [], "entires: unknown field, did you mean 'entries'"),
        (("entries", 0, "model", "sigma_us"), "1", "entries[0].model.sigma_us: expected `float`, got `str`"),
        (("entries", 1, "on_tensor_core"), True, "entries[1].on_tensor_core: unknown field"),
        (("entries", 1, "scores", "shapes"), 0, "entries[1].scores: scores need at least one"),
        (("execution",), "steam", "execution: invalid enum value 'steam'"),
        (("host_us",), -1, "host_us is -1"),
        (("precision",), "fp17", "precision: unknown precision 'fp17'"),
        (("hardware", "sm_count"), 0, "sm_count is 0"),
    ],
)
def test_a_wrong_field_is_named(
    calibration: Calibration, where: tuple[str | int, ...], value: object, message: str
) -> None:
    document = place = json.loads(calibration.to_json())
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(ProfileError) as refusal:
        Calibration.from_json(json.dumps(document), "c.json")
    assert str(refusal.value).startswith("c.json cannot be read: ")
    assert message in str(refusal.value)


def test_a_file_of_version_1_is_read(calibration: Calibration) -> None:
    document = json.loads(calibration.to_json())
    assert document["format_version"] == 2
    hardware = document.pop("hardware")
    of_runtime = {"launch_us": 5.0, "host_us": 1.0, "captures": False, "tf32_default": True}
    rest = {"kind": "calibrated", "provider": hardware.pop("processor"), "runtime": "onnxruntime"}
    old = document | {"format_version": 1, "device": hardware | of_runtime | rest}
    assert Calibration.from_json(json.dumps(old)) == calibration
    del old["device"]["provider"]
    with pytest.raises(ProfileError, match="cannot be read"):
        Calibration.from_json(json.dumps(old))


def test_bad_files(calibration: Calibration, tmp_path: Path) -> None:
    def written(text: str | bytes) -> Path:
        path = tmp_path / "file.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    with pytest.raises(UsageError, match="does not exist"):
        load_calibration(tmp_path / "none.json")
    for bad in (calibration.to_json()[:-40], "[]", "{}", b"\xff\xfe\x00", '{"kind": "another"}'):
        with pytest.raises(ProfileError):
            load_calibration(written(bad))
    newer = json.loads(calibration.to_json()) | {"format_version": 99}
    with pytest.raises(ProfileError, match="newer"):
        load_calibration(written(json.dumps(newer)))
    lacking = json.loads(calibration.to_json())
    del lacking["machine"]["ort"]
    with pytest.raises(ProfileError):
        load_calibration(written(json.dumps(lacking)))


def test_every_node_is_predicted_also_without_a_profile(calibration: Calibration, view: GraphView) -> None:
    table = CostModel(calibration).predict(view, ports(view))
    assert set(table.nodes) == {node.name for node in view.nodes}
    matmul = next(node for node in view.nodes if node.op.op_type == "MatMul")
    assert table.nodes[matmul.name].source is CostSource.MODEL
    gemm = next(node for node in view.nodes if node.op.op_type == "Gemm")
    assert table.nodes[gemm.name].source is CostSource.GENERAL
    assert table.source is CostSource.MODEL
    assert table.fp32_us > 0


def test_profiled_times_are_taken_as_they_are(calibration: Calibration, view: GraphView) -> None:
    matmul = next(node.name for node in view.nodes if node.op.op_type == "MatMul")
    table = CostModel(calibration).predict(view, ports(view), {matmul: 1234.5})
    assert table.nodes[matmul].fp32_us == 1234.5
    assert table.nodes[matmul].low_us < 1234.5


def test_factors_of_a_step_scale_what_is_predicted(calibration: Calibration, view: GraphView) -> None:
    matmul = next(node.name for node in view.nodes if node.op.op_type == "MatMul")
    in_step = InStep(factors={"products": 0.5, "casts": 2.0}, steps=12, graphs=3, error=0.1, error_alone=0.2)
    alone, corrected = (
        CostModel(replace(calibration, in_step=one)).predict(view, ports(view))
        for one in (InStep(factors={}), in_step)
    )
    assert corrected.nodes[matmul].fp32_us == pytest.approx(alone.nodes[matmul].fp32_us / 2)
    assert corrected.nodes[matmul].low_us == pytest.approx(alone.nodes[matmul].low_us / 2)
    assert corrected.cast.cast_us(1000) == pytest.approx(2 * alone.cast.cast_us(1000))
    assert "corrected by 12 measured steps of 3 graphs" in " ".join(corrected.basis)
    assert not any("corrected" in sentence for sentence in alone.basis)
    profiled = CostModel(replace(calibration, in_step=in_step)).predict(view, ports(view), {matmul: 10.0})
    assert profiled.nodes[matmul].fp32_us == 10.0  # measured in a step already


def test_a_change_of_layout_costs_a_transpose(calibration: Calibration) -> None:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (8, 64, 30, 30)), ("w", (64, 64, 3, 3)), ("y", (8, 50176)))
    ]
    shape = onnx.numpy_helper.from_array(np.asarray([8, -1]), "shape")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], name="conv"),
        helper.make_node("Reshape", ["conv", "shape"], ["y"], name="view"),
    ]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], [shape])
    imported = import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    in_step, layouts = (
        CostModel(one).predict(imported.view, ports(imported.view)).nodes["view"]
        for one in (calibration, replace(calibration, in_step=InStep(factors={})))
    )
    assert in_step.fp32_us == in_step.low_us == calibration.host_us
    assert calibration.host_us < layouts.low_us < layouts.fp32_us


def test_nothing_smaller_than_all_samples_is_predicted_to_gain(calibration: Calibration) -> None:
    """The model of products says half the time, whatever the size."""
    halved = OpModel(features=("time",), weights=(0.5,), sigma_us=0.0)
    entries = tuple(replace(entry, model=halved) for entry in calibration.entries)
    model = CostModel(replace(calibration, general=halved, entries=entries))
    for size, gains in ((4, False), (22, False), (23, True)):
        product = make_signature(
            OpKey("", "MatMul"), inputs=[(FLOAT, (size, size))] * 2, outputs=[(FLOAT, (size, size))], opset=20
        )
        own = {NODE: ports_of(product, Precision.FP16)}
        cost = model.predict(one_node_view(product), own).nodes[NODE]
        assert (cost.low_us < cost.fp32_us) is gains


def test_prediction_agrees_with_the_machine_it_was_fitted_to(calibration: Calibration) -> None:
    model = CostModel(calibration)
    fresh = samples_of("Add", replace(TINY.sampling, seed=7))
    for signature in fresh:
        own = {NODE: ports_of(signature, Precision.FP16)}
        cost = model.predict(one_node_view(signature), own).nodes[NODE]
        low = lowered(signature, own[NODE], Precision.FP16)
        assert low is not None
        assert cost.fp32_us == pytest.approx(physics_us(signature), rel=0.15)
        assert cost.low_us == pytest.approx(physics_us(low), rel=0.15)


def test_nodes_of_a_step_count_beside_those_that_are_drawn(view: GraphView) -> None:
    """Also of operators that are not drawn; what a store lacks of them is not missed."""
    nodes = tuple(step_samples(view, Precision.FP16))
    workload = replace(TINY, ops=("MatMul",), of_steps=nodes)

    def counts_of(workload: Workload, timer: NodeTimer) -> tuple[Counter[str], Mapping[str, str]]:
        calibration, counted = calibrate(workload, timer, H200, Precision.FP16), Counter()
        for entry in calibration.entries:
            counted[entry.op] += entry.fitted + entry.scores.shapes
        return counted, calibration.failures

    store, own = Store(), Counter(signature.op.label for signature in nodes)
    drawn, _ = counts_of(replace(workload, of_steps=()), Imagined(machine=GPU, store=store))
    both, _ = counts_of(workload, Imagined(machine=GPU, store=Store()))
    assert own["Gemm"] > 0
    assert both["MatMul"] == drawn["MatMul"] + own["MatMul"]
    assert counts_of(workload, NodeTimer(machine=GPU, store=store, only_stored=True)) == (drawn, {})


def test_a_calibration_is_as_old_as_its_last_timing(tmp_path: Path) -> None:
    """Fitted again from a store it bears the moment of its measurements."""
    with Store(tmp_path / "timings.sqlite") as store:
        calibrate(TINY, Imagined(machine=GPU, store=store), H200, Precision.FP16)
    with sqlite3.connect(tmp_path / "timings.sqlite") as connection:
        connection.execute("UPDATE timings SET measured_at = '2001-01-01T00:00:00+00:00'")
        connection.execute(
            "UPDATE timings SET measured_at = '2001-01-02T00:00:00+00:00' WHERE signature ="
            " (SELECT min(signature) FROM timings)"
        )
    with Store(tmp_path / "timings.sqlite") as store:
        timer = NodeTimer(machine=GPU, store=store, only_stored=True)
        again = calibrate(TINY, timer, H200, Precision.FP16)
    assert again.measured_at == "2001-01-02T00:00:00+00:00"


def test_shapes_that_scores_were_taken_of_are_learned_from(calibration: Calibration) -> None:
    (entry,) = (entry for entry in calibration.entries if entry.op == "Add")
    samples = []
    for node in samples_of("Add", TINY.sampling):
        low = lowered(node, ports_of(node, Precision.FP16), Precision.FP16)
        fp32_us = physics_us(node)
        events = events_of(node, fp32_us, H200)
        samples.append(Sample(fp32_us=fp32_us, low_us=physics_us(low), events=events))
    fitted, held_out = split(samples)
    assert entry.model == fit_by(entry.method, [*fitted, *held_out])
    assert entry.model != fit_by(entry.method, fitted)


def test_a_time_without_its_pair_counts_for_fp32_times() -> None:
    """The trace of a plan holds a node that stayed in FP32 once: its time is learned, and no ratio."""
    store, workload = Store(), replace(TINY, ops=("Add",))
    timer = Imagined(machine=GPU, store=store)
    calibrate(workload, timer, H200, Precision.FP16)
    (lonely,) = samples_of("Add", Sampling(count=1, largest_bytes=4e6, largest_flops=1e9, seed=77))
    only_stored = NodeTimer(machine=GPU, store=store, only_stored=True)

    def fitted() -> Calibration:
        return calibrate(replace(workload, of_steps=(lonely,)), only_stored, H200, Precision.FP16)

    before = fitted()
    store.add(timer.key(lonely), Timing(median_us=1e4, spread_us=0.0, repeats=3))
    (entry,), (earlier,) = fitted().entries, before.entries
    assert entry.model == earlier.model
    assert entry.time != earlier.time
    store.add(timer.key(lonely), Timing(median_us=0.0, spread_us=0.0, repeats=3))
    assert fitted().entries == before.entries  # a clock of whole microseconds told nothing


@pytest.mark.parametrize(
    ("op", "shape", "result", "attributes", "rows"),
    [
        ("ReduceSum", (4, 6, 5), (4, 6, 1), {}, 24),
        ("LayerNormalization", (4, 6, 5), (4, 6, 5), {"axis": 1}, 4),
        ("Softmax", (4, 6, 5), (4, 6, 5), {"axis": -1}, 24),
        ("Softmax", (4, 6, 5), (4, 6, 5), {"axis": 1}, 20),
        ("BatchNormalization", (4, 6, 5, 5), (4, 6, 5, 5), {}, 24),
        ("GlobalAveragePool", (4, 6, 5, 5), (4, 6, 1, 1), {}, 24),
        ("Relu", (4, 6, 5), (4, 6, 5), {}, 0),
    ],
)
def test_rows_are_those_that_are_reduced_or_normalized(op, shape, result, attributes, rows) -> None:
    node = make_signature(
        OpKey("", op), inputs=[(FLOAT, shape)], outputs=[(FLOAT, result)], attributes=attributes
    )
    assert events_of(node, 1.0, H200)["rows"] == rows


def test_channels_are_those_that_a_convolution_adds_up_over() -> None:
    def channels(data: tuple[int, ...], weights: tuple[int, ...], group: int) -> float:
        shapes = {
            "inputs": [(FLOAT, data), (FLOAT, weights)],
            "outputs": [(FLOAT, (data[0], weights[0], 3, 3))],
        }
        return events_of(make_signature(OpKey("", "Conv"), **shapes, attributes={"group": group}), 1.0, H200)[
            "channels"
        ]

    assert channels((2, 8, 5, 5), (16, 8, 3, 3), 1) == 8
    assert channels((2, 8, 5, 5), (16, 1, 3, 3), 8) == 1
    product = make_signature(OpKey("", "MatMul"), inputs=[(FLOAT, (4, 4))] * 2, outputs=[(FLOAT, (4, 4))])
    assert events_of(product, 1.0, H200)["channels"] == 0
