"""``campo-onnx frontier`` as its users see it."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize

GRAPH = Path(__file__).parent.parent / "data" / "alexnet_like.onnx"
WORDS = ("frontier", GRAPH, "--device", "v100", "--execution", "graph")


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "batch.npz"
    np.savez(path, **synthesize(import_model(GRAPH).view, seed=0))
    return path


def test_the_frontier_as_json(program, batch, capsys):
    assert program(*WORDS, "--inputs", batch, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (of_fp16,) = document["frontiers"]
    points = of_fp16["points"]
    assert (document["format_version"], document["batches"], of_fp16["low"]) == (2, 1, "fp16")
    assert of_fp16["runs"] == of_fp16["roundings"] > 50
    assert all(point["best_of_all"] for point in points)
    assert len(points) > 2
    assert points[-1]["predicted_error"] == points[-1]["emulated_error"] == 0.0
    assert points[0]["predicted_us"] < document["fp32_us"]
    for before, after in pairwise(points):
        assert before["predicted_us"] < after["predicted_us"]
        assert before["predicted_error"] > after["predicted_error"]
        assert before["price_us"] < after["price_us"]
    for point in points:
        assert point["bound_us"] == pytest.approx(point["predicted_us"], rel=1e-6)
        assert point["emulated_error"] is not None


@pytest.mark.parametrize("command", ["frontier", "compare"])
def test_a_device_without_low_arithmetic_is_told(program, capsys, command):
    words = ("--runs", 1, "--emulated", 2) if command == "frontier" else ()
    mlp = GRAPH.with_name("mlp.onnx")
    assert program(command, mlp, "--device", "cpu", "--costs", "datasheet", *words) == 0
    printed = capsys.readouterr()
    assert "cpu has no fp16 arithmetic, so it cannot pay there." in printed.err
    assert ("No plan in FP16 is predicted to be faster than FP32." in printed.out) is bool(words)


def test_the_frontier_as_table_and_picture(program, batch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "frontier.svg"
    assert program(*WORDS, "--inputs", batch, "--plot", plot, "--runs", 20, "--emulated", 2) == 0
    printed = capsys.readouterr().out
    for words in ("error, predicted", "error, emulated", "2 of them emulated", "together with neighbours"):
        assert words in printed
    drawn = "".join(ElementTree.fromstring(plot.read_text()).itertext())
    assert "predicted step in ms" in drawn
    assert "emulated" in drawn
    assert program(*WORDS, "--inputs", batch, "--plot", plot) == 2
    assert "exists" in capsys.readouterr().err


def test_the_frontier_as_report(program, batch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    report = tmp_path / "frontier.html"
    words = (*WORDS, "--inputs", batch, "--runs", 20, "--emulated", 2)
    assert program(*words, "--report", report, "--json") == 0
    points = json.loads(capsys.readouterr().out)["frontiers"][0]["points"]
    page = report.read_text()
    for point in points:
        assert f"{point['predicted_error']:.2g}" in page
    assert page.count("<option value=") >= 2  # the decisions of both emulated plans
    for words_of in (
        "proved least",
        "data:image/svg+xml",
        "alexnet_like.onnx",
        "estimated by 3 with gradients",
    ):
        assert words_of in page
    assert program(*words, "--report", tmp_path / "frontier.txt") == 2
    assert "End the name with .html" in capsys.readouterr().err


def test_the_frontier_as_csv(program, capsys):
    assert program(*WORDS, "--runs", 20, "--emulated", 2, "--format", "csv") == 0
    captured = capsys.readouterr()
    rows = [*csv.DictReader(io.StringIO(captured.out))]
    assert float(rows[0]["predicted_us"]) < float(rows[-1]["predicted_us"])
    assert "made-up values" in captured.err


def test_bad_input_is_one_message(program, batch, capsys, tmp_path):
    assert program(*WORDS, "--inputs", tmp_path / "none.npz") == 2
    assert "does not exist" in capsys.readouterr().err
    feeds = dict(np.load(batch))
    name = next(n for n, v in feeds.items() if v.dtype == np.float32)
    np.savez(tmp_path / "short.npz", **{**feeds, name: feeds[name][:1]})
    assert program(*WORDS, "--inputs", tmp_path / "short.npz") == 2
    assert name in capsys.readouterr().err
    np.savez(tmp_path / "nan.npz", **{**feeds, name: np.full_like(feeds[name], np.nan)})
    assert program(*WORDS, "--inputs", tmp_path / "nan.npz") == 3
    assert "not finite" in capsys.readouterr().err


@pytest.fixture
def points(program, batch, capsys):
    assert program(*WORDS, "--inputs", batch, "--json") == 0
    return json.loads(capsys.readouterr().out)["frontiers"][0]["points"]


def test_optimize_takes_the_point_asked_for(program, batch, points, capsys):
    words = ("optimize", *WORDS[1:], "--inputs", batch, "--dry-run", "--json", "--probe", "off")
    near = points[1]
    cases = [
        (("--max-error", max(near["predicted_error"], near["emulated_error"]) * 1.001), near),
        (("--max-error", 0), points[-1]),
        (("--max-time-us", near["predicted_us"] * 1.0001), near),
    ]
    for limit, point in cases:
        assert program(*words, *limit) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["predicted_us"] == pytest.approx(point["predicted_us"])
        assert f"{point['predicted_error']:.2g}, and" in captured.err


@pytest.fixture(scope="module")
def both_formats(tmp_path_factory):
    """A step between whose formats the better one changes with the error: FP16 overflows in one product."""
    folder = tmp_path_factory.mktemp("both")
    model = onnx.parser.parse_model(STEP)
    onnx.save(model, folder / "step.onnx")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((1024, 1024), np.float32) / 32 for _ in range(2))
    np.savez(folder / "batch.npz", x=x, big=x * np.float32(1e8), w=w)
    return folder / "step.onnx", "--device", "h200", "--execution", "graph", "--inputs", folder / "batch.npz"


STEP = """<ir_version: 9, opset_import: ["": 20]>
g (float[1024,1024] x, float[1024,1024] big, float[1024,1024] w) => (float[1024,1024] y, float[1024] z) {
    [a1] x1 = MatMul(x, w)
    [a2] x2 = MatMul(x1, w)
    [a3] x3 = MatMul(x2, w)
    [a4] x4 = MatMul(x3, w)
    [a5] x5 = MatMul(x4, w)
    [a6] y = MatMul(x5, w)
    [b1] u1 = MatMul(big, w)
    [b2] u2 = MatMul(u1, w)
    [b3] u = MatMul(u2, w)
    [axes] one = Constant <value_ints = [1]> ()
    [c] z = ReduceMean <keepdims = 0> (u, one)
}"""


def test_one_frontier_for_each_format_and_their_envelope(program, both_formats, capsys, tmp_path):
    words = ("frontier", *both_formats, "--precision", "auto")
    assert program(*words, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["low"] for one in document["frontiers"]] == ["fp16", "bf16"]
    rows = [
        (p["predicted_us"], p["predicted_error"] ** 2, p)
        for one in document["frontiers"]
        for p in one["points"]
    ]
    for us, error, point in rows:
        # On the lower left hull: below every line between two others, and beaten by none.
        is_beaten = any(a <= us and b <= error and (a, b) != (us, error) for a, b, _ in rows)
        is_told = next(p for a, b, p in rows if (a, b) == (us, error)) is not point  # FP32, in either format
        is_above = any(
            a < us < c and error > b + (d - b) * (us - a) / (c - a) * (1 + 1e-9)
            for a, b, _ in rows
            for c, d, _ in rows
        )
        assert point["best_of_all"] is not (is_beaten or is_above or is_told), point
    marked = {low["low"]: sum(p["best_of_all"] for p in low["points"]) for low in document["frontiers"]}
    assert (
        min(marked.values()) > 0 < min(len(one["points"]) - 1 for one in document["frontiers"])
    )  # else either format would do
    report = tmp_path / "both.html"
    pytest.importorskip("matplotlib")
    assert program(*words, "--report", report, "--plot", tmp_path / "both.svg") == 0
    printed = capsys.readouterr().out
    assert "best of all" in printed
    assert "BF16: " in printed
    assert "BF16, predicted" in (tmp_path / "both.svg").read_text()
    assert report.read_text().count("<td>BF16</td>") == len(document["frontiers"][1]["points"])


def test_the_better_format_within_a_limit(program, both_formats, capsys):
    assert program("frontier", *both_formats, "--precision", "auto", "--json") == 0
    frontiers = json.loads(capsys.readouterr().out)["frontiers"]
    words = ("optimize", *both_formats, "--precision", "auto", "--dry-run", "--json", "--probe", "off")
    chosen = {}
    for fastest in (one["points"][0] for one in frontiers):
        limit = 1.01 * max(fastest["predicted_error"], fastest["emulated_error"])
        assert program(*words, "--max-error", limit, "--min-gain", 0) == 0
        captured = capsys.readouterr()
        plan = json.loads(captured.out)
        within = [
            (p["predicted_us"], one["low"])
            for one in frontiers
            for p in one["points"]
            if max(p["predicted_error"], p["emulated_error"]) <= limit
        ]
        assert (pytest.approx(plan["predicted_us"]), plan["low"]) == min(within)
        assert f"{plan['low'].upper()} was chosen" in captured.err
        chosen[limit] = plan["low"]
    assert len({*chosen.values()}) == 2
    longest_us = max(p["predicted_us"] for one in frontiers for p in one["points"])
    assert program(*words, "--max-time-us", longest_us) == 0
    assert json.loads(capsys.readouterr().out)["predicted_us"] <= longest_us
    assert program(*words, "--max-time-us", 1e-3) == 2
    assert "the fastest is predicted to take" in capsys.readouterr().err


def test_limits_that_cannot_be_met_or_make_no_sense(program, batch, points, capsys):
    words = ("optimize", *WORDS[1:], "--dry-run", "--probe", "off")
    with_batch = (*words, "--inputs", batch)
    assert program(*with_batch, "--max-time-us", 1.0) == 2
    assert "the fastest is predicted to take" in capsys.readouterr().err
    for wrong, why in (
        ((*words, "--max-error", 0.1), "needs a batch"),
        ((*with_batch, "--max-error", 0.1, "--max-time-us", 1), "cannot be combined"),
        ((*with_batch, "--max-error", 0.1, "--strategy", "campo"), "--strategy campo"),
        ((*with_batch, "--max-time-us", 1, "--verify", "--repair"), "--repair"),
        ((*with_batch, "--max-error", -1), "greater than or equal to 0"),
    ):
        assert program(*wrong) == 2
        assert why in capsys.readouterr().err
