"""Figures of the page, from what was measured: ratios by round, predictions beside steps, counts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from benchmarks.measured import NETWORKS
from benchmarks.measured.plans import FP32, PLANS
from benchmarks.measured.sides import OF_TORCH
from campo_onnx.bench.statistics import median_interval, paired_speedup

Facts = dict[str, Any]
Times = Mapping[str, Sequence[float]]

_FEWEST_RANKED = 3


def ratios(numerators: Times, denominators: Times) -> Facts:
    """Give the ratio of each side's times by round, with its interval; sides with few rounds are left out."""
    speedups = {
        side: paired_speedup(numerators[side], denominators[side])
        for side in numerators
        if side in denominators
    }
    return {side: asdict(ratio) for side, ratio in speedups.items() if ratio is not None}


def against(times: Times, side: str, *, faster: bool) -> Facts:
    """Compare all sides with one: by how much they are faster than it, or it than they."""
    if side not in times:
        return {}
    one = dict.fromkeys(times, times[side])
    return ratios(one, times) if faster else ratios(times, one)


def network_row(name: str, timed: Facts, plans: Facts) -> Facts:
    """Everything about one network."""
    times = timed["rounds_ms"]
    ms = {side: asdict(median_interval(rounds)) for side, rounds in times.items() if rounds}
    optimal_over = against(times, "optimal", faster=False)
    fastest = fastest_of_torch({side: time["median"] for side, time in ms.items()})
    return {
        "name": name,
        "title": title_of(name),
        "ms": ms,
        "over_fp32": against(times, FP32, faster=True),
        "optimal_over": optimal_over,
        "fastest": fastest if fastest in optimal_over else "",
        "losses": timed["losses"],
        "gradients": timed["gradients"],
        "rounds_ms": times,
        "failures": timed["failures"],
        "load": [timed["load"], timed["load_after"]],
        "others_running": timed["others_running"],
        "measured_at": timed["measured_at"],
        "plans": plans,
    }


def title_of(name: str) -> str:
    """Title of a network, with its batch where that is not its own."""
    base, _, batch = name.partition("@")
    return NETWORKS.get(base, base) + (f", batch {batch}" if batch else "")


def points(rows: Sequence[Facts]) -> Iterator[Facts]:
    """Every plan of every network: predicted and measured step."""
    for row in rows:
        for plan in (FP32, *PLANS):
            if plan in row["ms"] and plan in row["plans"]:
                yield {
                    "name": row["name"],
                    "plan": plan,
                    "predicted_ms": row["plans"][plan]["predicted_us"] / 1e3,
                    "measured_ms": row["ms"][plan]["median"],
                }


def prediction(rows: Sequence[Facts]) -> Facts | None:
    """Compare predicted steps with measured ones (Figure 9): mean error, and the ranking of plans."""
    plans = [*points(rows)]
    if len(plans) < _FEWEST_RANKED:
        return None
    by_name = {
        name: [p for p in plans if p["name"] == name] for name in dict.fromkeys(p["name"] for p in plans)
    }
    within = [rank for group in by_name.values() if (rank := spearman(group)) is not None]
    return {
        "plans": len(plans),
        "networks": len(by_name),
        "error": fmean(abs(p["predicted_ms"] / p["measured_ms"] - 1) for p in plans),
        "median_error": median(abs(p["predicted_ms"] / p["measured_ms"] - 1) for p in plans),
        "ratio_error": _ratio_error(by_name),
        "spearman": spearman(plans),
        "within": fmean(within) if within else None,
        "by_plan": {
            plan: fmean(abs(p["predicted_ms"] / p["measured_ms"] - 1) for p in group)
            for plan in (FP32, *PLANS)
            if (group := [p for p in plans if p["plan"] == plan])
        },
        "points": plans,
    }


def _ratio_error(by_name: Mapping[str, Sequence[Facts]]) -> float | None:
    """Mean error of predicted speed-ups over FP32, from which what is wrong with the whole step falls out."""
    errors = []
    for group in by_name.values():
        first = next((p for p in group if p["plan"] == FP32), None)
        for p in group:
            if first is not None and p is not first:
                predicted = first["predicted_ms"] / p["predicted_ms"]
                errors.append(abs(predicted / (first["measured_ms"] / p["measured_ms"]) - 1))
    return fmean(errors) if errors else None


def spearman(plans: Sequence[Facts]) -> float | None:
    """Rank correlation of predicted and measured steps; None where they do not differ or are too few."""
    from scipy.stats import spearmanr

    predicted, measured = ([p[key] for p in plans] for key in ("predicted_ms", "measured_ms"))
    if len(plans) < _FEWEST_RANKED or len({*predicted}) == 1 or len({*measured}) == 1:
        return None
    return float(spearmanr(predicted, measured).statistic)


def casts(rows: Sequence[Facts]) -> Facts:
    """Sum up Casts by plan (Figure 6), and the mean share of FLOPs in BF16 (for Figure 7)."""
    return {
        plan: {
            "casts": sum(row["plans"][plan]["casts"] for row in rows),
            "flops_share": fmean(row["plans"][plan]["flops_share"] for row in rows),
        }
        for plan in PLANS
    }


def over_tf_amp(rows: Sequence[Facts]) -> Facts:
    """Throughput over that of the op list (Figures 4 and 5): geometric mean, most and least."""
    by_plan = {}
    for plan in ("campo", "optimal"):
        gains = [
            row["ms"]["tf-amp"]["median"] / row["ms"][plan]["median"]
            for row in rows
            if plan in row["ms"] and "tf-amp" in row["ms"]
        ]
        if gains:
            mean = math.exp(fmean(map(math.log, gains)))
            by_plan[plan] = {"mean": mean, "most": max(gains), "least": min(gains), "networks": len(gains)}
    return by_plan


def over_torch(rows: Sequence[Facts]) -> Facts:
    """Compare `optimal` with the fastest of torch's sides: geometric mean, most, least, networks behind.

    A network counts as behind where the whole interval is below 1.
    """
    ratios_by_title = {row["title"]: row["optimal_over"][row["fastest"]] for row in rows if row["fastest"]}
    if not ratios_by_title:
        return {}
    medians = {title: ratio["median"] for title, ratio in ratios_by_title.items()}
    return {
        "networks": len(medians),
        "mean": math.exp(fmean(map(math.log, medians.values()))),
        "most": max(medians.values()),
        "least": min(medians.values()),
        "behind": [title for title, ratio in ratios_by_title.items() if ratio["high"] < 1],
    }


def fastest_of_torch(medians: Mapping[str, float]) -> str:
    """Name the fastest of torch's sides; empty where none was measured.

    Examples
    --------
    >>> fastest_of_torch({"torch": 3.0, "compile": 2.0, "optimal": 1.0})
    'compile'
    """
    return min((side for side in OF_TORCH if side in medians), key=lambda side: medians[side], default="")


def single_ops(measured: Facts) -> Facts:
    """Count how often low precision between Casts loses (Table 1)."""
    rows = [row for row in measured["rows"] if row["casts_pay"] is not None]
    return {
        **measured,
        "rows": rows,
        "wrong": sum(row["casts_pay"]["high"] < 1 for row in rows),
        "right": sum(row["casts_pay"]["low"] > 1 for row in rows),
    }
