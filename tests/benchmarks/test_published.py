"""Published speed-ups beside predictions: what a larger batch counts, and which rows are on the page."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.published import __main__ as published
from benchmarks.steps import Records


def step(fp32_us: float, low_us: float) -> dict[str, float]:
    return {"fp32_us": fp32_us} | {f"{name}_us": low_us for name in published.PLANNED}


def a_row(**facts: Any) -> dict[str, Any]:
    both = {"network": "net", "device": "v100", "published": 3.0, "fp32_batch": 10}
    return both | facts


def test_a_larger_batch_counts_by_samples_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "_rows", lambda: (a_row(low_batch=20),))
    records = Records(folder=tmp_path)
    facts = {"title": "T", "size": "s", "nodes": 7}
    records.keep("v100-net-10", {"asked": {}, "result": facts | step(100.0, 60.0)})
    assert published.collect(records)["rows"] == []
    records.keep("v100-net-20", {"asked": {}, "result": step(160.0, 50.0)})
    (row,) = published.collect(records)["rows"]
    assert row["speedups"] == dict.fromkeys(published.PLANNED, 4.0)
    assert row["fp32_alone"] == 1.25


def test_every_row_says_what_is_planned_for_it() -> None:
    for row in published._rows():
        target, low = published.device_of(row["device"])
        assert target.hardware.tensor_flops_per_s(low)
        assert 0 < row["fp32_batch"] <= row["low_batch"]
