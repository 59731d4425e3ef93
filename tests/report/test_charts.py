"""Figures: what they show, what they are written as, and what they refuse."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.errors import UsageError
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.comparison import compare
from campo_onnx.planning.options import Options
from campo_onnx.report.charts import FORMATS, check_plot, draw_bench, draw_plans, save_figure
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target

LAYER = Path(__file__).parents[2] / "examples" / "bert_layer.onnx"
HEADS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def plans():
    rows = compare(LAYER, Options(target=target("v100"), lists=preset("campo"))).rows
    return [row.plan for row in rows]


def result(**samples_us: tuple[float, ...]) -> BenchResult:
    rows = tuple(
        BenchRow(
            name=name,
            step_us=Interval(median=float(np.median(times)), low=min(times), high=max(times))
            if times
            else None,
            speedup=Interval(median=1.5, low=1.4, high=1.6) if times and number else None,
            verdict=(Outcome.FASTER if number else Outcome.BASELINE) if times else Outcome.FAILED,
        )
        for number, (name, times) in enumerate(samples_us.items())
    )
    return BenchResult(
        machine=machine("cpu", 1),
        rows=rows,
        steps=3,
        measured_at="2026-01-01T00:00:00+00:00",
        samples_us=samples_us,
        tolerance=0.01,
    )


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text")))


def drawn_times_ms(figure) -> np.ndarray:
    """Every dot of a benchmark's figure."""
    dots = [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]
    return np.sort(np.concatenate([np.asarray(c.get_offsets())[:, 0] for c in dots]))


def test_bars_are_the_predicted_steps_by_family(plans) -> None:
    figure = draw_plans(plans, title="t")
    widths_ms = sum(
        np.array([bar.get_width() for bar in family.patches]) for family in figure.axes[0].containers
    )
    # A Cast of the given graph that a plan drops still counts among its decisions.
    assert widths_ms == pytest.approx([plan.predicted_us / 1000 for plan in plans], rel=0.01)


def test_a_bar_says_its_time_and_speed_up(plans) -> None:
    shown = texts(draw_plans(plans, title="t"))
    for plan in plans:
        assert f"{plan.strategy} ({plan.lists})" in shown
        assert f"{plan.predicted_us / 1000:,.2f} ms, {plan.speedup:.2f}x FP32" in shown
    assert "predicted step" in shown


def test_every_group_of_families_has_its_place(plans) -> None:
    containers = draw_plans(plans, title="t").axes[0].containers
    widths = {group.get_label(): sum(bar.get_width() for bar in group.patches) for group in containers}
    assert all(width > 0 for width in widths.values()), widths
    assert widths["matrix products and convolutions"] == max(widths.values())


def test_families_differ_in_black_and_white(plans) -> None:
    looks = set()
    for family in draw_plans(plans, title="t").axes[0].containers:
        bar = family.patches[0]
        lightness = float(np.dot((0.299, 0.587, 0.114), bar.get_facecolor()[:3]))
        looks.add((bar.get_hatch(), round(lightness, 1)))
    assert len(looks) == len(draw_plans(plans, title="t").axes[0].containers)


def test_every_step_is_a_dot() -> None:
    samples = {"a": (1000.0, 1100.0, 1200.0, 1150.0), "b": (2000.0, 2100.0)}
    figure = draw_bench(result(**samples), title="t")
    assert drawn_times_ms(figure) == pytest.approx(sorted(np.concatenate(list(samples.values())) / 1000))
    shown = texts(figure)
    assert "1.12 ms" in shown
    assert "1.50x (1.40 to 1.60)" in shown
    assert "faster" in shown
    assert "measured step" in shown
    assert "faster: 1.50x (1.40 to 1.60)" in shown
    assert f"t: {machine('cpu', 1).device} (cpu), 3 rounds" in shown


def test_speed_ups_stand_beside_with_their_intervals() -> None:
    figure = draw_bench(result(a=(1.0, 2.0), b=(1.0, 2.0)), title="t")
    _, right = figure.axes
    (drawn,) = (c for c in right.containers if hasattr(c, "has_xerr"))
    (whisker,) = drawn.lines[2][0].get_segments()
    assert whisker[:, 0] == pytest.approx([1.4, 1.6])
    assert drawn.lines[0].get_xdata() == pytest.approx([1.5])
    assert "measured speed-up over\na (95 %" in right.get_xlabel()
    assert len(draw_bench(result(a=(1.0, 2.0)), title="t").axes) == 1


def test_measured_steps_are_diamonds_beside_predicted_bars(plans) -> None:
    measured_us = [None, *(1.2 * plan.predicted_us for plan in plans[1:])]
    figure = draw_plans(plans, title="t", measured_us=measured_us)
    drawn = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert drawn == pytest.approx([us / 1000 for us in measured_us if us is not None])
    assert "bars are predicted, diamonds measured" in texts(figure)
    assert "diamonds" not in texts(draw_plans(plans, title="t"))


def test_many_steps_are_thinned_out() -> None:
    times = tuple(np.random.default_rng(0).lognormal(8, 0.1, 1000))
    assert len(drawn_times_ms(draw_bench(result(a=times), title="t"))) == 400


def test_disturbed_steps_are_counted_at_the_edge() -> None:
    figure = draw_bench(result(a=(*np.linspace(1000, 1010, 99), 90_000.0)), title="t")
    assert drawn_times_ms(figure).max() < 2
    assert "1 step beyond the edge" in texts(figure)


@pytest.mark.parametrize("samples", [{"a": ()}, {"a": (5.0,)}, {"a": (7.0, 7.0, 7.0), "b": ()}])
def test_few_steps_can_be_drawn(samples, tmp_path) -> None:
    figure = draw_bench(result(**samples), title="t")
    save_figure(figure, tmp_path / "few.svg")
    assert ("failed" in texts(figure)) == (not all(samples.values()))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_suffix_chooses_the_format_and_the_file_is_always_the_same(kind, tmp_path, plans) -> None:
    written = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{kind.upper()}"
        save_figure(draw_plans(plans, title="t"), path)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(HEADS[kind])


def test_names_are_text_and_no_formulas(tmp_path) -> None:
    name = "$\\frac{<b>&"
    save_figure(draw_bench(result(**{name: (1.0, 2.0)}), title=name), tmp_path / "names.svg")
    shown = "".join(ElementTree.parse(tmp_path / "names.svg").getroot().itertext())
    assert shown.count(name) == 2


@pytest.mark.parametrize("name", ["steps", "steps.jpeg", "steps.svg.gz"])
def test_other_suffixes_are_refused(name) -> None:
    with pytest.raises(UsageError, match=r"End the name with \.svg, \.png or \.pdf"):
        check_plot(Path(name))


def test_without_matplotlib_the_message_says_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("campo_onnx.report.charts.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'campo-onnx\[plot\]'"):
        check_plot(Path("steps.svg"))
