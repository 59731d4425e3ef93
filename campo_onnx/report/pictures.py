"""Pictures of a report: drawn twice, for a light and for a dark page, and held in it as data."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from campo_onnx.charts import Bar, dark, draw_bars, planned_times_us, to_svg
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.traffic import Traffic
from campo_onnx.wording import duration, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture as addresses that hold it whole.

    Parameters
    ----------
    light, dark
        For a light and for a dark page.
    """

    light: str
    dark: str


def pictured(draw: Callable[[], "Figure"]) -> Picture:
    """Draw a picture for both kinds of page."""
    light = _address(to_svg(draw()))
    with dark():
        return Picture(light=light, dark=_address(to_svg(draw())))


def step_picture(plan: Plan) -> Picture:
    """Draw the predicted step before and after."""
    before = Bar(
        name="FP32",
        parts={family: us / 1000 for family, us in planned_times_us(plan, as_given=True).items()},
        casts=0.0,
        text=duration(plan.fp32_us),
    )
    after = Bar(
        name=f"planned, {plan.low.value.upper()}" if plan.low_nodes else "planned",
        parts={family: us / 1000 for family, us in planned_times_us(plan).items()},
        casts=plan.cast_us / 1000,
        text=f"{duration(plan.predicted_us)}, {plan.speedup:.2f}x",
    )
    return _bars([before, after], "predicted step in ms")


def bytes_picture(before: Traffic, after: Traffic) -> Picture:
    """Draw the bytes that a step moves before and after; all Casts are one part."""
    bars = [
        Bar(
            name=name,
            parts={family: moved.moved_bytes / 1e9 for family, moved in traffic.by_family.items()},
            casts=traffic.casts.moved_bytes / 1e9,
            text=size(traffic.total.moved_bytes),
        )
        for name, traffic in (("FP32", before), ("planned", after))
    ]
    return _bars(bars, "bytes read and written in one step, in GB (counted)")


def plans_picture(plans: Sequence[Plan]) -> Picture:
    """Draw the predicted step of every strategy."""
    from campo_onnx.charts import draw_plans

    return pictured(lambda: draw_plans(plans, title=""))


def _bars(bars: Sequence[Bar], xlabel: str) -> Picture:
    return pictured(lambda: draw_bars(bars, title="", xlabel=xlabel))


def _address(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
