"""Fifteen steps beside torch: what is measured again, what counts, what the page says. No measurement."""

import doctest
from pathlib import Path
from typing import Any

import pytest

from benchmarks import beside_torch
from benchmarks.measured import NETWORKS
from benchmarks.measured.training import OF_TORCH, SIDES, optimizer_of
from benchmarks.pages import provenance
from benchmarks.steps import Records, StepError

pytest.importorskip("jinja2")

STEP_MS = {"eager": 4.0, "eager-bf16": 3.0, "inductor": 5.0, "inductor-bf16": 2.0, "ort": 4.5, "fp32": 3.5}
STEP_MS |= {"bf16": 1.0, "in-the-loop": 1.25, "in-the-loop-fused": 1.2, "inductor-bf16-fused": 2.1}


def visit(factor: float = 1.0, **others: Any) -> dict[str, Any]:
    rounds = {side: [factor * ms * (1 + k / 100) for k in range(7)] for side, ms in STEP_MS.items()}
    machine = {"cpu": "CPU", "cores": 2, "units": ["BF16"], "governor": "not told"}
    versions = dict.fromkeys(("campo-onnx", "openvino", "onnxruntime", "torch"), "1.0")
    facts = {
        "made": provenance() | {"versions": versions},
        "machine": machine,
        "measured_at": "now",
        "failures": {},
    }
    return facts | {"others_running": 0.5, "rounds_ms": rounds} | others


def prepared() -> dict[str, Any]:
    error = {"whole": 0.01, "worst": 0.02, "parameter": "w", "loss": 1.5, "name": "bf16"}
    predicted = {"fp32_us": 3000.0, "predicted_us": 2000.0}
    errors = {"loss": 1.25, "sides": {"bf16": error}}
    return {"optimizer": "adamw", "predicted": predicted, "errors": errors, "failures": {}}


def records(folder: Path, visits: int) -> Records:
    kept = Records(folder=folder)
    kept.keep("ready_unet", {"asked": {}, "result": prepared()})
    for number in range(visits):
        kept.keep(f"timed_unet_{number}", {"asked": {}, "result": visit()})
    return kept


def test_there_are_fifteen_steps_with_an_optimizer_each() -> None:
    assert len(beside_torch.STEPS) == 15
    assert set(STEP_MS) == set(SIDES) > set(OF_TORCH)
    pytest.importorskip("torch")
    assert {optimizer_of(name) for name in beside_torch.STEPS} == {"adam", "adamw", "momentum"}


def test_what_is_ours_is_prepared_again_for_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's compilers take minutes, and do not ask for our source."""
    before, now = ({}, {})
    for asked, digest in ((before, "one"), (now, "other")):
        monkeypatch.setattr(beside_torch, "source_digest", lambda digest=digest: digest)
        asked |= {step.name: step.asked for step in beside_torch.steps_of(tmp_path, 6, 1)}
    changed = {name.partition("_")[0] for name in now if now[name] != before[name]}
    assert changed == {"ready", "timed"}
    assert len(now) == 45


def test_the_page_says_what_is_asked_and_what_is_missing(tmp_path: Path) -> None:
    _, page = beside_torch.publish_measured(records(tmp_path, 1), 1, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "| BF16 at least as fast as the fastest of torch's five | 1 of 1 |" in text
    assert "| BF16 over the fastest of torch's five, geometric mean | 2.00 |" in text
    assert "| 0.5 | 1.50 | - |" in text
    assert f"Not measured: {NETWORKS['resnet18']}" in text


def test_a_network_waits_for_all_its_visits(tmp_path: Path) -> None:
    assert beside_torch.publish_measured(records(tmp_path, 1), 2, tmp_path) == ()


def test_a_side_that_fails_in_one_visit_is_left_out_and_told() -> None:
    broken = visit(failures={"inductor-bf16": "no compiler"})
    del broken["rounds_ms"]["inductor-bf16"], broken["rounds_ms"]["inductor-bf16-fused"]
    row = beside_torch.row_of("unet", prepared(), [visit(2.0), broken])
    assert "inductor-bf16" not in row["ms"]
    assert (row["fastest"], row["failures"], row["rounds"]) == (
        "eager-bf16",
        {"inductor-bf16": "no compiler"},
        14,
    )
    assert row["bf16_over"]["eager-bf16"]["median"] == pytest.approx(3.0)
    assert row["fp32_over_eager"]["median"] == pytest.approx(4.0 / 3.5)


def test_a_network_without_our_step_is_told_beside_the_others(tmp_path: Path) -> None:
    broken = visit(failures={"bf16": "refused"})
    del broken["rounds_ms"]["bf16"]
    with pytest.raises(StepError, match="bf16: refused"):
        beside_torch.row_of("vit", prepared(), [broken])
    kept = records(tmp_path, 1)
    kept.keep("ready_vit", {"asked": {}, "result": prepared()})
    kept.keep("timed_vit_0", {"asked": {}, "result": broken})
    _, page = beside_torch.publish_measured(kept, 1, tmp_path)
    assert f"{NETWORKS['vit']} (bf16: refused)" in page.read_text(encoding="utf-8")


def test_examples() -> None:
    assert doctest.testmod(beside_torch).failed == 0
