"""Pictures of a report: drawn twice, for a light and for a dark page, and held in it as data."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from campo_onnx.bench.result import BenchResult
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.traffic import Traffic
from campo_onnx.planning.frontier import FrontierPlan
from campo_onnx.report.charts import (
    Bar,
    draw_bars,
    draw_bench,
    draw_frontiers,
    draw_plans,
    light_and_dark,
    planned_times_us,
)
from campo_onnx.wording import duration, gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture as addresses that hold it whole."""

    light: str
    dark: str


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
            text=gigabytes(traffic.total.moved_bytes),
        )
        for name, traffic in (("FP32", before), ("planned", after))
    ]
    return _bars(bars, "bytes read and written in one step, in GB (counted)")


def plans_picture(plans: Sequence[Plan], measured_us: Sequence[float | None]) -> Picture:
    """Draw the predicted step of every strategy, and the measured one where there is one."""
    return _picture(*light_and_dark(lambda: draw_plans(plans, title="", measured_us=measured_us, wide=True)))


def frontier_picture(frontiers: Sequence[Sequence[FrontierPlan]]) -> Picture:
    """Draw error over predicted step, a line for each format."""
    return _picture(*light_and_dark(lambda: draw_frontiers(frontiers, title="", wide=True)))


def bench_picture(result: BenchResult) -> Picture:
    """Draw measured steps, with intervals and verdicts."""
    return _picture(*light_and_dark(lambda: draw_bench(result, title="Measured steps", wide=True)))


def _bars(bars: Sequence[Bar], xlabel: str) -> Picture:
    return _picture(*light_and_dark(lambda: draw_bars(bars, title="", xlabel=xlabel, wide=True)))


def _picture(light: str, dark: str) -> Picture:
    return Picture(light=_address(light), dark=_address(dark))


def _address(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
