"""A user's step beside torch's: what is measured, compared, predicted and told."""

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import campo_onnx
from campo_onnx.bench.result import Interval, Outcome
from campo_onnx.bench.worker import WorkerStep
from campo_onnx.errors import ModelError, UsageError
from campo_onnx.integrations.trial import trial as trial_module
from campo_onnx.integrations.trial.page import fragment, trial_page
from campo_onnx.integrations.trial.planned import export_step
from campo_onnx.integrations.trial.result import (
    AUTOCAST,
    COMPILED,
    COMPILED_AUTOCAST,
    EAGER,
    FORMAT,
    MIXED,
    OURS,
)
from campo_onnx.integrations.trial.sides import gradient_error
from campo_onnx.integrations.trial.torch_steps import TorchStep
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 8)
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 32), torch.randint(0, 8, (16,))


def tried(module, *, loss=F.cross_entropy, of=None, **settings):
    settings = {
        "steps": 12,
        "seconds": 3.0,
        "threads": 1,
        "devices": ["v100"],
        "runtime": "onnxruntime",
    } | settings
    return campo_onnx.try_step(module, loss, batch() if of is None else of, **settings)


@pytest.fixture(scope="module")
def trial():
    """A trial with a mixed step: planned for a GPU's figures, and run on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        figures = replace(target("v100"), launch_us=0.01, host_us=0.001)
        patch.setattr(trial_module, "_planned_for", lambda processor, runtime: figures)
        lower_for_here = partial(export_step, target=target("cpu"))
        patch.setattr(trial_module, "export_step", lambda user, path, figures: lower_for_here(user, path))
        return tried(network(), costs="datasheet", name="train.py:make", devices=["v100", "h200"])


def test_every_step_is_measured_in_turns(trial):
    assert [row.name for row in trial.measured.rows] == [EAGER, AUTOCAST, OURS, MIXED]
    samples = trial.measured.samples_us
    assert all(len(times) == trial.measured.steps for times in samples.values())
    assert all(row.step_us is not None and row.step_us.median > 0 for row in trial.measured.rows)
    assert trial.measured.batch == 16
    assert trial.plan.low_nodes > 0


def test_gradients_are_compared(trial):
    errors = {error.name: error for error in trial.gradients}
    assert errors[EAGER].whole == errors[EAGER].worst == 0.0
    assert 0 < errors[OURS].worst < 1e-4
    assert 1e-4 < errors[AUTOCAST].whole < 0.3
    assert np.isfinite(errors[MIXED].whole)
    assert errors[OURS].loss == pytest.approx(errors[EAGER].loss, rel=1e-5)


def test_other_devices_are_predicted(trial):
    assert [plan.device for plan in trial.predictions] == ["v100", "h200"]
    assert all(plan.predicted_us <= plan.fp32_us for plan in trial.predictions)
    assert {plan.source for plan in trial.predictions} == {"datasheet"}


def test_a_trial_is_written_and_read(trial):
    document = json.loads(trial.to_json())
    assert (document["kind"], document["format_version"]) == ("campo-onnx trial", 1)
    assert FORMAT.decode(trial.to_json()) == trial


def test_it_shows_itself(trial):
    text, page, part = str(trial), trial_page(trial, command="campo-onnx try"), trial._repr_html_()
    for name in (EAGER, AUTOCAST, OURS, MIXED):
        assert name in text
        assert name in page
        assert name in part
    assert "<img" in part
    assert "<html" not in part
    assert "<style" not in part
    assert "Tesla V100" in page
    assert part == fragment(trial)


def test_compiled_steps_are_measured_where_that_is_wanted(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # needs no compiler
    compiled = tried(network(), devices=[], compiles=True, steps=6, seconds=0.0)
    names = [row.name for row in compiled.measured.rows]
    assert names[:4] == [EAGER, AUTOCAST, COMPILED, COMPILED_AUTOCAST]
    assert all(row.step_us is not None and not row.failure for row in compiled.measured.rows)
    errors = {error.name: error for error in compiled.gradients}
    assert errors[COMPILED].whole < 1e-5 < errors[COMPILED_AUTOCAST].whole < 0.3


def test_the_fastest_step_is_told_also_where_steps_were_loaded_once(trial):
    """Two steps of the same interval, one of them measured in one load: no claim of all loads is made."""
    first, *_, last = trial.measured.rows
    ahead = Interval(median=2.0, low=1.9, high=2.1)
    quick = replace(last, step_us=Interval(median=1.0, low=1.0, high=1.0), speedup=ahead)
    for verdict, says in (
        (Outcome.FASTER, "2.00 times (1.90 to 2.10) as fast as torch."),
        (Outcome.NOT_COMPARED, "2.00 times (1.90 to 2.10) as fast as torch while loaded once."),
        (Outcome.NO_DIFFERENCE, "No step was measured to be faster than that of torch."),
    ):
        rows = (first, replace(quick, verdict=verdict))
        assert replace(trial, measured=replace(trial.measured, rows=rows)).sentences[0].endswith(says)
    close = replace(quick, verdict=Outcome.NOT_COMPARED, speedup=Interval(median=1.1, low=0.9, high=1.3))
    unclear = replace(trial, measured=replace(trial.measured, rows=(first, close)))
    assert unclear.sentences[0].startswith("No step was measured to be faster")


def test_text_of_others_stays_text(trial):
    hostile = replace(trial, name="<script>x</script>", notes=("<b>n</b>",))
    page = trial_page(hostile)
    assert "<script>x" not in page
    assert "<b>n</b>" not in page + str(fragment(hostile))


def test_notebooks_without_reports_show_text(trial, monkeypatch):
    monkeypatch.setattr("campo_onnx.integrations.trial.page.find_spec", lambda name: None)
    assert trial._repr_html_() is None


@pytest.mark.parametrize(("seconds", "runs"), [(0.0, 1), (600.0, 6)])
def test_slow_steps_are_loaded_once(seconds, runs):
    """No time is left to load them six times; six rounds are timed all the same."""
    trial = tried(network(), devices=[], steps=6, seconds=seconds)
    assert len(trial.measured.rounds_per_run) == runs
    assert trial.measured.steps >= 6
    assert any("loaded once" in note for note in trial.measured.notes) == (runs == 1)
    assert all(row.speedup is not None for row in trial.measured.rows[1:])


def test_the_module_stays_as_it_is():
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    threads = torch.get_num_threads()
    tried(module, devices=[])
    assert torch.get_num_threads() == threads
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_random_steps_are_not_compared():
    trial = tried(network(dropout=0.5), devices=[])
    assert trial.gradients == ()
    assert any("random numbers" in note for note in trial.notes)
    assert all(row.step_us is not None for row in trial.measured.rows)


def test_a_busy_machine_is_told(monkeypatch):
    for load, is_told in ((1e3, True), (0.0, False)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, load, load))
        trial = tried(network(), devices=[], steps=6, seconds=0.5)
        assert any("machine was busy" in note for note in trial.notes) == is_told


def test_a_batch_by_name_and_a_loss_of_the_output_alone():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = network()

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.layer(x), labels)}

    x, labels = batch()
    trial = tried(Named(), loss=lambda output: output["loss"], of={"labels": labels, "x": x}, devices=[])
    assert max(error.worst for error in trial.gradients if error.name == OURS) < 1e-4


@pytest.mark.parametrize(
    ("module", "loss", "of", "says"),
    [
        ("net", F.cross_entropy, None, "the module is a value of type str"),
        (network(), "mse", None, "the loss is a value of type str"),
        (network(), F.cross_entropy, (1, 2, 3), "the batch has 3 parts"),
        (network(), F.cross_entropy, 7, "the batch has the type int"),
        (network(), F.cross_entropy, (torch.randn(4, 5), torch.zeros(4, dtype=torch.int64)), "mat1 and mat2"),
    ],
)
def test_what_does_not_fit_is_told(module, loss, of, says):
    with pytest.raises(UsageError, match=says):
        tried(module, loss=loss, of=of)


def test_progress_is_told_by_phase():
    phases = []
    tried(network(), on_progress=lambda phase, done, total: phases.append(phase))
    assert list(dict.fromkeys(phases)) == ["exporting", "loading", "measuring", "predicting"]


def test_steps_of_torch_that_fail_are_a_row(monkeypatch):
    loss = TorchStep._loss

    def fails(self, forward, *, autocasts):
        if autocasts:
            raise RuntimeError("no autocast here")
        return loss(self, forward, autocasts=autocasts)

    monkeypatch.setattr(TorchStep, "_loss", fails)
    trial = tried(network(), devices=[])
    row = next(row for row in trial.measured.rows if row.name == AUTOCAST)
    assert "no autocast here" in row.failure
    assert row.verdict.value == "failed"


def test_small_gradients_count_as_rounding():
    exact = {"grad.w": np.array([1000.0]), "grad.b": np.array([1e-9])}
    error = gradient_error("ours", 1.0, {"grad.w": np.array([1000.0]), "grad.b": np.array([0.0])}, exact)
    assert error.parameter == "b"
    assert error.worst == pytest.approx(1e-9)
    wrong = gradient_error("ours", 1.0, {"grad.w": np.array([-1000.0]), "grad.b": exact["grad.b"]}, exact)
    assert (wrong.whole, wrong.worst, wrong.parameter) == (pytest.approx(2.0), 2.0, "w")


def test_gradients_of_nothing():
    assert gradient_error("ours", 0.0, {}, {}).whole == 0.0


def test_a_batch_of_mixed_sizes_has_no_size():
    step = TorchStep.of(network(), F.cross_entropy, (torch.zeros(3, 4), torch.zeros(5)))
    assert step.batch_size is None


def test_a_worker_tells_why_it_cannot_load(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    np.savez(tmp_path / "batch.npz")
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        WorkerStep(tmp_path / "broken.onnx", tmp_path / "batch.npz", tmp_path, machine("cpu", 1))


def test_a_worker_that_dies_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="ended"):
        WorkerStep(tmp_path / "a.onnx", tmp_path / "b.npz", tmp_path, machine("cpu", 1))


def test_a_step_for_openvino_is_planned_in_the_form_that_runs_there():
    pytest.importorskip("openvino")
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 256, 8)
    )
    images = torch.randn(8, 3, 32, 32), torch.randint(0, 8, (8,))
    trial = tried(module, of=images, runtime="openvino", costs="datasheet", seconds=1.0)
    assert {row.name for row in trial.measured.rows} >= {"torch", "ours, FP32"}
    assert not any(row.failure for row in trial.measured.rows)
    assert all(error.whole < 0.05 for error in trial.gradients)
