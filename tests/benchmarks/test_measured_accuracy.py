"""The page of final accuracy, made from runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from benchmarks.measured import trained
from benchmarks.pages import provenance, render


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
        "made": provenance() | {"versions": {"campo-onnx": "0", "openvino": "1"}},
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
