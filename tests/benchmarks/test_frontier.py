"""The parts of ``benchmarks.frontier`` that its page rests on."""

import itertools
from dataclasses import replace

import onnx
import pytest

from benchmarks import figures
from benchmarks.frontier.mixed import Mixture
from benchmarks.frontier.steps import NEXT_TO_NOTHING_US
from benchmarks.frontier.summary import curves, summary
from campo_onnx import Options, Precision, oplists, target
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.roundings import roundings
from campo_onnx.optimize.strategies.optimal import free_nodes
from campo_onnx.planning.pipeline import problem_of

STEP = """<ir_version: 9, opset_import: ["": 20]>
g (float[64,512] x, float[512,512] w) => (float[64,512] y, float[64,512] z) {
    [a] t = MatMul(x, w)
    [b] u = Relu(t)
    [c] v = MatMul(u, w)
    [d] s = Add(v, u)
    [e] y = MatMul(s, w)
    [f] z = Exp(s)
}"""


@pytest.mark.parametrize("price_us", [0.0, 1e2, 1e6])
def test_bounds_of_mixed_plans_hold_the_best_of_all(price_us):
    aim = replace(target("h200"), launch_us=NEXT_TO_NOTHING_US, host_us=NEXT_TO_NOTHING_US)
    imported = import_model(onnx.parser.parse_model(STEP))
    problems = [
        problem_of(imported, Options(target=aim, lists=oplists("campo"), low=low, pads=False))
        for low in (Precision.FP16, Precision.BF16)
    ]
    every = roundings(problems[0], free_nodes(problems[0]))
    errors = [{one: 1e-6 * size * (1 + i) for i, one in enumerate(every)} for size in (1, 64)]
    errors[0][every[0]] = float("inf")  # overflows in FP16 only
    mixture = Mixture(problems, errors, price_us)
    names = mixture.nodes
    best_us = min(
        mixture.cost_us(dict(zip(names, labels, strict=True)))
        for labels in itertools.product(*(mixture.allowed[name] for name in names))
    )
    lower_us, _ = mixture.solve(mixture.allowed)
    labels = mixture.expanded(dict.fromkeys(names, 0))
    assert lower_us <= best_us * (1 + 1e-6)
    assert mixture.cost_us(labels) >= best_us * (1 - 1e-9)
    assert mixture.cost_us(labels) <= 1.02 * best_us
    assert 1 not in mixture.allowed[every[0].nodes[0]]
    for label, problem in enumerate(problems, 1):  # of one format it is the problem's own price
        low = frozenset(free_nodes(problem))
        plain = Mixture(problems, [{}, {}], 0.0)
        labels = {name: label if name in low else 0 for name in names}
        assert plain.cost_us(labels) == pytest.approx(problem.predicted_us(low))


def test_training_is_ranked_by_predicted_error():
    points = [{"error": e, "time_us": 1.0, "fp32_us": 2.0} for e in (1e-2, 1e-3, 1e-4)]
    moved = (0.5, 0.2, 0.1)
    fp32 = {"accuracy": 90.0, "loss": 1.0, "last": 1.0}
    run = {str(i): {"accuracy": 90.0, "loss": 1.0 + m, "last": 1.0 - m} for i, m in enumerate(moved)}
    results = [{"name": "a", "points": points, "cpu_s": 30.0}]
    results += [{"network": "a", "seed": seed, "fp32": fp32, **run, "cpu_s": 15.0} for seed in (0, 1)]
    page = summary({"quality": [], "training": results, "mixed": []})
    (training,) = page["trainings"]
    assert page["cpu_minutes"] == 1.0
    by_loss, by_accuracy = training["ranks"]["loss held out, moved"], training["ranks"]["accuracy"]
    assert (by_loss["mean"], by_loss["orders"]) == (pytest.approx(1.0), True)
    assert (by_accuracy["mean"], by_accuracy["orders"]) == (0.0, False)
    assert [row["last_moved"] for row in training["rows"]] == pytest.approx(moved)
    assert [row["gained"]["mean"] for row in training["rows"]] == [0.0] * 3


def test_errors_that_fp32_has_itself_are_left_out():
    rows = [{"predicted": p, "emulated": e, "computed": None} for p, e in ((1e-3, 2e-3), (1e-9, 6e-8))]
    facts = dict.fromkeys(("batches", "nodes", "roundings", "runs", "directions", "plans", "cpu_s"), 1)
    one = {**facts, "name": "a", "low": "fp16", "device": "v100", "fp32_us": 1.0, "nested": True}
    one |= {"rows": rows, "first_order": {}, "random": [], "lists": [], "node_model": {}}
    page = summary({"quality": [one], "training": [], "mixed": []})
    assert page["pooled"]["fp16"]["factor"] == pytest.approx(2.0)
    assert len(page["qualities"][0]["points"]) == 1


def test_errors_are_drawn_over_steps(tmp_path):
    pytest.importorskip("matplotlib")
    points = [
        {"time_us": 1.0, "predicted": 1e-2, "emulated": 2e-2, "computed": None},
        {"time_us": 2.0, "predicted": 1e-3, "emulated": 1e-3, "computed": None},
    ]
    panels = curves([{"name": "mlp", "low": "fp16", "fp32_us": 4.0, "points": points}])
    assert panels == {
        "mlp": {"FP16, predicted": [(0.25, 1e-2), (0.5, 1e-3)], "FP16, emulated": [(0.25, 2e-2), (0.5, 1e-3)]}
    }
    figures.errors(panels, tmp_path / "a.svg")
    assert "FP16, emulated" in (tmp_path / "a.svg").read_text(encoding="utf-8")
