"""Pages about measured steps, and their figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measured import drawn, learning, page, summary
from benchmarks.pages import provenance, render
from campo_onnx.errors import UsageError
from tests.benchmarks.measured_facts import PLANS, STEP_MS


class TestSummary:
    def row(self, name: str, slower: float = 1.0) -> dict[str, Any]:
        times = {
            side: [ms * slower * factor for factor in np.linspace(0.99, 1.01, 12)]
            for side, ms in STEP_MS.items()
        }
        timed = {
            "rounds_ms": times,
            "losses": {"torch": 1.0},
            "gradients": {"optimal": {"gradient_error": 0.02, "emulated_error": 0.015}},
            "failures": {"compile": "there is no compiler"},
            "load": 0.1,
            "load_after": 2.0,
            "others_running": 0.0,
            "measured_at": "2026-11-23T13:00:00+00:00",
            "made": provenance()
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

    def test_beside_the_fastest_of_torch(self) -> None:
        (row, _) = self.rows()
        behind = self.row("unet")
        behind["rounds_ms"] |= {"compile-bf16": [0.5] * 12}
        slower = summary.network_row("unet", behind, PLANS)
        assert (row["fastest"], slower["fastest"]) == ("torch", "compile-bf16")
        over = summary.over_torch([row, slower])
        assert over["mean"] == pytest.approx((4.0 * 0.5) ** 0.5)
        assert (over["networks"], over["behind"]) == (2, [slower["title"]])
        without = {"rounds_ms": {"fp32": [2.0] * 7, "optimal": [1.0] * 7}}
        assert summary.over_torch([summary.network_row("mlp", self.row("mlp") | without, PLANS)]) == {}

    def test_predicted_beside_measured(self) -> None:
        """Of one network every step is predicted right, of the other a fifth too short."""
        prediction = summary.prediction(self.rows())
        assert prediction is not None
        assert (prediction["plans"], prediction["networks"]) == (10, 2)
        assert prediction["error"] == pytest.approx(0.1)
        assert prediction["ratio_error"] == pytest.approx(0.0)
        assert prediction["within"] == pytest.approx(1.0)
        assert 0.8 < prediction["spearman"] < 1.0
        assert summary.prediction(self.rows()[:1][:0]) is None

    def test_how_often_a_plan_loses(self) -> None:
        population = drawn.population(self.rows()[1:], [], 3)
        assert population is not None
        assert (population["networks"], population["asked"]) == (1, 3)
        optimal = population["plans"]["optimal"]
        assert (optimal["slower"], optimal["faster"], optimal["best_of_list"]) == (0, 1, 1)
        assert optimal["reached"] == pytest.approx(1.0)
        assert population["plans"]["tf-amp"]["best_of_list"] == 1
        assert population["plans"]["all-low"]["best_of_list"] == 0
        assert population["plans"][drawn.VERIFIED]["median"] == pytest.approx(3.0)
        assert [(g["title"], g["over_low"]) for g in population["groups"] if g["networks"]] == [
            ("alexnet", pytest.approx(2.5)),
            ("FP32 step from 3 ms to 10 ms", pytest.approx(2.5)),
        ]
        assert drawn.population([], [], 3) is None

    def test_what_is_not_shown_to_be_faster_stays_fp32(self) -> None:
        """Even rounds decide, odd ones measure: that the plan is slow there shows only where it is kept."""
        (_, row) = self.rows()
        times = {"fp32": [3.0] * 12, "optimal": [2.0, 4.0] * 6}
        kept = drawn.population([row | {"rounds_ms": times}], [], 1)
        times = {"fp32": [3.0] * 12, "optimal": [3.1, 4.0] * 6}
        left = drawn.population([row | {"rounds_ms": times}], [], 1)
        assert kept is not None
        assert left is not None
        assert (kept["plans"][drawn.VERIFIED]["median"], kept["plans"][drawn.VERIFIED]["slower"]) == (0.75, 1)
        assert (left["plans"][drawn.VERIFIED]["median"], left["plans"][drawn.VERIFIED]["slower"]) == (1.0, 0)
        not_behind = [one["plans"][drawn.VERIFIED]["best_of_list"] for one in (kept, left)]
        assert not_behind == [0, 1]
        times |= {"tf-amp": [2.0] * 12}  # a list that wins where the plan was not kept
        behind = drawn.population([row | {"rounds_ms": times}], [], 1)
        assert behind is not None
        assert behind["plans"][drawn.VERIFIED]["best_of_list"] == 0

    def test_page_picture_and_readme(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        values: dict[str, Any] = {
            f"{kind} {name}": self.row(name)
            for kind, name in (("network", "mlp"), ("batch", "mlp@4"), ("drawn", "random/0"))
        }
        values["profile mlp"] = {"node_linear": 3.0}
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
        layer = {"op": "Conv", "kernel": 3, "side": 20, "fp32_us": 9.0, "low_us": 6.0}
        values["layers 1"] = [layer, layer | {"low_us": 12.0}]
        readme = tmp_path / "README.md"
        readme.write_text(f"# Title\n{page.BEGIN}\nold\n{page.END}\nrest\n")
        by_network = dict.fromkeys(("mlp", "mlp@4", "random/0"), PLANS)
        quality = dict.fromkeys(
            ("error", "low_error", "median_error", "spearman", "within", "loss", "most_lost"), 0.5
        )
        quality |= {"pairs": 9, "wrong": 4}
        missed = {"chosen": "campo", "best": "optimal", "loss": 0.25, "pairs": 3, "wrong": 2}
        learned = {
            "plans": 12,
            "networks": 4,
            "titles": learning.MODELS,
            "models": dict.fromkeys(learning.MODELS, quality),
            "factors": {"casts": 0.5},
            "itself": 0.75,
            "moments": 0.2,
            "rows": [{"name": "mlp", "title": "MLP"} | dict.fromkeys(learning.MODELS, missed)],
        }
        written = page.publish_measured(values, by_network, "here, of today", 3, tmp_path, readme, learned)
        assert {path.name for path in written} == {
            "measured.json",
            "measured.md",
            "measured.svg",
            "measured_population.svg",
            "README.md",
        }
        text = (tmp_path / "measured.md").read_text()
        assert "loses on 1 of 1 and wins on 0" in text
        assert "12 plans of 4 networks as five models predict them" in text
        assert "from a profile of the FP32 step as in the paper | 50.0% |" in text
        assert "| MLP | campo | optimal | 25.0% | 2 of 3 | campo | 25.0% |" in text
        assert "| Conv | 3 | 32 | 2 | 50% | 1.12 | +0 |" in text
        assert "0.02 (0.015)" in text
        assert "torch.compile failed (there is no compiler)" in text
        assert "Not measured: ResNet-18, 8 x 96 x 96" in text
        table = readme.read_text()
        assert table.startswith("# Title\n")
        assert table.endswith("rest\n")
        assert "old" not in table
        assert "Measured on A CPU" in table
        assert "5 of 9 pairs of plans that measurements tell apart are predicted in the right order" in table
        assert "those in BF16 50.0% off from a profile of the FP32 step, the paper's input" in table
        assert "| 3.00 (3.00 to 3.00) |" in table
        width = 0
        for line in text.splitlines():
            cells = line.count("|")
            assert not line.startswith("|") or cells == width or not width, line
            width = cells if line.startswith("|") else 0

    def test_networks_alone_leave_the_rest_of_the_page(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        plans = dict.fromkeys(("mlp", "mlp@4", "random/0"), PLANS)
        kinds = {"network mlp": self.row("mlp"), "batch mlp@4": self.row("mlp@4")}
        page.publish_measured(kinds | {"drawn random/0": self.row("random/0")}, plans, "", 3, tmp_path, None)
        before = json.loads((tmp_path / "measured.json").read_text())
        slower = {"network mlp": self.row("mlp", 2.0)}
        page.publish_measured(slower, plans, "", 0, tmp_path, None)
        after = json.loads((tmp_path / "measured.json").read_text())
        assert after["rows"][0]["ms"]["fp32"]["median"] == 2 * before["rows"][0]["ms"]["fp32"]["median"]
        assert after["others_made"] == before["made"]
        assert (after["sweeps"], after["population"]) == (before["sweeps"], before["population"])
        assert before["sweeps"]
        assert f"were measured on {before['made']['date']}" in (tmp_path / "measured.md").read_text()

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
