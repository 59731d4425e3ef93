"""Measured steps: who takes turns, what is kept, what the page says. Nothing here is a measurement."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy import stats

from benchmarks.measured import __main__ as command
from benchmarks.measured import calibration, learning, ops, page, plans, sides, summary, trained, turns
from benchmarks.measured.sides import DRAWN
from benchmarks.pages import made, render
from benchmarks.steps import StepError
from campo_onnx.calibrate.in_step import Part
from campo_onnx.calibrate.run import Workload
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.precision import Precision
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task
from campo_onnx.targets.target import target

MLP = Path(__file__).parents[1] / "data" / "mlp.onnx"
EFFORT = turns.Effort(turn_s=0.01, budget_s=60.0, rounds=7, ready_s=60.0)
STEP_MS = {"torch": 4.0, "fp32": 3.0, "all-low": 2.5, "tf-amp": 2.0, "campo": 1.5, "optimal": 1.0}


class Stub:
    """A side that answers at once."""

    asked: list[str] = []  # noqa: RUF012
    loss = 1.0

    def __init__(self, side: str, network: str, graphs: Path, module: str) -> None:
        self.side, self.facts = side, {"loss": self.loss}

    def wait_until_ready(self, limit_s: float) -> None:
        if self.side == "compile":
            raise RuntimeError("there is no compiler")

    def times_ms(self, steps: int) -> list[float]:
        self.asked.append(self.side)
        return [STEP_MS[self.side]] * steps

    def end(self) -> None:
        self.asked.append(f"{self.side} ended")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    pytest.importorskip("openvino")
    monkeypatch.setattr(Stub, "asked", [])
    monkeypatch.setattr(turns, "Worker", Stub)
    return Stub


def plan_facts(predicted_us: float) -> dict[str, Any]:
    facts = {"low": 3, "nodes": 9, "casts": 2, "flops_share": 0.5, "fp32_us": 3000.0, "costs": "model"}
    return facts | {"predicted_us": predicted_us}


PLANS = {name: plan_facts(1000.0 * STEP_MS.get(name, 2.0)) for name in ("fp32", *plans.PLANS)}


class TestTurns:
    def test_every_side_takes_as_many_turns_in_rotating_order(self, stub: type[Stub]) -> None:
        found = turns.in_turns("mlp", Path(), ("torch", "fp32", "optimal"), EFFORT)
        assert {side: len(times) for side, times in found["rounds_ms"].items()} == dict.fromkeys(
            ("torch", "fp32", "optimal"), EFFORT.rounds
        )
        asked = stub.asked[3:]  # behind the turns that say how long a step is
        assert asked[:6] == ["torch", "fp32", "optimal", "fp32", "optimal", "torch"]
        assert stub.asked[-3:] == ["optimal ended", "fp32 ended", "torch ended"]

    def test_a_side_that_fails_is_told_and_the_others_are_measured(self, stub: type[Stub]) -> None:
        found = turns.in_turns("mlp", Path(), ("torch", "compile"), EFFORT)
        assert found["failures"] == {"compile": "there is no compiler"}
        assert set(found["rounds_ms"]) == {"torch"}
        assert "compile ended" in stub.asked

    def test_where_and_with_what_it_ran_is_in_every_result(self, stub: type[Stub]) -> None:
        found = turns.in_turns("mlp", Path(), ("fp32",), EFFORT)
        assert found["others_running"] is None or found["others_running"] >= 0
        assert set(found["machine"]) == {"cpu", "cores", "units", "governor"}
        assert found["made"]["versions"]["openvino"]
        assert found["load"] >= 0
        assert found["load_after"] >= 0

    def test_another_loss_in_fp32_is_refused(self) -> None:
        turns.refuse_other_losses({"torch": 1.0, "fp32": 1.0005, "torch-bf16": 1.01})
        with pytest.raises(StepError, match=r"the loss of fp32 is 1\.01, and torch's 1"):
            turns.refuse_other_losses({"torch": 1.0, "fp32": 1.01})

    @pytest.mark.parametrize("errors", [{"fp32": 0.1}, {"optimal": 3.4}, {"campo": float("nan")}])
    def test_plans_whose_gradients_are_others_are_refused(self, errors: dict[str, float]) -> None:
        turns.refuse_other_gradients({"fp32": 1e-5, "optimal": 0.3})
        with pytest.raises(StepError, match="a gradient of"):
            turns.refuse_other_gradients(errors)

    def test_the_farthest_gradient_is_the_one_that_counts(self) -> None:
        """A zero but for rounding does not."""
        expected = {"a": np.array([3.0, 4.0]), "b": np.array([1.0]), "zero": np.array([1e-7])}
        got = {"a": np.array([3.0, 4.5]), "b": np.array([0.5]), "zero": np.array([1.0])}
        assert sides.farthest_gradient(got, expected) == pytest.approx(0.5)


def worker(monkeypatch: pytest.MonkeyPatch, script: str) -> sides.Worker:
    real = subprocess.Popen

    def popen(command: list[str], **how: Any) -> Any:
        return real([sys.executable, "-c", script], **how)

    monkeypatch.setattr(sides.subprocess, "Popen", popen)
    return sides.Worker("fp32", "mlp", Path())


class TestWorker:
    @pytest.mark.parametrize(
        ("script", "limit_s", "why"),
        [
            ("import time; time.sleep(60)", 0.2, "not ready in time"),
            ("import sys; sys.exit(3)", 60.0, "its process ended with 3"),
            ('print(\'{"failure": "no kernel"}\')', 60.0, "no kernel"),
        ],
    )
    def test_one_that_is_not_ready_says_why_and_ends(
        self, monkeypatch: pytest.MonkeyPatch, script: str, limit_s: float, why: str
    ) -> None:
        one = worker(monkeypatch, script)
        with pytest.raises(RuntimeError, match=why):
            one.wait_until_ready(limit_s)
        one.end()
        one.end()

    def test_the_first_step_of_a_turn_does_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = """print('{"loss": 1}', flush=True); input(); print('{"times_ms": [9, 2, 3]}')"""
        one = worker(monkeypatch, lines)
        one.wait_until_ready(60.0)
        assert one.facts == {"loss": 1}
        assert one.times_ms(2) == [2, 3]
        one.end()


def count(path: Path) -> int:
    path.write_text(f"{int(path.read_text()) + 1}")
    return 1


class TestResuming:
    def parts(self, folder: Path, names: str) -> list[command.Part]:
        for name in names:
            (folder / name).touch()
            (folder / name).write_text("0")
        return [
            command.Part(Task(key=f"ops {n}, k", function=count, arguments=(folder / n,)), 1.0, ())
            for n in names
        ]

    def test_what_is_done_is_not_done_again(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path, "abc")
        for limit_s, is_done in ((0.0, False), (60.0, True), (60.0, True)):
            with Results(tmp_path / "results.jsonl") as results:
                end_s = time.monotonic() + limit_s
                assert command.measure(parts, results, tmp_path, "k", "auto", end_s) is is_done
                assert len(results) == 3 * is_done
        assert [(tmp_path / name).read_text() for name in "abc"] == ["1", "1", "1"]

    def test_nothing_begins_for_which_too_little_time_is_left(self) -> None:
        tasks = [
            Task(key="long", function=max, arguments=(1, 2)),
            Task(key="short", function=max, arguments=(1, 2)),
        ]
        pool = command.InTime(time.monotonic() + 60.0, {"long": 600.0, "short": 1.0})
        assert [outcome.failure or outcome.value for _, outcome in pool.outcomes(tasks)] == [
            "the time was up",
            2,
        ]

    def test_a_part_waits_for_graphs_of_the_same_key(self, tmp_path: Path) -> None:
        folder = plans.folder_of("random/7", tmp_path)
        folder.mkdir()
        assert plans.plans_of("random/7", tmp_path, "k") is None
        (folder / "plans.json").write_text(json.dumps({"key": "k", "plans": PLANS}))
        assert plans.plans_of("random/7", tmp_path, "k") == PLANS
        assert plans.plans_of("random/7", tmp_path, "of other versions") is None

    @pytest.mark.parametrize("is_quick", [True, False])
    def test_keys_tell_all_parts_apart(self, is_quick: bool) -> None:
        parts = command.parts_of(is_quick=is_quick, population=4, graphs=Path(), key="k")
        assert len({part.task.key for part in parts}) == len(parts)
        assert sum(part.task.key.startswith("drawn random/") for part in parts) == 4
        if is_quick:
            assert sum(part.seconds for part in parts if part.task.key.startswith("network")) < 400


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
        given = [n for n in onnx.load(MLP).graph.node if n.op_type == "Cast"]
        assert len(written) - len(given) == one["casts"]
    view = import_model(MLP).view
    ports = {node.name: ports_of(view.signature(node.name), Precision.BF16) for node in view.nodes}
    for name, one in facts.items():
        low, casts = learning.changes_in(tmp_path / f"{name}.onnx", ports, Precision.BF16)
        assert (len(low), len(casts)) == (one["low"], one["casts"])


def test_measured_plans_teach_what_single_nodes_do_not_show() -> None:
    """Products run in a step as alone, element-wise nodes in a tenth of the time."""
    random = np.random.default_rng(0)
    found = []
    for network in ("mlp", "bert", "random/0", "random/1"):
        products_us, elementwise_us = 1000.0 * random.uniform(1, 4), 1000.0 * random.uniform(1, 4)
        for plan, factor in (("fp32", 1.0), ("all-low", 0.5), ("optimal", 0.6)):
            parts_us = {
                Part.PRODUCTS: products_us * factor,
                Part.ELEMENTWISE: elementwise_us * (1.5 - factor),
            }
            measured_ms = (parts_us[Part.PRODUCTS] + 0.1 * parts_us[Part.ELEMENTWISE]) / 1e3
            found.append(
                learning.Measured(
                    network=network,
                    plan=plan,
                    parts_us=dict.fromkeys(learning.MODELS, parts_us),
                    rounds_ms=[measured_ms * jitter for jitter in np.linspace(0.999, 1.001, 8)],
                )
            )
    facts = learning.learned(found)
    assert facts is not None
    assert (facts["plans"], facts["networks"]) == (12, 4)
    assert facts["factors"]["element-wise"] < 0.5 < 0.9 < facts["factors"]["products"]
    learned, alone = (facts["models"][name] for name in (learning.LEARNED, learning.PER_OPERATOR))
    assert learned["error"] < 0.5 * alone["error"]
    assert (learned["pairs"], learned["wrong"], learned["loss"]) == (12, 0, 0.0)
    assert facts["itself"] == pytest.approx(1.0)
    assert json.loads(json.dumps(facts)) == facts
    assert [row["title"] for row in facts["rows"]][2:] == ["random/0", "random/1"]
    assert learning.learned(found[:6]) is None


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
    found = ops.measured_ops(("mlp", "a network that was not prepared"), tmp_path, threads=1)
    assert not found["failures"]
    assert {row["op"] for row in found["rows"]} <= set(ops.OPS)
    assert any(row["op"] in ("MatMul", "Gemm") for row in found["rows"])
    for row in found["rows"]:
        assert set(row["us"]) == {"fp32", "low", "low_casts"}
        assert row["casts_pay"]["low"] <= row["casts_pay"]["median"] <= row["casts_pay"]["high"]
    assert [row["size"] for row in found["widths"]] == [*ops.WIDTHS, *ops.CHANNELS]


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


class TestSummary:
    def row(self, name: str, slower: float = 1.0) -> dict[str, Any]:
        times = {
            side: [ms * slower * factor for factor in np.linspace(0.99, 1.01, 7)]
            for side, ms in STEP_MS.items()
        }
        timed = {
            "rounds_ms": times,
            "losses": {"torch": 1.0},
            "gradient_errors": {"fp32": 1e-6, "optimal": 0.02},
            "failures": {"compile": "there is no compiler"},
            "load": 0.1,
            "load_after": 2.0,
            "others_running": 0.0,
            "measured_at": "2026-11-23T13:00:00+00:00",
            "made": made()
            | {"versions": dict.fromkeys(("campo-onnx", "openvino", "onnxruntime", "torch"), "1.0")},
            "machine": {"cpu": "A CPU", "cores": 2, "units": ["BF16"], "governor": "not told"},
        }
        return timed | {"name": name}

    def rows(self) -> list[dict[str, Any]]:
        return [
            summary.network_row("mlp", self.row("mlp"), PLANS),
            summary.network_row("random/0", self.row("random/0", 1.25), PLANS),
        ]

    def test_ratios_of_the_same_round(self) -> None:
        (row, _) = self.rows()
        assert row["over_fp32"]["optimal"]["median"] == pytest.approx(3.0)
        assert row["optimal_over"]["torch"]["median"] == pytest.approx(4.0)
        assert row["over_fp32"]["torch"]["high"] == pytest.approx(0.75)

    def test_predicted_beside_measured(self) -> None:
        """Of one network every step is predicted right, of the other a fifth too short."""
        found = summary.prediction(self.rows())
        assert found is not None
        assert (found["plans"], found["networks"]) == (10, 2)
        assert found["error"] == pytest.approx(0.1)
        assert found["ratio_error"] == pytest.approx(0.0)
        assert found["within"] == pytest.approx(1.0)
        assert 0.8 < found["spearman"] < 1.0
        assert summary.prediction(self.rows()[:1][:0]) is None

    def test_how_often_a_plan_loses(self) -> None:
        found = summary.population(self.rows(), 3)
        assert found is not None
        assert (found["networks"], found["asked"]) == (1, 3)
        optimal = found["plans"]["optimal"]
        assert (optimal["slower"], optimal["faster"], optimal["best_of_list"]) == (0, 1, 1)
        assert optimal["reached"] == pytest.approx(1.0)
        assert summary.population(self.rows()[:1], 3) is None

    def test_page_picture_and_readme(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        values = {
            f"{kind} {name}": self.row(name)
            for kind, name in (("network", "mlp"), ("batch", "mlp@4"), ("drawn", "random/0"))
        }
        op_row = {
            "op": "MatMul",
            "network": "mlp",
            "op_class": "allow",
            "shapes": [[2, 3], [3, 4]],
            "us": {key: {"median": 2.0, "low": 1.0, "high": 3.0} for key in ("fp32", "low", "low_casts")},
            "casts_pay": {"median": 0.8, "low": 0.7, "high": 0.9},
        }
        gflops = {"fp32": 100.0, "low": 250.0}
        width = {"op": "MatMul", "size": 255, "shapes": [[512, 255], [255, 255]], "gflops": gflops}
        width["larger_and_faster"] = 256
        values["ops mlp"] = self.row("ops") | {"rows": [op_row], "failures": {}, "widths": [width]}
        readme = tmp_path / "README.md"
        readme.write_text(f"# Title\n{page.BEGIN}\nold\n{page.END}\nrest\n")
        known = dict.fromkeys(("mlp", "mlp@4", "random/0"), PLANS)
        quality = dict.fromkeys(("error", "median_error", "spearman", "within", "loss", "most_lost"), 0.5)
        quality |= {"pairs": 9, "wrong": 4}
        missed = {"chosen": "campo", "best": "optimal", "loss": 0.25, "pairs": 3, "wrong": 2}
        learned = {
            "plans": 12,
            "networks": 4,
            "titles": learning.MODELS,
            "models": dict.fromkeys(learning.MODELS, quality),
            "factors": {"casts": 0.5},
            "itself": 0.75,
            "rows": [{"name": "mlp", "title": "MLP"} | dict.fromkeys(learning.MODELS, missed)],
        }
        written = page.publish_measured(values, known, "here, of today", 3, tmp_path, readme, learned)
        assert {path.name for path in written} == {
            "measured.json",
            "measured.md",
            "measured.svg",
            "README.md",
        }
        text = (tmp_path / "measured.md").read_text()
        assert "loses on 1 of 1 and wins on 0" in text
        assert "12 plans of 4 networks as four models predict them" in text
        assert "| MLP | campo | optimal | 25.0% | 2 of 3 | campo | 25.0% |" in text
        assert "torch.compile failed (there is no compiler)" in text
        assert "Not measured: ResNet-18, 8 x 96 x 96" in text
        table = readme.read_text()
        assert table.startswith("# Title\n")
        assert table.endswith("rest\n")
        assert "old" not in table
        assert "Measured on A CPU" in table
        assert "| 3.00 (3.00 to 3.00) |" in table
        width = 0
        for line in text.splitlines():
            cells = line.count("|")
            assert not line.startswith("|") or cells == width or not width, line
            width = cells if line.startswith("|") else 0

    def test_a_network_without_graphs_is_absent(self, tmp_path: Path) -> None:
        data = page.data_of({"network mlp": self.row("mlp")}, {"mlp": None}, "", 0)
        assert data["rows"] == []
        data = page.data_of({"network mlp": self.row("mlp")}, {"mlp": PLANS}, "", 0)
        text = render("measured", data)
        assert "not calibrated" in text
        assert "## Random networks" not in text
        assert "## Batches" not in text

    def test_a_busy_machine_is_told(self) -> None:
        timed = self.row("mlp") | {"others_running": 2.0}
        text = render("measured", page.data_of({"network mlp": timed}, {"mlp": PLANS}, "", 0))
        assert "not to be relied on: MLP" in text

    def test_a_readme_without_the_place(self) -> None:
        with pytest.raises(UsageError, match="no place for the table"):
            page.with_table("# Title\n", "table")


def test_the_readme_has_the_place_for_the_table() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert page.with_table(text, "table") != text


def learnt(strategy: str, seed: int, top1: list[float]) -> dict[str, Any]:
    run = {"network": "n", "strategy": strategy, "seed": seed, "top1": top1, "top5": [100.0] * len(top1)}
    return run | {"losses": [1.0, 0.5], "cpu_s": 1.0}


def test_accuracy_is_compared_seed_by_seed_and_time_to_it_counts_the_seeds_that_reach_it() -> None:
    learner = SimpleNamespace(title="Net", epochs=2, optimizer="adamw", rate=0.1)
    runs = [learnt(s, seed, [50.0, 90.0 + seed]) for s in ("fp32", "tf-amp", "campo") for seed in range(3)]
    runs += [learnt("optimal", seed, [91.0, 92.0] if seed else [50.0, 60.0]) for seed in (2, 0, 1)]
    plan = {"low": 1, "nodes": 2, "casts": 3, "flops_share": 0.5}
    timed = {"rounds_ms": {strategy: [2.0, 1.0, 3.0] for strategy in trained.STRATEGIES}}
    plans_of_all = dict.fromkeys(trained.STRATEGIES, plan)
    row = trained.row_of(learner, runs, plans_of_all, timed)  # type: ignore[arg-type]
    optimal = row["rows"]["optimal"]
    assert row["wanted"] == pytest.approx(0.99 * 91.0)
    assert optimal["difference"]["mean"] == pytest.approx(((60 - 90) + (92 - 91) + (92 - 92)) / 3)
    assert (optimal["reached"], optimal["epochs"]) == (2, 1.0)
    assert optimal["seconds"] == pytest.approx(2e-3 * (trained.TRAIN // trained.BATCH))
    assert row["rows"]["fp32"]["reached"] == 2  # the third ends at 90, where 90.09 is asked
    facts = {
        "made": made() | {"versions": {"campo-onnx": "0", "openvino": "1"}},
        "calibration": "",
        "train": 1,
    }
    machine = {"cpu": "one", "cores": 1, "units": ["BF16"]}
    page = render(
        "measured_accuracy",
        facts
        | {
            "machine": machine,
            "held_out": 360,
            "batch": 64,
            "asked": 0.99,
            "cpu_minutes": 1.0,
            "rows": [row],
        },
    )
    width = stats.t.ppf(0.975, 2) * stats.sem([-30.0, 1.0, 0.0])
    assert f"| Net | optimal | 1 of 2 | 3 | 50% | -9.67 ± {width:.2f} | 0.5000 | 0.5000 |" in page
    assert "| Net | 90.1 | optimal | 2 of 3 | 1.0 | 2.00 | 0.04 |" in page
