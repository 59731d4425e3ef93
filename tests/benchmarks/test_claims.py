"""One test or two a claim: the part that decides what its page says, on a small graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest

from benchmarks import (
    accuracy,
    auto_precision,
    digits,
    export,
    gpu_plans,
    gpu_session,
    scaling,
    strategies,
    table1,
)
from benchmarks.gpu_machine import Session
from benchmarks.gpu_session import forms_of
from benchmarks.pages import provenance, render
from benchmarks.steps import Call, Deadline, Records, run_steps
from benchmarks.zoo import TITLES
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.optimize.traffic import traffic
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import target_of

DATA = Path(__file__).parents[1] / "data"
MLP = DATA / "mlp.onnx"


def test_strategies_row_by_row() -> None:
    rows = [*strategies.rows_of(MLP)]
    assert len(rows) == len(strategies.DEVICES) * len(strategies.LISTS)
    totals = strategies.summary(rows)
    assert totals["rows"] == len(rows)
    assert totals["optimal_beaten"] == totals["campo_slower_than_fp32"] == 0
    assert all((row["refused"] is not None) == (row["predicted_us"]["campo"] > row["predicted_us"]["tf-amp"])
               for row in rows)  # fmt: skip


def test_a_strategy_that_loses_is_counted() -> None:
    row = {"fp32_us": 10.0, "casts": {"tf-amp": 4, "campo": 3, "optimal": 0}}
    rows = [
        row | {"predicted_us": {"tf-amp": 8.0, "campo": 9.0, "optimal": 8.5}},
        row | {"predicted_us": {"tf-amp": 9.0, "campo": 8.0, "optimal": 8.0}},
    ]
    totals = strategies.summary(rows)
    assert (totals["campo_wins"], totals["optimal_beaten"], totals["fewer_casts"]) == (1, 1, 0.25)


def test_a_stacked_layer_is_a_valid_training_step() -> None:
    one, three = scaling.repeated(1), scaling.repeated(3)
    onnx.checker.check_model(three)
    assert len(three.graph.node) == 3 * len(one.graph.node)
    assert len(three.graph.output) == 3 * len(one.graph.output)


def test_every_row_of_table_1_is_estimated() -> None:
    results = table1.results()
    agreed = sum(row["paper"]["winner"] == row["ours"]["winner"] for row in results["rows"])
    assert results["same_winner"] == agreed > results["fp32_wins"]  # better than "always FP32"
    assert "(2048, 8, 8, 1024)" in render("table1", {"made": provenance(), **results})


def test_what_auto_takes_and_why() -> None:
    """Unscaled, its gradients would not survive FP16 on a device where FP16 pays."""
    graph = DATA / "frameworks" / "mlp_torch.onnx"
    by_device = {name: auto_precision.chosen(graph, name, {"unused": 3}) for name in ("v100", "a100")}
    assert (by_device["v100"]["low"], by_device["v100"]["bf16_us"]) == ("fp16", None)
    assert (by_device["a100"]["low"], by_device["a100"]["scaled"]) == ("bf16", False)
    assert by_device["a100"]["fp16_us"] < by_device["a100"]["fp32_us"]
    page = render("auto_precision", {"made": provenance(), "devices": ["a100"], "rows": [by_device["a100"]]})
    assert by_device["a100"]["why"] in page


def test_the_page_of_traffic() -> None:
    counts = traffic(import_model(MLP).view)
    total = {"launches": counts.total.launches, "moved_bytes": counts.total.moved_bytes}
    row = dict.fromkeys(("fused", "weight_update", "eager"), total) | {
        "model": "mlp",
        "ours": {"total": total, "casts": total, "element-wise": total},
        "planned": {"total": total, "casts": total, "element-wise": total},
        "peak_bytes": {"fp32": counts.peak_bytes, "planned": counts.peak_bytes},
        "step_ms": {name: {"fp32": 2.0, "planned": 1.0} for name in ("v100", "a100", "h200")},
    }
    row["before"] = {
        "total": {"launches": 7 * counts.total.launches, "moved_bytes": 1e9},
        "step_ms": {name: {"fp32": 3.0, "planned": 2.5} for name in ("v100", "a100", "h200")},
    }
    page = render("traffic", {"made": provenance(), "device": "V100", "before": "abc", "rows": [row]})
    launches = counts.total.launches
    assert f"| mlp | {7 * launches} | {launches} | {launches} |" in page
    assert "| 3.0 / 2.5 | 2.0 / 1.0 | 3.0 / 2.5 | 2.0 / 1.0 |" in page


class TestExport:
    def test_jobs_of_a_model(self) -> None:
        jobs = [*export.jobs_of("bert_large")]
        assert {job.kind for job in jobs} == set(export.SECONDS)
        assert len({job.name for job in jobs}) == len(jobs) == len(export.TARGETS) + 2

    def test_the_page_waits_for_every_job(self, tmp_path: Path) -> None:
        steps = [*export.steps_of(["alexnet"])]
        records = Records(folder=tmp_path)
        records.keep(steps[0].name, {"asked": {}, "result": {}})
        assert export.publish_when_done(steps, records) == ()

    def test_the_page_of_made_up_results(self, tmp_path: Path) -> None:
        records = Records(folder=tmp_path)
        costs = {"batch": 256, "nodes": 9, "file_bytes": 1e6, "export_s": 1.0, "peak_bytes": 2e9}
        for step in export.steps_of(["alexnet"]):
            is_export, is_cuda = step.asked["kind"] == "export", step.asked["target"] == "cuda"
            forms = {"3 x 3": {export.PRODUCT: 2, export.IMAGES: 1} if is_cuda else {export.CONVOLUTION: 3}}
            further = (
                {"optimizer": "momentum", "forms": None} if step.asked["has_update"] else {"forms": forms}
            )
            result = costs | {"load_s": None if is_cuda else 11.0} | further
            result = result if is_export else {"nodes": None, "refused": "aten.x"}
            records.keep(step.name, {"asked": dict(step.asked), "result": result, "load_average": [1.5]})
        page = render(
            "export", export.collect(records) | {"made": provenance("torch") | {"versions": VERSIONS}}
        )
        assert "| AlexNet | 256 | cpu | 9 | 1.00 | 1.00 | 11.00 | 2.0 |" in page
        assert "| AlexNet | 256 | standard, with the update (momentum) | 9 |" in page
        assert "| AlexNet | 3 of 3 x 3 | convolution | convolution | product 2, product per image 1 |" in page
        assert "| AlexNet | 9 | fails: no translation of `aten.x` |" in page


VERSIONS = {"campo-onnx": "1", "torch": "2", "onnx": "3", "onnxruntime": "4"}


def made_up_run(case: digits.Case, how: str, **figures: Any) -> dict[str, Any]:
    facts = {"seed": 0, "skipped": 3, "low_nodes": 7, "cpu_s": 1.0} | figures
    return {"network": case.title, "how": how, **facts, "accuracy": 90.0 + facts["seed"]}


class TestAccuracy:
    def test_differences_are_paired_by_seed(self) -> None:
        assert accuracy.paired([98.0, 99.0, 97.0], [97.0, 98.0, 96.0]) == {"mean": 1.0, "half_width": 0.0}
        half_width = pytest.approx(12.706, abs=1e-3)  # one degree of freedom
        assert accuracy.paired([2.0, 0.0], [0.0, 0.0]) == {"mean": 1.0, "half_width": half_width}

    def test_a_small_loss_must_not_change_fp32(self) -> None:
        usual = made_up_run(digits.MLP, "fp32", losses=[1.0])
        same = made_up_run(digits.SMALL_LOSS, "fp32 unscaled", losses=[1.0 / digits.UNIT])
        accuracy.check_units(pl.DataFrame([usual, same]))
        with pytest.raises(AssertionError, match="different ways"):
            accuracy.check_units(pl.DataFrame([usual, same | {"losses": [1.001 / digits.UNIT]}]))

    @pytest.mark.parametrize("case", digits.CASES, ids=lambda case: case.step)
    def test_without_costs_every_network_goes_low(self, case: digits.Case) -> None:
        _, plan = digits.costless(case.step, "optimal")
        assert plan.low_nodes

    def test_everything_is_trained_once(self) -> None:
        names = [task.arguments for task in accuracy.tasks_of(3, 2)]
        assert len(set(names)) == len(names) == 3 * (3 * 4 + 3) + 2 * 3 * 3
        assert {name for _, name, _ in names} == set(digits.HOWS)

    def test_the_pages_of_made_up_outcomes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        images = np.zeros((1500, 64), np.float32), np.zeros(1500, np.int64)
        monkeypatch.setattr(accuracy, "digits", lambda: images)
        monkeypatch.setattr(accuracy, "CASES", (digits.MLP,))
        kinds = [(digits.MLP, name) for name in (*digits.STRATEGIES, *digits.FORMATS)]
        kinds += [(digits.SMALL_LOSS, name) for name in digits.SMALL_RUNS]
        runs = pl.DataFrame(
            [made_up_run(*kind, seed=seed, losses=[1.0, 0.5]) for kind in kinds for seed in (0, 1)]
        )
        page = render("accuracy", accuracy.results(runs, 2))
        assert "| MLP | 90.50 ± 0.71 |" in page
        assert "| Campo | no loss scaling | 90.50 ± 0.71 | 0.500 | 0 of 2 |" in page
        page = render("formats", accuracy.by_format(runs, 2))
        assert "| MLP | DFP-16 | 7 | 90.50 ± 0.71 | +0.00 ± 0.00 | 0.5000 |" in page


ZOO = tuple(Path(f"{name}_b8.onnx") for name in TITLES)
GPU = Machine(provider="cuda", device="g", driver="1", cuda="13", ort="1", tf32=False, threads=0)


class TestGpuSession:
    @pytest.fixture
    def session(self, tmp_path: Path) -> Session:
        here = machine("cpu", 1)
        with Store(tmp_path / "timings.sqlite") as store:
            bench = NodeTimer(machine=here, store=store)
            yield Session(folder=tmp_path, bench=bench, device=target_of(here), graphs=(MLP,))

    def test_what_is_worth_most_comes_first(self, session: Session) -> None:
        names = [step.name for step in gpu_session.steps_of(session, full=True)]
        assert names[:5] == ["facts", "provider", "bench_mlp", "numerics_mlp", "calibration_quick"]
        assert names[-2:] == ["counters", "calibration"]
        assert {"step_mlp", "bench_mlp", "profile_mlp"} <= set(names)

    def test_half_an_hour_brings_home_speed_ups_of_the_six_models(self, session: Session) -> None:
        on_gpu = replace(session, bench=replace(session.bench, machine=GPU), graphs=ZOO, forms=forms_of(ZOO))
        steps = list(gpu_session.steps_of(on_gpu, full=False))
        names = [step.name for step in steps]
        wanted = [f"torch_{graph.stem}{plans}" for plans in ("", "_calibrated") for graph in ZOO]
        last = max(map(names.index, wanted))
        assert sum(step.seconds for step in steps[: last + 1]) <= 26 * 60

    def test_what_was_planned_before_is_read_until_something_changes(
        self, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        graph = tmp_path / "step.onnx"
        graph.write_bytes(MLP.read_bytes())
        first = gpu_plans.planned(graph, ("fp32", "torch-amp", "optimal"), session)
        monkeypatch.setattr(gpu_plans, "candidates", lambda *arguments: pytest.fail("planned again"))
        again = gpu_plans.planned(graph, ("torch-amp",), session)
        assert [label for member in again for label in member.labels] == ["fp32", "torch-amp"]
        for member in again:
            (same,) = (other for other in first if set(member.labels) <= set(other.labels))
            assert member.predicted_us == same.predicted_us
            assert member.imported.view.digest == same.imported.view.digest
        model = onnx.load(graph)
        model.doc_string = "another"
        onnx.save(model, graph)
        with pytest.raises(pytest.fail.Exception, match="planned again"):
            gpu_plans.planned(graph, ("torch-amp",), session)

    def test_two_forms_of_a_model_are_compared_as_whole_steps(self, session: Session) -> None:
        usual, other = Path("resnet50_b64.onnx"), Path("resnet50_b64.conv.onnx")
        forms = forms_of([other, usual, Path("vgg16_b8.onnx")])
        assert forms == {"resnet50_b64": {"usual": usual, "conv": other}}
        names = [step.name for step in gpu_session.steps_of(replace(session, forms=forms), full=False)]
        assert "forms_resnet50_b64" in names

    def test_the_plan_of_a_session_needs_no_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(gpu_session, "cuda_problem", lambda: "there is none")
        monkeypatch.setattr("sys.argv", ["gpu_session", "--plan", "--work", str(tmp_path), str(MLP)])
        assert gpu_session.main() == 0
        assert "bench_mlp_captured" in capsys.readouterr().out

    def test_half_an_hour_is_enough_without_the_full_calibration(self, session: Session) -> None:
        assert sum(step.seconds for step in gpu_session.steps_of(session, full=False)) < 30 * 60

    def test_a_session_on_a_cpu_and_its_page(self, session: Session) -> None:
        call = Call(records=Records(folder=session.folder), deadline=Deadline.after(36000))
        steps = gpu_session.steps_of(session, full=False)
        quick = ["facts", "provider", "numerics_mlp", "launches", "weight_gradients", "step_mlp", "counters"]
        assert run_steps(steps, call, only=quick, say=lambda line: None)
        assert {name for name, facts in call.records.all().items() if "result" in facts} == set(quick)
        page = render("calibration", gpu_session.collect(session, call.records))
        for text in ("launches a kernel", "Forms of the gradient", "there is no GPU in this session"):
            assert text in page
        assert "What failed" not in page
