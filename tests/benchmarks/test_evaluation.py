"""The pieces of the evaluation: predictions, converted graphs, measured steps, single nodes, the page."""

import doctest
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import campo_eval, figures
from benchmarks.evaluation import collect, converted, node_times, peers, predicted, stepped
from benchmarks.evaluation import strategies as labels
from benchmarks.measured.sides import SIDES
from benchmarks.pages import render
from benchmarks.steps import Deadline, Records, StepError
from benchmarks.zoo import TITLES
from campo_onnx import Plan, optimize_model, target
from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.runtime.registry import machine

ROOT = Path(__file__).parents[2]
STEP = ROOT / "benchmarks" / "data" / "mlp_step.onnx"
DATA = ROOT / "tests" / "data"
V100 = target("v100")
NEVER = Deadline.after(3600)


def mixed(tmp_path: Path) -> tuple[Plan, Path]:
    """A training step as TF_AMP has it, written to a file."""
    result = optimize_model(STEP, replace(labels.options_for(V100), strategy="tf-amp"))
    assert result.plan.low_nodes
    path = tmp_path / "mixed.onnx"
    onnx.save(result.model, path)
    return result.plan, path


class TestPeers:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("Traceback:\n  File x\nKeyError: 'y'\nsee the log\n", "KeyError: 'y'"),
            ("note\nERROR: no matching distribution\nhint\n", "ERROR: no matching distribution"),
            ("onnx.checker.ValidationError: bad\n", "onnx.checker.ValidationError: bad"),
            ("", "it ended without a word"),
        ],
    )
    def test_the_line_that_says_what_went_wrong(self, text: str, line: str) -> None:
        assert peers.first_line(text) == line

    def test_a_peer_that_is_not_there_is_a_result(self, tmp_path: Path) -> None:
        with pytest.raises(StepError, match="No such file"):
            peers.convert(peers.PEERS["ort-float16"], STEP, tmp_path / "out.onnx", tmp_path)

    def test_a_peer_that_runs_the_graph_is_not_given_one_beyond_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "memory_bytes", lambda: 1000)
        with pytest.raises(StepError, match="not tried"):
            peers.convert(peers.PEERS["autocast"], STEP, tmp_path / "out.onnx", tmp_path)

    def test_versions_are_pinned(self) -> None:
        assert all("==" in name for peer in peers.PEERS.values() for name in peer.requirements)

    def test_every_peer_is_called_by_a_valid_program(self) -> None:
        for peer in peers.PEERS.values():
            compile(peer.program, peer.name, "exec")


class TestConverted:
    def test_a_graph_of_ours_is_a_valid_step(self, tmp_path: Path) -> None:
        plan, path = mixed(tmp_path)
        facts = converted.examine(STEP, path, ["v100"])
        assert (facts["invalid"], facts["refused"], facts["unreadable"]) == ("", "", "")
        assert facts["interface_kept"]
        assert (facts["low_loss_nodes"], facts["low_update_nodes"]) == (0, 0)
        assert facts["loss_nodes"]
        assert facts["update_nodes"]
        assert facts["low_nodes"] == len(plan.low_nodes)
        assert facts["casts"] == len(plan.casts)
        assert facts["predicted_us"]["v100"] == pytest.approx(plan.predicted_us)
        assert facts["fp32_us"]["v100"] == pytest.approx(plan.fp32_us)

    def test_an_update_in_fp16_is_found(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        update = next(n for n in model.graph.node if n.op_type == "Sub" and "update" in n.name)
        lower(model, update)
        path = tmp_path / "low.onnx"
        onnx.save(model, path)
        facts = converted.examine(STEP, path, [])
        assert (facts["low_update_nodes"], facts["low_nodes"], facts["casts"]) == (1, 1, 3)

    def test_an_unsorted_graph_is_invalid_and_a_changed_interface_is_seen(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        nodes = [*model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(reversed(nodes))
        model.graph.input[0].name = "renamed"
        for node in model.graph.node:
            node.input[:] = ["renamed" if name == "param.fc1.weight" else name for name in node.input]
        path = tmp_path / "unsorted.onnx"
        onnx.save(model, path)
        facts = converted.examine(STEP, path, [])
        assert "topologically sorted" in facts["invalid"]
        assert not facts["interface_kept"]

    def test_types_that_contradict_each_other_are_examined_all_the_same(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        product = next(node for node in model.graph.node if node.op_type in ("MatMul", "Gemm"))
        cast = onnx.helper.make_node(
            "Cast", [product.input[0]], ["half"], "half", to=onnx.TensorProto.FLOAT16
        )
        product.input[0] = "half"
        model.graph.node.insert(0, cast)
        path = tmp_path / "contradiction.onnx"
        onnx.save(model, path)
        facts = converted.examine(STEP, path, ["v100"])
        assert facts["invalid"]
        assert facts["refused"]
        assert facts["unreadable"]
        assert facts["predicted_us"] == {}
        assert facts["low_nodes"]


def lower(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Put one node with two inputs into FP16, with a Cast at each of its tensors."""
    at = [other.name for other in model.graph.node].index(node.name)
    half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    casts = [onnx.helper.make_node("Cast", [t], [f"{t}_low"], f"low {t}", to=half) for t in node.input]
    result = onnx.helper.make_node("Cast", ["low result"], [node.output[0]], "back", to=full)
    node.input[:] = [f"{t}_low" for t in node.input]
    node.output[0] = "low result"
    model.graph.node.insert(at + 1, result)
    for cast in casts:
        model.graph.node.insert(at, cast)


class TestPredicted:
    def test_what_a_strategy_misses_is_counted_against_optimal(self) -> None:
        rows = predicted.predict(DATA / "bert2_mlm_sdpa.onnx", "v100", ["fp32", "optimal"])
        assert list(rows) == ["fp32", "optimal"]
        assert rows["optimal"]["low_nodes"]
        assert not rows["optimal"]["missed_us"]
        assert set(rows["fp32"]["missed_us"]) <= {reason.value for reason in Reason}
        missed_us = sum(rows["fp32"]["missed_us"].values())
        assert missed_us > rows["fp32"]["step_us"] - rows["optimal"]["step_us"]

    def test_rows(self) -> None:
        rows = predicted.with_ratios(rows_of_step())
        assert list(rows) == list(labels.STRATEGIES)
        assert rows["fp32"]["speedup"] == 1.0
        assert rows["fp32"]["casts"] == 0
        others = [row for name, row in rows.items() if name != "fp32"]
        assert all(row["step_us"] >= rows["optimal"]["step_us"] - 1e-6 for row in others)
        without = [row for name, row in rows.items() if name not in labels.PADDING]
        assert all(row["unpadded_us"] == row["step_us"] for row in without)

    def test_ratios_are_the_papers(self) -> None:
        base = {
            "fp32_us": 300.0,
            "step_us": 100.0,
            "unpadded_us": 100.0,
            "casts": 10,
            "tensor_core_share": 0.2,
        }
        row = base | {"step_us": 75.0, "unpadded_us": 80.0, "casts": 8, "tensor_core_share": 0.3}
        ratios = predicted.with_ratios({"tf-amp tf115": base, "campo": row})["campo"]
        assert ratios["speedup"] == 4.0
        assert ratios["over_tf_amp"] == pytest.approx(1 / 3)
        assert (ratios["rewriting"], ratios["padding"]) == (0.2, 0.05)
        assert ratios["share_of_rewriting"] == pytest.approx(0.8)
        assert ratios["fewer_casts"] == pytest.approx(0.2)
        assert ratios["more_tensor_cores"] == pytest.approx(0.5)

    def test_the_papers_batch_sizes_go_with_its_devices(self) -> None:
        variant_for = campo_eval.variant_for
        assert variant_for("rtx2080ti") != variant_for("v100") == variant_for("h200") == campo_eval.FULL


class TestStepped:
    @pytest.mark.parametrize(
        ("size", "groups"),
        [
            (0, (("fp32", "tf-amp tf115", "a", "b", "c"),)),
            (4, (("fp32", "tf-amp tf115", "a", "b"), ("fp32", "tf-amp tf115", "c"))),
        ],
    )
    def test_every_group_has_what_speedups_refer_to(self, size: int, groups: object) -> None:
        assert stepped.groups(["fp32", "tf-amp tf115", "a", "b", "c"], size) == groups

    def test_equal_plans_share_a_graph(self) -> None:
        candidates = stepped.candidates(STEP, V100, ["tf-amp tf115", "tf-amp tf2"])
        assert [candidate.labels for candidate in candidates] == [("fp32",), ("tf-amp tf115", "tf-amp tf2")]
        assert candidates[0].casts == 0
        assert candidates[1].casts

    def test_throughput_over_tf_amp_is_paired_by_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        samples_us = {
            "fp32": tuple(400.0 * load for load in range(1, 11)),
            "tf-amp tf115": tuple(200.0 * load for load in range(1, 11)),
            "campo": tuple(100.0 * load for load in range(1, 11)),
        }
        rows = tuple(
            BenchRow(
                name=name, step_us=Interval(median=1, low=1, high=1), speedup=None, verdict=Outcome.FASTER
            )
            for name in samples_us
        )
        result = BenchResult(
            machine=machine("cpu"),
            rows=rows,
            steps=10,
            measured_at="2026-01-01",
            samples_us=samples_us,
            tolerance=0.01,
        )
        monkeypatch.setattr(stepped, "bench", lambda *args, **kwargs: result)
        imported = import_model(STEP)
        members = [
            stepped.Candidate(labels=names, imported=imported, casts=7, predicted_us=5.0)
            for names in (("fp32",), ("tf-amp tf115", "tf-amp tf2"), ("campo",))
        ]
        effort = stepped.Effort(steps=10, budget_s=1.0)
        measurement = stepped.measure(members, machine("cpu"), effort, 8, NEVER)
        assert measurement["rows"]["campo"]["over_tf_amp"] == {"median": 2.0, "low": 2.0, "high": 2.0}
        assert measurement["rows"]["tf-amp tf2"] == measurement["rows"]["tf-amp tf115"]
        assert measurement["rows"]["fp32"]["casts"] == 7
        assert measurement["rows"]["campo"]["predicted_us"] == 5.0


def node_time(op: str = "MatMul", **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"count": 1, "fp32_us": 10.0, "low_us": 5.0}
    usual |= {"predicted_fp32_us": 10.0, "predicted_low_us": 5.0}
    return {"op": op} | usual | changes


class TestNodeTimes:
    def test_m_a_by_operator(self) -> None:
        times = [node_time(predicted_fp32_us=9.0), node_time(predicted_fp32_us=12.0), node_time("Conv")]
        by_op = {score["op"]: score for score in node_times.scores(times)}
        assert by_op["MatMul"]["fp32"] == pytest.approx(1 - (0.1 + 0.2) / 2)
        assert by_op["MatMul"]["low"] == 1.0
        assert by_op["Conv"]["nodes"] == 1

    def test_mispredictions_count_nodes(self) -> None:
        wrong = node_time(count=3, low_us=11.0)
        missed = node_time(count=2, predicted_low_us=20.0)
        counts = node_times.mispredictions([node_time(), wrong, missed, node_time("Cast", low_us=None)])
        assert [*counts.values()] == [4, 1, 2, 0]


@cache
def rows_of_step() -> dict[str, Any]:
    return predicted.predict(STEP, "v100", list(labels.STRATEGIES))


def records(folder: Path) -> Records:
    """Records of a call that could not convert or time everything."""
    entries, rows = Records(folder=folder), rows_of_step()
    facts = {"seconds": 1.0, "finished_at": "2026-01-02", "load_average": [0.5, 0.0, 0.0]}
    interval = {"median": 2000.0, "low": 1000.0, "high": 3000.0}
    speedup = {"median": 1.5, "low": 1.4, "high": 1.6}
    usual = {"samples_per_s": 4.0, "energy_j": None, "tensor_pipe_share": None, "verdict": "faster"}
    shared = {"name": "campo", "step_us": interval, "speedup": speedup, "over_tf_amp": speedup, "casts": 3}
    failed = {"name": "ort-float16", "step_us": None, "speedup": None, "over_tf_amp": None, "casts": None}
    measured = {
        "machine": {"device": "A GPU", "driver": "580", "cuda": "13.0", "ort": "1.31", "tf32": True},
        "measured_at": "2026-01-02",
        "energy_from": "nothing counts it",
        "memory_from": "",
        "batch": 8,
        "rows": {
            "campo": shared | usual | {"failure": ""},
            "optimal": shared | usual | {"failure": ""},
            "ort-float16": failed | usual | {"failure": "it | broke"},
        },
    }
    asked = {"model": "vgg16", "variant": "small", "planned_for": "h200", "threads": 1}
    for name, result in {
        "graph-vgg16-full": {"batch": 256, "nodes": 90},
        "predicted-v100-vgg16": rows,
        "measured-cuda-vgg16-0": measured,
        "nodes-cuda-vgg16": [node_time()],
    }.items():
        entries.keep(name, {"asked": asked, "result": result, **facts})
    entries.keep("install-autocast", {"asked": {}, "failure": "no network", **facts})
    entries.keep("peer-ort-float16-vgg16-small", {"asked": {}, "failure": "KeyError: 'x'", **facts})
    return entries


class TestPage:
    def test_nothing_on_record_is_not_measured(self, tmp_path: Path) -> None:
        page = render("campo_eval", collect.collect(Records(folder=tmp_path)))
        assert page.count("ot measured") >= 4
        # The small networks that were measured in BF16 stand in front.
        rows = [line for line in page.splitlines() if line.startswith("| VGG")]
        assert all(row.startswith("| VGG-16, small ") for row in rows)

    def test_predictions_and_measurements_are_apart(self, tmp_path: Path) -> None:
        page = render("campo_eval", collect.collect(records(tmp_path)))
        before, after = page.split("## Measured: GPU (CUDA provider)")
        gpu, cpu = after.split("## Measured: CPU")
        assert "NVIDIA Tesla V100" in before
        assert "A GPU" not in before
        for fact in ("A GPU", "driver 580", "CUDA 13.0", "ONNX Runtime 1.31", "2026-01-02", "TF32 on"):
            assert fact in gpu
        assert "| VGG-16 | campo, optimal | 2.00 ms (1.00 to 3.00) | 4.0 | 1.50 (1.40 to 1.60) |" in gpu
        assert "it / broke" in gpu
        assert "not measured" in cpu
        assert "| ModelOpt AutoCast 0.47.0 | VGG-16 | no result |" in cpu
        assert "KeyError: 'x'" in cpu

    def test_what_the_first_traverse_refused_is_apart(self, tmp_path: Path) -> None:
        entries = records(tmp_path)
        facts = entries.find("predicted-v100-vgg16")
        assert facts is not None
        facts["result"]["campo"]["missed_us"] = {Reason.TRAVERSE_1_FP32.value: 3000.0, "unlisted": 500.0}
        entries.keep("predicted-v100-vgg16", facts)
        assert "| VGG-16 | 3.0 | 0.5 |" in render("campo_eval", collect.collect(entries))

    def test_measurements_with_other_options_are_not_mixed(self, tmp_path: Path) -> None:
        entries = records(tmp_path)
        older = entries.find("measured-cuda-vgg16-0")
        assert older is not None
        older["asked"] = older["asked"] | {"model": "alexnet", "planned_for": "v100"}
        entries.keep("measured-cuda-alexnet-0", older | {"finished_at": "2025-01-01"})
        assert [*collect.collect(entries)["measured"]["cuda"]["rows"]] == ["vgg16"]

    def test_pictures_are_the_same_bytes_every_time(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        assert len(collect.draw(collect.collect(records(tmp_path)), tmp_path)) == 5
        for draw, how in ((figures.dots, {"logarithmic": True}), (figures.stacked, {})):
            for name in ("a", "b"):
                values = {"VGG-16": {"campo": 1.5, "optimal": 2.0}, "AlexNet": {"campo": 1.0, "optimal": 3.0}}
                draw(values, ["campo", "optimal"], tmp_path / name, title="t", axis="x", **how)
            assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_no_two_series_look_alike(self) -> None:
        names = [side.title for side in SIDES.values()]
        drawn = [name for name in names if name not in ("OpenVINO, FP32", "fine-grained")]
        for series in (drawn, drawn[::-1], ["optimal", "campo"]):
            styles = figures.styles_of(series)
            assert [*styles] == series
            assert len({colour for colour, _ in styles.values()}) == len(series)
            assert len({shape for _, shape in styles.values()}) == len(series)
            assert styles["optimal"] == ("#D55E00", "*")

    def test_more_series_than_styles_are_an_error(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        row = {f"series {number}": 1.0 for number in range(10)}
        with pytest.raises(UsageError, match="10 series cannot be told apart"):
            figures.dots({"VGG-16": row}, [*row], tmp_path / "a.svg", title="t", axis="x")
        with pytest.raises(UsageError, match="10 series cannot be told apart"):
            figures.curves({"MLP": {name: [1.0] for name in row}}, tmp_path / "a.svg", axis="x", steps="y")
        assert not [*tmp_path.iterdir()]

    def test_curves_are_drawn(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        figures.curves({"MLP": {"FP32": [1.0, 0.1]}}, tmp_path / "a.svg", axis="loss", steps="epoch")
        assert "FP32" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_steps_follow_the_command_line(tmp_path: Path) -> None:
    options = campo_eval.command_line().parse_args(["--device", "cpu", "--work", str(tmp_path)])
    asked = campo_eval.evaluation_of(options)
    listed = [*campo_eval.steps_of(asked, Records(folder=tmp_path))]
    steps = {step.name: step for step in listed}
    assert len(steps) == len(listed)
    assert {f"measured-cpu-{model}-0" for model in TITLES} <= set(steps)
    assert "predicted-rtx2080ti-vgg16" in steps
    assert "predicted-rtx2080ti-bert_large" not in steps  # the paper did not run it there
    for step in steps.values():
        assert set(step.needs) <= set(steps)
        assert step.seconds > 0


def test_examples() -> None:
    assert doctest.testmod(stepped).failed == 0


def test_what_was_measured_before_stays_with_its_version(tmp_path: Path) -> None:
    before = {"versions": {"campo-onnx": "0.1"}, "date": "2026-01-01"}
    page = tmp_path / "campo_eval.json"
    data = {"made": {"versions": {"campo-onnx": "0.2"}}, "measured": {"cpu": {"of": "new"}}, "peers": []}
    assert campo_eval.with_published(data, page) == data
    published = {
        "made": before,
        "measured": {"cpu": {}, "cuda": {"rows": 1}},
        "peers": [2],
        "peer_errors": [3],
    }
    page.write_text(json.dumps(published), encoding="utf-8")
    result = campo_eval.with_published(data, page)
    assert result["measured"] == {"cpu": {"of": "new"}, "cuda": {"of": {"campo-onnx": "0.1"}, "rows": 1}}
    assert (result["peers"], result["peer_errors"], result["peers_of"]) == ([2], [3], before)
    assert campo_eval.with_published(data | {"peers": [4]}, page)["peers"] == [4]
