"""A picture of where the time goes: one bar a plan, one colour an operator family (SVG)."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from campo_onnx.optimize.plan import Plan

_FAMILIES: tuple[tuple[str, str, frozenset[str]], ...] = (
    (
        "matrix products and convolutions",
        "#4269d0",
        frozenset(
            {"MatMul", "Gemm", "Conv", "ConvTranspose", "com.microsoft:FusedMatMul", "com.microsoft:ConvGrad"}
        ),
    ),
    (
        "normalization and softmax",
        "#efb118",
        frozenset({"BatchNormalization", "LayerNormalization", "LogSoftmax", "Softmax"}),
    ),
    (
        "reductions and scatters",
        "#ff725c",
        frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ScatterElements", "ScatterND"}),
    ),
    (
        "moving and selecting",
        "#6cc5b0",
        frozenset(
            {"Concat", "Expand", "Gather", "GatherElements", "MaxPool", "Pad", "Reshape", "Slice", "Split"}
            | {"Squeeze", "Transpose", "Unsqueeze", "Where"}
        ),
    ),
)
_REST = ("element-wise and others", "#9498a0")
_CASTS = ("casts", "#a463f2")
_BAR_WIDTH, _LABEL_WIDTH, _ROW_HEIGHT, _TOP = 640, 190, 30, 84


def chart(plans: Sequence[Plan], *, title: str) -> str:
    """Draw the predicted step of each plan as a stacked bar.

    Parameters
    ----------
    plans
        Plans of the same graph.
    title
        Heading of the picture.

    Returns
    -------
    str
        An SVG document.
    """
    longest_us = max(plan.predicted_us for plan in plans)
    height = _TOP + _ROW_HEIGHT * len(plans) + 20
    width = _LABEL_WIDTH + _BAR_WIDTH + 110
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
        *_legend(),
    ]
    for row, plan in enumerate(plans):
        y = _TOP + row * _ROW_HEIGHT
        parts.append(f'<text x="10" y="{y + 15}">{escape(plan.strategy)} ({escape(plan.lists)})</text>')
        x = float(_LABEL_WIDTH)
        for name, colour, us in _stack(plan):
            width_px = us / longest_us * _BAR_WIDTH
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width_px:.1f}" height="{_ROW_HEIGHT - 10}" '
                f'fill="{colour}"><title>{escape(name)}: {us / 1000:.2f} ms</title></rect>'
            )
            x += width_px
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{plan.predicted_us / 1000:.2f} ms</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = [], 10.0
    y = 34
    for name, colour in [(name, colour) for name, colour, _ in _FAMILIES] + [_REST, _CASTS]:
        entry_width = 34 + 6.5 * len(name)
        if x + entry_width > _LABEL_WIDTH + _BAR_WIDTH:
            x, y = 10.0, y + 20
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="{y + 10}">{escape(name)}</text>')
        x += entry_width
    return parts


def _stack(plan: Plan) -> list[tuple[str, str, float]]:
    times_us = dict.fromkeys([name for name, _, _ in _FAMILIES] + [_REST[0]], 0.0)
    for decision in plan.decisions:
        family = next((name for name, _, ops in _FAMILIES if decision.op_type in ops), _REST[0])
        times_us[family] += decision.planned_us
    colours = {name: colour for name, colour, _ in _FAMILIES} | dict([_REST])
    stack = [(name, colours[name], us) for name, us in times_us.items()]
    return [*stack, (_CASTS[0], _CASTS[1], plan.cast_us)]
