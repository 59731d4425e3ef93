"""Random networks summed up: who wins, how much of what was expected, and what --verify would have kept."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.measured import RANDOM
from benchmarks.measured.layers import binned
from benchmarks.measured.plans import ALL_LOW, FP32, PLANS
from benchmarks.population import FAMILIES
from campo_onnx.bench.statistics import paired_speedup

Facts = dict[str, Any]

VERIFIED = "optimal, verified"
_BINS_MS = (0.0, 3.0, 10.0, float("inf"))
_EXPECTED = 0.02  # of the step: less is noise


def population(rows: Sequence[Facts], layers: Sequence[Facts], asked: int) -> Facts | None:
    """Sum up random networks; None where there are none.

    Parameters
    ----------
    rows
        One for each network, with the times by round of its sides.
    layers
        Layers of some of them, timed.
    asked
        How many were asked for.
    """
    if not rows:
        return None
    gains = {plan: _gains(rows, plan) for plan in PLANS} | {VERIFIED: _verified(rows)}
    expected = {plan: _expected(rows, plan) for plan in PLANS}
    return {
        "networks": len(rows),
        "asked": asked,
        "plans": {
            plan: _wins(of, expected.get(plan, {})) | _best([*_with_verified(rows, plan)], plan)
            for plan, of in gains.items()
            if of
        },
        "groups": [*_groups(rows)],
        "layers": binned(layers),
        "quantiles": {
            plan: [
                float(q) for q in np.percentile([gain["median"] for gain in of.values()], range(0, 101, 2))
            ]
            for plan, of in gains.items()
            if of
        },
    }


def _gains(rows: Sequence[Facts], plan: str) -> Mapping[str, Facts]:
    return {row["name"]: row["over_fp32"][plan] for row in rows if plan in row["over_fp32"]}


def _verified(rows: Sequence[Facts]) -> Mapping[str, Facts]:
    """Decide by even rounds as ``optimize --verify`` does, and take the gain from odd ones.

    What is not shown to be faster stays FP32, whose gain is 1.
    """
    gains: dict[str, Facts] = {}
    for row in rows:
        fp32, low = row["rounds_ms"].get(FP32, ()), row["rounds_ms"].get("optimal", ())
        measured = paired_speedup(fp32[1::2], low[1::2])
        if measured is not None:
            interval = (measured.median, measured.low, measured.high) if _is_faster(row) else (1.0, 1.0, 1.0)
            gains[row["name"]] = dict(zip(("median", "low", "high"), interval, strict=True))
    return gains


def _is_faster(row: Facts) -> bool:
    """Whether even rounds show the plan of `optimal` to be faster than FP32."""
    even = (row["rounds_ms"].get(plan, ())[::2] for plan in (FP32, "optimal"))
    decided = paired_speedup(*even)
    return decided is not None and decided.low > 1


def _with_verified(rows: Sequence[Facts], plan: str) -> Iterator[Facts]:
    """Give rows in which a plan has rounds; of `optimal, verified` odd ones of what `--verify` chooses."""
    for row in rows:
        if plan != VERIFIED:
            yield row
        elif row["rounds_ms"].get(FP32) and row["rounds_ms"].get("optimal"):
            odd = {side: rounds[1::2] for side, rounds in row["rounds_ms"].items()}
            choice = "optimal" if _is_faster(row) else FP32
            yield {**row, "rounds_ms": odd | {plan: odd[choice]}, "ms": row["ms"] | {plan: row["ms"][choice]}}


def _expected(rows: Sequence[Facts], plan: str) -> Mapping[str, float]:
    plans = {row["name"]: row["plans"][plan] for row in rows}
    return {name: one["fp32_us"] / one["predicted_us"] for name, one in plans.items()}


def _wins(gains: Mapping[str, Facts], expected: Mapping[str, float]) -> Facts:
    medians = [gain["median"] for gain in gains.values()]
    # Figure 6 of the paper: what was won of what was expected to be won
    shares = [
        (1 - 1 / gains[name]["median"]) / (1 - 1 / speedup)
        for name, speedup in expected.items()
        if name in gains and 1 - 1 / speedup > _EXPECTED
    ]
    return {
        "slower": sum(gain["high"] < 1 for gain in gains.values()),
        "faster": sum(gain["low"] > 1 for gain in gains.values()),
        "least": min(medians),
        "median": median(medians),
        "mean": fmean(medians),
        "most": max(medians),
        "reached": median(shares) if shares else None,
    }


def _best(rows: Sequence[Facts], plan: str) -> Facts:
    """Count networks where no plan that looks at no costs, nor FP32, has a shorter median step."""
    having = [row for row in rows if plan in row["ms"]]
    counts = {"having": len(having), "best_of_list": sum(_is_best(row, plan) for row in having)}
    return counts if having else {"having": 0, "best_of_list": None}


def _is_best(row: Facts, plan: str) -> bool:
    """Whether no interval of the ratio to another one shows that other one to be faster."""
    for other in (FP32, ALL_LOW, "tf-amp"):
        ratio = paired_speedup(row["rounds_ms"].get(plan, ()), row["rounds_ms"].get(other, ()))
        if ratio is not None and ratio.low > 1:
            return False
    return True


def _groups(rows: Sequence[Facts]) -> Iterator[Facts]:
    """Sum up by family, and by length of the FP32 step (the paper's Figure 5)."""
    for family in dict.fromkeys(FAMILIES):
        yield _group(family, [row for row in rows if _family(row["name"]) == family])
    for low, high in pairwise(_BINS_MS):
        title = f"FP32 step from {low:g} ms" + (f" to {high:g} ms" if high < float("inf") else "")
        yield _group(title, [row for row in rows if low <= row["ms"][FP32]["median"] < high])


def _family(name: str) -> str:
    return FAMILIES[int(name.removeprefix(RANDOM)) % len(FAMILIES)]


def _group(title: str, rows: Sequence[Facts]) -> Facts:
    optimal = [row["over_fp32"]["optimal"]["median"] for row in rows if "optimal" in row["over_fp32"]]
    over_low = [
        row["ms"][ALL_LOW]["median"] / row["ms"]["optimal"]["median"]
        for row in rows
        if ALL_LOW in row["ms"] and "optimal" in row["ms"]
    ]
    lost = [row["over_fp32"][ALL_LOW]["high"] < 1 for row in rows if ALL_LOW in row["over_fp32"]]
    return {
        "title": title,
        "networks": len(rows),
        "over_fp32": fmean(optimal) if optimal else None,
        "over_low": fmean(over_low) if over_low else None,
        "low_slower": sum(lost),
    }
