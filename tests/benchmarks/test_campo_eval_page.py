"""The page that the evaluation script writes: what it says of what, and that it keeps things apart."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # the benchmarks are no package

from evaluation import pictures, report
from evaluation.account import account_of
from evaluation.claims import claims_of, split_gain
from evaluation.findings import Findings, Measured, PeerOutcome, read_findings
from evaluation.models import FULL, SMALL
from evaluation.node_times import NodeTime
from evaluation.predicted import PredictedRow
from evaluation.steps import Records

TIME = NodeTime(op="MatMul", count=1, fp32_us=10.0, low_us=5.0, predicted_fp32_us=10.0, predicted_low_us=5.0)


def row(step_us: float, **changes: Any) -> PredictedRow:
    usual: dict[str, Any] = {"fp32_us": 300.0, "casts": 10, "pads": 0, "low_nodes": 5, "cast_us": 10.0}
    usual |= {"missed_us": {}, "tensor_core_share": 0.2, "unpadded_us": step_us, "source": "datasheet"}
    return PredictedRow(step_us=step_us, **(usual | changes))


def findings(campo_us: float = 80.0, **changes: Any) -> Findings:
    rows = {
        "fp32": row(300.0, casts=0, tensor_core_share=0.0),
        "tf-amp tf115": row(100.0),
        "tf-amp campo": row(95.0),
        "campo": row(campo_us, casts=8, unpadded_us=campo_us + 5, tensor_core_share=0.3),
        "optimal": row(70.0, casts=6, tensor_core_share=0.4),
    }
    usual: dict[str, Any] = {
        "predicted": {"v100": {"vgg16": rows}},
        "batches": {(FULL, "vgg16"): 256},
        "measured": {},
        "peers": {},
        "updates": {},
    }
    return Findings(**(usual | changes))


class TestClaims:
    def test_a_gain_is_split_as_in_figure_8(self) -> None:
        gain = split_gain(row(75.0, unpadded_us=80.0), row(100.0))
        assert (gain.rewriting, gain.padding, gain.total) == (20.0, 5.0, 25.0)

    def test_verdicts_follow_the_figures(self) -> None:
        assert {claim.verdict for claim in claims_of(findings(80.0))} == {"yes", "not judged"}
        throughput = next(c for c in claims_of(findings(120.0)) if "throughput" in c.paper)
        assert throughput.verdict == "no"
        assert "-16.7 %" in throughput.ours

    def test_one_model_that_loses_makes_it_on_average(self) -> None:
        two = {
            "vgg16": findings(80.0).predicted["v100"]["vgg16"],
            "alexnet": findings(101.0).predicted["v100"]["vgg16"],
        }
        throughput = next(c for c in claims_of(findings(predicted={"v100": two})) if "throughput" in c.paper)
        assert throughput.verdict == "on average"

    def test_the_account_names_who_falls_behind(self) -> None:
        assert any("`campo` is behind TF_AMP on VGG-16" in line for line in account_of(findings(120.0)))
        assert any("`campo` is behind TF_AMP on no model" in line for line in account_of(findings(80.0)))


class TestPage:
    def test_nothing_on_record_is_not_measured(self, tmp_path: Path) -> None:
        page = report.page(read_findings(Records(folder=tmp_path)), ())
        assert page.count("not measured") >= 2
        assert "ms" not in page.split("## Measured: GPU")[1].split("## Other")[0]

    def test_predictions_are_under_their_own_heading(self) -> None:
        page = report.page(findings(), ("campo_eval_throughput_v100.svg",))
        before, after = page.split("## Measured: GPU (CUDA provider)")
        assert "| VGG-16 | 1.00 | 3.00 | 3.16 | 3.75 | 4.29 |" in before
        assert "![Throughput over FP32](campo_eval_throughput_v100.svg)" in before
        assert "not measured" in after.split("## Measured: CPU")[0]

    def test_measured_figures_say_where_they_are_from(self) -> None:
        interval = {"median": 2000.0, "low": 1000.0, "high": 3000.0}
        speedup = {"median": 1.5, "low": 1.4, "high": 1.6}
        fields = {"samples_per_s": 4.0, "energy_j": None, "tensor_pipe_share": None, "verdict": "faster"}
        shared = {"name": "campo", "step_us": interval, "speedup": speedup, "over_tf_amp": speedup}
        failed = {"name": "ort-float16", "step_us": None, "speedup": None, "over_tf_amp": None}
        rows = {
            "campo": shared | fields | {"failure": "", "casts": 3},
            "optimal": shared | fields | {"failure": "", "casts": 3},
            "ort-float16": failed | fields | {"failure": "it | broke", "casts": None},
        }
        found = Measured(
            provider="cuda",
            variant=SMALL,
            planned_for="h200",
            machine={"device": "A GPU", "driver": "580", "cuda": "13.0", "ort": "1.31", "tf32": True},
            measured_at="2026-01-02",
            load_average=0.5,
            energy_from="",
            memory_from="",
            batch={"vgg16": 8},
            rows={"vgg16": rows},
            times={"vgg16": (TIME,)},
        )
        page = report.page(findings(measured={"cuda": found}), ())
        gpu = page.split("## Measured: GPU (CUDA provider)")[1].split("## Measured: CPU")[0]
        for fact in ("A GPU", "driver 580", "CUDA 13.0", "ONNX Runtime 1.31", "2026-01-02", "TF32 on"):
            assert fact in gpu
        assert "| VGG-16 | campo, optimal | 2.00 ms (1.00 to 3.00) | 4.0 | 1.50 (1.40 to 1.60) |" in gpu
        assert "it / broke" in gpu
        assert "tell nothing about a GPU" not in gpu

    def test_a_peer_without_a_result_is_a_row(self) -> None:
        outcome = PeerOutcome(failure="KeyError: 'x'", converted=None)
        other = PeerOutcome(failure="KeyError: 'y'", converted=None)
        two = {(SMALL, "autocast", "vgg16"): outcome, (SMALL, "autocast", "alexnet"): other}
        page = report.page(findings(peers=two), ())
        assert "| ModelOpt AutoCast 0.47.0 | VGG-16 | no result |" in page
        assert "- ModelOpt AutoCast 0.47.0: KeyError: 'x' (VGG-16; AlexNet)" in page


def test_pictures_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert len(pictures.draw(findings(), tmp_path / name)) == 4
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
