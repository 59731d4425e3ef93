"""A picture of how step times are distributed: one row a graph, a box over its steps (SVG)."""

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import numpy as np

from campo_onnx.bench.result import BenchResult, Outcome

_WIDTH, _LABEL_WIDTH, _PLOT_WIDTH = 940, 190, 620
_TOP, _ROW_HEIGHT, _BAND = 62, 46, 26
_DOT, _DOTS_DRAWN = 2.2, 400
_FAR = 3.0  # widths of the box beyond it: a few disturbed steps would squeeze all others into a line
_LINES = 7  # of the grid, at most
_GOLDEN = (math.sqrt(5) - 1) / 2
_COLOURS = {Outcome.FASTER: "#3ca951", Outcome.SLOWER: "#ff725c"}
_COLOUR = "#4269d0"
# Viewers that do not know the reader's scheme show the light one.
_STYLE = """<style>
  .paper { fill: #ffffff } .ink { fill: #1b1e23 } .faint { fill: #6b7280 } .line { stroke: #d0d4db }
  .median { stroke: #1b1e23 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #14171c } .ink { fill: #e6e8ec } .faint { fill: #9aa1ac } .line { stroke: #363c46 }
    .median { stroke: #e6e8ec }
  }
</style>"""


def chart(result: BenchResult, *, title: str) -> str:
    """Draw every step of every graph as a dot, with the median and the middle half over them.

    Parameters
    ----------
    result
        A benchmark.
    title
        Heading of the picture.

    Returns
    -------
    str
        An SVG document. Steps beyond the right edge are counted there.
    """
    samples = [result.samples_us.get(row.name, ()) for row in result.rows]
    low, high = _range(samples)
    height = _TOP + _ROW_HEIGHT * len(samples) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        _STYLE,
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        f'<text class="ink" x="10" y="20" font-size="15">{escape(title)}</text>',
        f'<text class="faint" x="10" y="40">{escape(_subtitle(result))}</text>',
        *_axis(low, high, height),
    ]
    for index, (row, times_us) in enumerate(zip(result.rows, samples, strict=True)):
        y = _TOP + index * _ROW_HEIGHT
        parts.append(
            f'<text class="ink" x="10" y="{y + _BAND / 2 + 4:.1f}">{escape(_short(row.name))}</text>'
        )
        if times_us:
            parts += _row(times_us, y, low, high, _COLOURS.get(row.verdict, _COLOUR))
        else:
            parts.append(f'<text class="faint" x="{_LABEL_WIDTH}" y="{y + 17}">{row.verdict.value}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _subtitle(result: BenchResult) -> str:
    ended = ", interrupted" if result.interrupted else ""
    return (
        f"{result.machine.device} ({result.machine.provider}), {result.steps} rounds{ended}; "
        "a dot is a step, the box its middle half"
    )


def _range(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    taken = [times_us for times_us in samples if times_us]
    if not taken:
        return 0.0, 1.0
    low = min(map(min, taken))
    high = max(map(_last_shown, taken))
    margin = 0.03 * (high - low) or 0.01 * high
    return max(0.0, low - margin), high + margin


def _last_shown(times_us: Sequence[float]) -> float:
    lower, upper = np.percentile(times_us, (25, 75))
    return min(max(times_us), float(upper + _FAR * (upper - lower)))


def _axis(low: float, high: float, height: int) -> Iterator[str]:
    step = _tick(high - low)
    first = math.ceil(low / step)
    digits = max(0, -math.floor(math.log10(step / 1000)))
    for index in range(first, math.floor(high / step) + 1):
        x = _x(index * step, low, high)
        yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 26}"/>'
        yield (
            f'<text class="faint" x="{x:.1f}" y="{height - 10}" text-anchor="middle">'
            f"{index * step / 1000:.{digits}f} ms</text>"
        )


def _tick(span: float) -> float:
    """Distance of grid lines: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(span / _LINES))
    return next((power * factor for factor in (1, 2, 5) if power * factor * _LINES >= span), power * 10)


def _row(times_us: Sequence[float], y: float, low: float, high: float, colour: str) -> Iterator[str]:
    drawn = np.asarray(times_us)
    if len(drawn) > _DOTS_DRAWN:
        drawn = drawn[np.linspace(0, len(drawn) - 1, _DOTS_DRAWN).astype(int)]
    for index, time_us in enumerate(drawn):
        if time_us <= high:
            # Spread over the band without drawing lots: the picture of a result is always the same.
            dot_y = y + (index * _GOLDEN % 1) * _BAND
            yield (
                f'<circle cx="{_x(time_us, low, high):.1f}" cy="{dot_y:.1f}" r="{_DOT}" '
                f'fill="{colour}" fill-opacity="0.5"/>'
            )
    quartiles = np.percentile(times_us, (25, 50, 75))
    left, middle, right = (_x(min(float(value), high), low, high) for value in quartiles)
    yield (
        f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{_BAND}" '
        f'fill="{colour}" fill-opacity="0.25" stroke="{colour}"/>'
    )
    yield (
        f'<line class="median" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 2}" y2="{y + _BAND + 2}" '
        'stroke-width="2"/>'
    )
    text = f"{quartiles[1] / 1000:.3g} ms"
    if beyond := int(np.sum(np.asarray(times_us) > high)):
        text += f", {beyond} beyond"
    yield f'<text class="ink" x="{_LABEL_WIDTH + _PLOT_WIDTH + 8}" y="{y + _BAND / 2 + 4:.1f}">{text}</text>'


def _x(time_us: float, low: float, high: float) -> float:
    return _LABEL_WIDTH + (time_us - low) / (high - low) * _PLOT_WIDTH


def _short(name: str, length: int = 26) -> str:
    return name if len(name) <= length else "..." + name[3 - length :]
