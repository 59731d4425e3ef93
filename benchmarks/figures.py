"""Pictures: one idea each, told apart by colour and shape, the same bytes whenever the data is the same."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY

# Okabe and Ito's colours, which the colour-blind tell apart, and wine red, each with a shape of its own.
_OPTIMAL = ("#D55E00", "*")  # no other series has it, and the series has no other
_STYLES = (
    ("#000000", "s"), ("#E69F00", "o"), ("#56B4E9", "v"), ("#009E73", "^"), ("#CC79A7", "D"),
    ("#999999", "P"), ("#0072B2", "X"), ("#F0E442", "<"), ("#882255", ">"),
)  # fmt: skip
_SIZES = MappingProxyType({"*": 110, "P": 55, "X": 55})  # thin shapes look smaller
_RC = MappingProxyType(
    {"svg.hashsalt": "campo-eval", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
)
_DASHES = ("-", "--", ":", "-.")  # of curves, beside their colours
_ROW_IN, _WIDTH_IN, _FRAME_IN = 0.42, 7.4, 1.75

Values = Mapping[str, Mapping[str, float]]
"""By row (a model), by series (a strategy); what is missing is not drawn."""


def styles_of(series: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Give each series a colour and a shape of its own.

    Raises UsageError if there are more series than can be told apart.
    """
    names = [*dict.fromkeys(series)]
    others = [name for name in names if name != DEFAULT_STRATEGY]
    if len(others) > len(_STYLES):
        raise UsageError(
            f"{len(names)} series cannot be told apart in one picture",
            why=f"there are {len(_STYLES)} styles, and one of {DEFAULT_STRATEGY}",
            remedy="Draw fewer, or two pictures.",
        )
    styles = dict(zip(others, _STYLES, strict=False))
    return {name: styles.get(name, _OPTIMAL) for name in names}


@contextmanager
def _figure(path: Path, width: float, height: float) -> Iterator[Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(dict(_RC)):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path, format="svg", metadata={"Date": None})


@contextmanager
def _rows(rows: Sequence[str], path: Path, title: str, axis: str, columns: int) -> Iterator[Any]:
    """Give axes with a place for each row, and write them."""
    with _figure(path, _WIDTH_IN, _FRAME_IN + _ROW_IN * len(rows)) as figure:
        axes = figure.add_subplot()
        yield axes
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(axis)
        for y in range(1, len(rows)):
            axes.axhline(y - 0.5, color="#eeeeee", linewidth=0.8, zorder=0)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=11)
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def dots(
    values: Values, series: Sequence[str], path: Path, *, title: str, axis: str,
    reference: float | None = None, logarithmic: bool = False,
) -> None:  # fmt: skip
    """Draw a row of dots for each model."""
    with _rows(list(values), path, title, axis, 4) as axes:
        for position, (name, (colour, shape)) in enumerate(styles_of(series).items()):
            points = [(row[name], y) for y, row in enumerate(values.values()) if name in row]
            points = [(x, y) for x, y in points if x > 0 or not logarithmic]
            # Shifted a little, so that equal values do not hide each other.
            shift = (position - (len(series) - 1) / 2) * 0.07
            axes.scatter(
                [x for x, _ in points], [y + shift for _, y in points], c=colour, marker=shape,
                s=_SIZES.get(shape, 42), label=name, edgecolors="white", linewidths=0.5, zorder=3,
            )  # fmt: skip
        if logarithmic:
            from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        if reference is not None:
            axes.axvline(reference, color="#555555", linewidth=1, linestyle="--", zorder=2)


def stacked(values: Values, parts: Sequence[str], path: Path, *, title: str, axis: str) -> None:
    """Draw a bar for each row, put together from parts; parts below zero go to the left."""
    with _rows(list(values), path, title, axis, 2) as axes:
        ends = {True: [0.0] * len(values), False: [0.0] * len(values)}
        for (colour, hatch), part in zip((("#0072B2", ""), ("#E69F00", "//")), parts, strict=True):
            widths = [row.get(part, 0.0) for row in values.values()]
            left = [ends[width >= 0][y] for y, width in enumerate(widths)]
            axes.barh(range(len(left)), widths, left=left, color=colour, hatch=hatch, label=part, height=0.6)
            for y, width in enumerate(widths):
                ends[width >= 0][y] += width
        axes.axvline(0, color="#555555", linewidth=1)


Panels = Mapping[str, Mapping[str, Sequence[Any]]]
"""By title of a diagram, by label of a curve."""


@contextmanager
def _panels(
    panels: Panels,
    path: Path,
    height: float,
    points: Callable[[Sequence[Any]], Sequence[Any]],
    free: str,
) -> Iterator[list[Any]]:
    """Draw diagrams of curves, two in a row; give their axes, and write them, legends in a free corner."""
    rows = (len(panels) + 1) // 2
    with _figure(path, _WIDTH_IN * 1.3, height * rows) as figure:
        every = [figure.add_subplot(rows, 2, position) for position in range(1, len(panels) + 1)]
        for axes, (title, by_label) in zip(every, panels.items(), strict=True):
            styles = styles_of(by_label).values()
            for (label, values), (colour, _), dashes in zip(by_label.items(), styles, cycle(_DASHES)):
                axes.plot(*points(values), color=colour, linestyle=dashes, label=label)
            axes.set_title(title, fontsize=10)
            axes.grid(color="#dddddd", linewidth=0.6)
        yield every
        for axes in every:
            # Where to is said: matplotlib looks for a place and warns of the time that took.
            axes.legend(loc=free, frameon=False)


def curves(panels: Panels, path: Path, *, axis: str, steps: str) -> None:
    """Draw diagrams of curves with a logarithmic vertical axis."""
    with _panels(
        panels, path, 2.9, lambda values: (range(1, len(values) + 1), values), "upper right"
    ) as every:
        for axes in every:
            axes.set_yscale("log")
            axes.set(xlabel=steps, ylabel=axis)


def errors(panels: Panels, path: Path) -> None:
    """Draw diagrams of errors over steps, each a share of the FP32 step and an error."""
    with _panels(panels, path, 2.9, lambda pairs: [*zip(*pairs, strict=True)], "lower left") as every:
        for axes in every:
            axes.set_yscale("log")
            axes.set(xlabel="step over the one in FP32", ylabel="relative error")


def distributions(panels: Panels, path: Path, *, axis: str) -> None:
    """Draw diagrams of distributions: the share of cases up to a value, by quantiles."""
    from matplotlib.ticker import PercentFormatter

    def shares(quantiles: Sequence[float]) -> Sequence[Any]:
        return quantiles, [100 * i / (len(quantiles) - 1) for i in range(len(quantiles))]

    with _panels(panels, path, 2.7, shares, "lower right") as every:
        for axes in every:
            axes.axvline(1, color="#555555", linewidth=0.8)
            axes.yaxis.set_major_formatter(PercentFormatter())
            axes.set(xlabel=axis, ylabel="networks up to that")
