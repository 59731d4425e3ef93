"""The picture of step times."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from campo_onnx.bench.chart import chart
from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.runtime.providers import machine

SVG = "{http://www.w3.org/2000/svg}"


def result(**samples_us: tuple[float, ...]) -> BenchResult:
    rows = tuple(
        BenchRow(name=name, step_us=None, speedup=None, verdict=Outcome.BASELINE if times else Outcome.FAILED)
        for name, times in samples_us.items()
    )
    return BenchResult(
        machine=machine("cpu", 1),
        rows=rows,
        steps=3,
        measured_at="2026-01-01T00:00:00+00:00",
        samples_us=samples_us,
        tolerance=0.01,
    )


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_a_dot_for_every_step_and_a_median() -> None:
    drawn = chart(result(a=(1000.0, 1100.0, 1200.0, 1150.0), b=(2000.0, 2100.0)), title="A < B")
    root = ElementTree.fromstring(drawn)
    assert "A < B" in texts(drawn)
    assert len(list(root.iter(f"{SVG}circle"))) == 6
    assert "1.12 ms" in " ".join(texts(drawn))


def test_dots_stay_on_the_paper() -> None:
    times = tuple(np.random.default_rng(0).lognormal(8, 1, 1000))
    root = ElementTree.fromstring(chart(result(a=times), title="t"))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    dots = list(root.iter(f"{SVG}circle"))
    assert 300 < len(dots) <= 400
    assert all(0 < float(d.get("cx", -1)) < width and 0 < float(d.get("cy", -1)) < height for d in dots)


def test_disturbed_steps_are_counted_at_the_edge() -> None:
    drawn = chart(result(a=(*np.linspace(1000, 1010, 99), 90_000.0)), title="t")
    assert any("1 beyond" in text for text in texts(drawn))


def test_a_graph_that_failed_has_no_dots() -> None:
    drawn = chart(result(a=(1000.0, 1001.0), b=()), title="t")
    assert "failed" in texts(drawn)


@pytest.mark.parametrize("samples", [{"a": ()}, {"a": (5.0,)}, {"a": (7.0, 7.0, 7.0)}])
def test_little_to_draw(samples) -> None:
    ElementTree.fromstring(chart(result(**samples), title="t"))


def test_readable_on_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in chart(result(a=(1.0, 2.0)), title="t")
