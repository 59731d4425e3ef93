"""The population's page, from rows as the command writes them; networks themselves need PyTorch."""

import json
from itertools import count

import pytest

from benchmarks.figures import curves, distributions
from benchmarks.pages import render
from benchmarks.population import page
from benchmarks.population.page import publish_rows, summary

FAMILY = ("alexnet", "resnet", "transformer")


def made_up(number, *, slow=False):
    """A row of round figures: FP16 halves the step, or where `slow`, doubles it."""
    fp32_us = 1000.0 * (number + 1) * 40
    half = fp32_us * (2 if slow else 0.5)
    steps = dict.fromkeys(page.PLANNED, half) | {"optimal": fp32_us / 4, "campo": fp32_us}
    device = {
        "fp32_us": fp32_us,
        "product_share": 0.1 * (number % 7),
        "fixed_share": 0.01,
        "slower_low_us": {"pooling": 3.0} if slow else {},
        "predicted_us": steps,
        "casts": dict.fromkeys(steps, 1),
        "cast_us": dict.fromkeys(steps, 5.0),
        "low_nodes": dict.fromkeys(steps, 9),
        "pads": dict.fromkeys(steps, 0),
    }
    return {
        "number": number, "family": FAMILY[number % 3], "nodes": 100 + number, "launches": 80,
        "figures": {"batch": 2**number}, "moved_bytes": 1e9, "peak_bytes": 1e9, "aligned_share": 0.5,
        "product_flops": 1e12 / (number + 1), "pooling_share": 0.1,
        "devices": {"v100": device, "h200": device},
    }  # fmt: skip


def test_a_slow_machine_draws_without_a_warning(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    seconds = count(step=10)
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))  # a legend that looks for a place is slow
    distributions({"a": {"v100": [1.0, 2.0, 4.0]}}, tmp_path / "a.svg", axis="speed-up")
    curves({"a": {"v100": [4.0, 2.0, 1.0]}}, tmp_path / "b.svg", axis="loss", steps="step")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_page_says_what_the_rows_say(tmp_path):
    rows = [made_up(n, slow=n == 3) for n in range(9)]
    totals = summary(rows, 12)
    won = totals["wins"]["v100"]
    assert (totals["networks"], totals["asked"]) == (9, 12)
    assert won["fp32"]["optimal"]["mean"] == won["fp32"]["optimal"]["lowest"] == 4.0
    assert won["fp32"]["all-fp16"]["slower"] == 1
    assert won["all-fp16"]["optimal"]["highest"] == 8.0
    assert totals["slower_fp16"]["v100"]["alexnet"] == {"networks": 3, "slower": 1}
    assert totals["slower_nodes"]["v100"] == {"networks": 1, "families": ["pooling"]}
    beside = {(r["strategy"], r["from_ms"], r.get("expected")): r for r in totals["beside_paper"]["v100"]}
    assert (
        beside["optimal", None, True]["networks"] == 3
    )  # half less a quarter of 40, 160 and 280 ms: 10 and more
    assert beside["optimal", 0.0, None]["networks"] == 1
    ranks = totals["correlations"]["v100"]
    assert ranks["aligned_share"]["optimal over all FP32"] is None  # it is the same everywhere
    assert ranks["nodes"]["all FP16 over all FP32"] == ranks["batch"]["all FP16 over all FP32"]
    pytest.importorskip("matplotlib")
    publish_rows(rows, 12, tmp_path)
    text = (tmp_path / "population.md").read_text()
    assert "9 of 12 networks have come in" in text
    assert render("population", json.loads((tmp_path / "population.json").read_text())) == text
    assert (tmp_path / "population.svg").read_text().count("over all FP16") == 2
