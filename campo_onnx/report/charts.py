"""Figures, drawn by matplotlib: predicted steps of strategies, measured steps of a benchmark.

The suffix of the file chooses the format. Bars differ by hatching as well as by colour, so that they can
be told apart in black and white. Names of files and strategies are drawn as they are, never as formulas.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from campo_onnx.bench.result import BenchResult, BenchRow, Outcome
from campo_onnx.errors import UsageError
from campo_onnx.files import replacing
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.frontier import FrontierPlan, envelope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
"""Formats of pictures, by the suffix of the file."""

_OTHERS = "element-wise and others"
_CASTS = "casts"
_GROUPS = {
    Family.MATRIX_PRODUCT: "matrix products and convolutions",
    Family.CONVOLUTION: "matrix products and convolutions",
    Family.RECURRENT: "matrix products and convolutions",
    Family.ATTENTION: "matrix products and convolutions",
    Family.NORMALIZATION: "normalization and softmax",
    Family.SOFTMAX: "normalization and softmax",
    Family.REDUCTION: "reductions and scatters",
    Family.SCATTER: "reductions and scatters",
    Family.MOVEMENT: "data movement and pooling",
    Family.POOLING: "data movement and pooling",
}
_STYLES = {  # colour and hatching; lightness rises from the first to the last
    "matrix products and convolutions": ("#2b4a8b", ""),
    "normalization and softmax": ("#b5563c", "//"),
    "reductions and scatters": ("#4f9d8f", ".."),
    "data movement and pooling": ("#d9a441", "\\\\"),
    _OTHERS: ("#b9bec7", ""),
    _CASTS: ("none", "xx"),  # what is behind shows
}
_MARKERS = {Outcome.FASTER: "^", Outcome.SLOWER: "v"}
_POINTS_DRAWN = 400
_FAR = 3.0  # interquartile ranges: a few disturbed steps would squeeze all others into a line
_LONGEST_NAME = 20  # characters of a graph's name below an axis
_GOLDEN = (5**0.5 - 1) / 2
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "campo-onnx"}
_WIDTH_INCHES, _PAGE_INCHES, _ROW_INCHES = 9.5, 12.25, 0.42


def check_plot(path: Path | None) -> None:
    """Find out before any work whether a figure can be drawn into this file; None if there will be none."""
    if path is None:
        return
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        *others, last = (f".{name}" for name in FORMATS)
        raise UsageError(
            f"--plot {path}: unknown figure format {path.suffix!r}",
            remedy=f"End the name with {', '.join(others)} or {last}.",
        )
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            remedy="Install it with: pip install 'campo-onnx[plot]'",
        )


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format that the suffix names; an existing file is replaced."""
    check_plot(path)
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    # Without dates and random identifiers, so that the same figure is always the same file.
    metadata: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(_SETTINGS), replacing(path) as place:
        figure.savefig(place, format=kind, metadata=metadata.get(kind), dpi=150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One stacked bar."""

    name: str
    parts: Mapping[Family, float]  # its parts by family of operators, Casts of the given graph among movement
    casts: float
    text: str
    mark: float | None = None


def draw_plans(
    plans: Sequence[Plan], *, title: str, measured_us: Sequence[float | None] = (), wide: bool = False
) -> "Figure":
    """Draw the predicted step of each plan as a bar, by family of operators.

    `measured_us` has the measured step of each plan, or None; drawn as a diamond beside the prediction.
    """
    known_us = list(measured_us) or [None] * len(plans)
    bars = [
        Bar(
            name=f"{plan.strategy} ({plan.lists})",
            parts={family: us / 1000 for family, us in planned_times_us(plan).items()},
            casts=plan.cast_us / 1000,
            text=f"{'' if us is None else 'predicted '}{plan.predicted_us / 1000:,.2f} ms, "
            f"{plan.speedup:.2f}x FP32" + ("" if us is None else f"; measured {us / 1000:,.2f} ms"),
            mark=None if us is None else us / 1000,
        )
        for plan, us in zip(plans, known_us, strict=True)
    ]
    is_measured = any(us is not None for us in known_us)
    xlabel = "step in ms: bars are predicted, diamonds measured" if is_measured else "predicted step in ms"
    return draw_bars(bars, title=title, xlabel=xlabel, wide=wide)


def draw_bars(bars: Sequence[Bar], *, title: str, xlabel: str, wide: bool = False) -> "Figure":
    """Draw bars, one below the other, by family of operators."""
    figure = _figure(rows=len(bars), title=title, wide=wide)
    axes = figure.add_subplot()
    heights = np.arange(len(bars))
    left = np.zeros(len(bars))
    stacks = [_by_group(bar) for bar in bars]
    line = axes.spines["bottom"].get_edgecolor()
    for group, (colour, hatch) in _STYLES.items():
        width = np.array([stack[group] for stack in stacks])
        axes.barh(
            heights, width, 0.72, left=left, label=group, color=colour, hatch=hatch,
            edgecolor=line, linewidth=0.5,
        )  # fmt: skip
        left += width
    for height, bar, end in zip(heights, bars, left, strict=True):
        if bar.mark is not None:
            axes.plot([bar.mark], [height], marker="D", color="white", markeredgecolor="black", markersize=8)
        _beside(axes, bar.text, max(float(end), bar.mark or 0.0), int(height))
    longest = max([float(left.max()), *(bar.mark or 0.0 for bar in bars)])
    axes.set_xlim(0, (1.5 if any(bar.mark is not None for bar in bars) else 1.3) * max(longest, 1e-6))
    _label(axes, [bar.name for bar in bars], xlabel)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def planned_times_us(plan: Plan, *, as_given: bool = False) -> dict[Family, float]:
    """Sum predicted times up by family, without inserted Casts."""
    times_us: dict[str, float] = {}
    dropped = set() if as_given else {cast.node for cast in plan.dropped}
    for decision in plan.decisions:
        if decision.node not in dropped:
            own_us = decision.fp32_us if as_given else decision.planned_us
            times_us[decision.op_type] = times_us.get(decision.op_type, 0.0) + own_us
    families: dict[Family, float] = {}
    for op_type, us in times_us.items():
        family = spec(OpKey.parse(op_type)).family
        families[family] = families.get(family, 0.0) + us
    return families


def _beside(axes: "Axes", text: str, end: float, height: int) -> None:
    axes.annotate(text, (end, height), (9, 0), textcoords="offset points", va="center", parse_math=False)


def _by_group(bar: Bar) -> dict[str, float]:
    sums = dict.fromkeys(_STYLES, 0.0)
    for family, part in bar.parts.items():
        sums[_GROUPS.get(family, _OTHERS)] += part
    sums[_CASTS] = bar.casts
    return sums


def light_and_dark(draw: "Callable[[], Figure]") -> tuple[str, str]:
    """Draw a figure as SVG without a background, for a light page and for a dark one."""
    import matplotlib

    light = "#e8eaee"
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    pictures = []
    for colours in ({}, dict.fromkeys(names, light)):
        text = io.StringIO()
        with matplotlib.rc_context({**_SETTINGS, **colours}):
            draw().savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        pictures.append(text.getvalue())
    return pictures[0], pictures[1]


def draw_bench(result: BenchResult, *, title: str, wide: bool = False) -> "Figure":
    """Draw every measured step as a dot, with median, confidence interval and verdict of each graph."""
    interrupted = ", interrupted" if result.interrupted else ""
    machine = f"{result.machine.device} ({result.machine.provider}), {result.steps} rounds{interrupted}"
    figure = _figure(rows=len(result.rows), title=f"{title}: {machine}", wide=wide)
    compared = any(row.speedup is not None for row in result.rows)
    ratios = (5, 3) if compared else (1,)
    axes, *beside = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    samples = [np.asarray(result.samples_us.get(row.name, ()), np.float64) / 1000 for row in result.rows]
    last_ms = max((_last_shown(times) for times in samples if len(times)), default=1.0)
    for height, (row, times_ms) in enumerate(zip(result.rows, samples, strict=True)):
        _draw_times(axes, height, row, times_ms, last_ms)
    names = [row.name for row in result.rows]
    _label(axes, names, "measured step in ms\n(bar: 95 % interval of the median)")
    for right in beside:
        _draw_speedups(right, result)
    outermost = beside[-1] if beside else axes
    for height, (row, times_ms) in enumerate(zip(result.rows, samples, strict=True)):
        text = _summary(row, int(np.sum(times_ms > last_ms)))
        place = outermost.get_yaxis_transform()
        outermost.text(1.03, height, text, va="center", transform=place, parse_math=False)
    return figure


def draw_frontiers(
    frontiers: Sequence[Sequence[FrontierPlan]], *, title: str, wide: bool = False
) -> "Figure":
    """Draw error over step time: a line through what is predicted, dots where the plan was emulated.

    Points of a frontier come the fastest first, for each format. Of several frontiers the envelope is drawn
    broadly.
    """
    figure = _figure(rows=10, title=title, wide=wide)
    axes = figure.add_subplot()
    every = [one for plans in frontiers for one in plans]
    if len(frontiers) > 1:
        axes.plot(*_predicted(envelope(every)), color="#c8ccd2", linewidth=6, label="best of all")
    for plans, line in zip(frontiers, ("-", "--", ":", "-."), strict=False):
        name = f"{plans[0].low.name}, predicted" if len(frontiers) > 1 else "predicted"
        axes.plot(*_predicted(plans), color="black", linestyle=line, marker=".", label=name)
    emulated = [(one.point.time_us / 1000, one.emulated_error) for one in every]
    dots = [(ms, error) for ms, error in emulated if error is not None and np.isfinite(error)]
    axes.scatter(*zip(*dots, strict=True), color="white", edgecolor="black", zorder=3, label="emulated")
    least = min((one.point.error for one in every if one.point.error > 0), default=1.0)
    axes.set_yscale("symlog", linthresh=least)
    axes.set_xlabel("predicted step in ms")
    axes.set_ylabel("relative error")
    axes.grid(linewidth=0.4, color="#c8ccd2")
    figure.legend(loc="outside lower center", ncols=len(frontiers) + 2, frameon=False)
    return figure


def _predicted(plans: Sequence[FrontierPlan]) -> tuple[list[float], list[float]]:
    return [one.point.time_us / 1000 for one in plans], [one.point.error for one in plans]


def _draw_speedups(axes: "Axes", result: BenchResult) -> None:
    """Draw each speed-up with its interval; one that touches the grey band shows no difference."""
    axes.axvspan(1 - result.tolerance, 1 + result.tolerance, color="#c8ccd2", linewidth=0)
    axes.axvline(1, color="black", linewidth=0.8)
    for height, row in enumerate(result.rows):
        if row.speedup is None:
            continue
        low, high = row.speedup.low, row.speedup.high
        axes.errorbar(
            [row.speedup.median], [height], xerr=[[row.speedup.median - low], [high - row.speedup.median]],
            marker=_MARKERS.get(row.verdict, "o"), color="black", markerfacecolor="white", markersize=7,
            capsize=5, linewidth=2,
        )  # fmt: skip
    _label(
        axes,
        [""] * len(result.rows),
        f"measured speed-up over\n{_short(result.rows[0].name)} (95 % interval)",
    )
    axes.set_yticks([])


def _last_shown(times_ms: "np.typing.NDArray[np.float64]") -> float:
    lower, upper = np.percentile(times_ms, (25, 75))
    return float(min(times_ms.max(), upper + _FAR * (upper - lower)))


def _draw_times(
    axes: "Axes", height: int, row: BenchRow, times_ms: "np.typing.NDArray[np.float64]", last_ms: float
) -> None:
    shown = times_ms[times_ms <= last_ms]
    if len(shown) > _POINTS_DRAWN:
        shown = shown[np.linspace(0, len(shown) - 1, _POINTS_DRAWN).astype(int)]
    # Spread without random numbers: the figure of a result is always the same.
    offsets = (np.arange(len(shown)) * _GOLDEN % 1 - 0.5) * 0.6
    axes.scatter(shown, height + offsets, s=6, color="#8f98a6", linewidths=0)
    if row.step_us is not None:
        low, median, high = (
            value / 1000 for value in (row.step_us.low, row.step_us.median, row.step_us.high)
        )
        axes.hlines(height, low, min(high, last_ms), color="black", linewidth=3)
        axes.plot(
            [min(median, last_ms)], [height], marker=_MARKERS.get(row.verdict, "o"), color="white",
            markeredgecolor="black", markersize=7,
        )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"...{name[-_LONGEST_NAME:]}"


def _summary(row: BenchRow, beyond: int) -> str:
    verdict = row.verdict.value
    if row.speedup is not None:
        verdict += f": {row.speedup.median:.2f}x ({row.speedup.low:.2f} to {row.speedup.high:.2f})"
    parts = [] if row.step_us is None else [f"{row.step_us.median / 1000:.3g} ms"]
    if beyond:
        parts.append(f"{beyond} step{'s' * (beyond > 1)} beyond the edge")
    return "\n".join([verdict, ", ".join(parts)]).rstrip()


def _figure(*, rows: int, title: str, wide: bool = False) -> "Figure":
    from matplotlib.figure import Figure

    size = _PAGE_INCHES if wide else _WIDTH_INCHES, 1.6 + _ROW_INCHES * max(rows, 2)
    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize="large", parse_math=False)
    return figure


def _label(axes: "Axes", names: Sequence[str], xlabel: str) -> None:
    axes.set_yticks(range(len(names)), labels=names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
    axes.set_xlabel(xlabel, parse_math=False)
    axes.grid(axis="x", linewidth=0.4, color="#c8ccd2")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
