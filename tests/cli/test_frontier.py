"""``campo-onnx frontier`` as its users see it."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import numpy as np
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
    points = document["points"]
    assert (document["format_version"], document["batches"], document["low"]) == (1, 1, "fp16")
    assert document["runs"] == document["roundings"] > 50
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
    points = json.loads(capsys.readouterr().out)["points"]
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
    return json.loads(capsys.readouterr().out)["points"]


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
