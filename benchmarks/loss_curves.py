"""Draw loss curves as an SVG file, without a plotting library."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 220, 60, 40, 60
STYLES = (("#333333", ""), ("#d95f02", "6 3"), ("#1b9e77", "2 3"), ("#7570b3", "8 3 2 3"))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram: curves by label, a value for each epoch; the vertical axis is logarithmic."""

    title: str
    curves: Mapping[str, Sequence[float]]


def write_svg(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels two in a row."""
    rows = math.ceil(len(panels) / 2)
    width, height = 2 * (LEFT + WIDTH) + GAP, rows * (TOP + HEIGHT + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, 2)
        lines.append(
            f'<g transform="translate({LEFT + column * (LEFT + WIDTH)} {TOP + row * (TOP + HEIGHT + GAP)})">'
        )
        lines += [*_drawn(panel), "</g>"]
    path.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def _drawn(panel: Panel) -> Iterable[str]:
    values = [value for curve in panel.curves.values() for value in curve]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    epochs = max(len(curve) for curve in panel.curves.values())

    def x(epoch: float) -> float:
        return (epoch - 1) / (epochs - 1) * WIDTH

    def y(value: float) -> float:
        return (high - math.log10(value)) / (high - low) * HEIGHT

    yield f'<text x="{WIDTH / 2}" y="-12" text-anchor="middle">{escape(panel.title)}: training loss</text>'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>'
    for power in range(low, high + 1):
        level = y(10.0**power)
        yield f'<line x1="0" x2="{WIDTH}" y1="{level:.1f}" y2="{level:.1f}" stroke="#dddddd"/>'
        yield f'<text x="-6" y="{level + 4:.1f}" text-anchor="end">1e{power}</text>'
    for epoch in (1, *range(5, epochs + 1, 5)):
        yield f'<text x="{x(epoch):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{epoch}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT + 32}" text-anchor="middle">epoch</text>'
    for number, (label, curve) in enumerate(panel.curves.items()):
        color, dashes = STYLES[number % len(STYLES)]
        stroke = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}" fill="none"'
        points = " ".join(f"{x(i + 1):.1f},{y(value):.1f}" for i, value in enumerate(curve))
        yield f'<polyline points="{points}" {stroke}/>'
        level = 66 + 16 * number  # below the curves that start high, above those that end low
        yield f'<line x1="{WIDTH - 190}" x2="{WIDTH - 160}" y1="{level}" y2="{level}" {stroke}/>'
        yield f'<text x="{WIDTH - 154}" y="{level + 4}">{escape(label)}</text>'
