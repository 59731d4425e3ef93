"""Summary of the results: ranks, factors and shares."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from scipy.stats import spearmanr, t

Facts = dict[str, Any]

_EXACT = 2.0**-23
"""Relative error below which FP32 itself rounds otherwise: nothing can be said of the prediction."""


def summary(parts: Mapping[str, Sequence[Any]]) -> Facts:
    """Put together what the page says."""
    qualities = list(parts["quality"])
    return {
        "qualities": [_quality(one) for one in qualities],
        "pooled": {low: _pooled([one for one in qualities if one["low"] == low]) for low in ("fp16", "bf16")},
        "first_order": _families(qualities),
        "trainings": _trainings(parts["training"]),
        "mixed": list(parts["mixed"]),
        "cpu_minutes": sum(one["cpu_s"] for rows in parts.values() for one in rows if isinstance(one, dict))
        / 60,
    }


def _quality(one: Mapping[str, Any]) -> Facts:
    rows = _told(one)
    drawn = [row for row in one["random"] if row["emulated"] and row["of_emulated"]]
    return {
        **{
            key: one[key]
            for key in (
                "name",
                "low",
                "batches",
                "device",
                "nodes",
                "roundings",
                "runs",
                "directions",
                "plans",
                "fp32_us",
            )
        },
        **{key: one[key] for key in ("nested", "node_model", "cpu_s")},
        "points": rows,
        "ranks": _ranks(rows, "emulated"),
        "factor": _factor(rows, "emulated"),
        "ranks_computed": _ranks(rows, "computed"),
        "factor_computed": _factor(rows, "computed"),
        "random": median(row["emulated"] / row["of_emulated"] for row in drawn) if drawn else None,
        "random_longer": median(row["time_us"] / row["of_us"] for row in drawn) if drawn else None,
        "random_count": len(drawn),
        "lists": [{**row, "saved": 1.0 - row["frontier_us"] / row["time_us"]} for row in one["lists"]],
    }


def curves(qualities: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Errors over steps by name of a step, by format and where the error comes from."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in qualities:
        for key, where in (("predicted", "predicted"), ("emulated", "emulated"), ("computed", "on units")):
            pairs = [(row["time_us"] / one["fp32_us"], row[key]) for row in one["points"] if row[key]]
            if pairs:
                panels.setdefault(one["name"], {})[f"{one['low'].upper()}, {where}"] = pairs
    return panels


def _pooled(qualities: Sequence[Mapping[str, Any]]) -> Facts:
    rows = [row for one in qualities for row in _told(one)]
    return {
        "steps": len(qualities),
        "points": len(rows),
        "ranks": _ranks(rows, "emulated"),
        "factor": _factor(rows, "emulated"),
        "factor_computed": _factor(rows, "computed"),
        "computed": sum(row["computed"] is not None for row in rows),
    }


def _told(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Plans with an error that FP32 can tell from none."""
    rows = [row for row in one["rows"] if row["predicted"] and row["emulated"]]
    return [row for row in rows if max(row["predicted"], row["emulated"]) >= _EXACT]


def _ranks(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    pairs = [(row["predicted"], row[key]) for row in rows if row[key] is not None]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic) if len(pairs) > 2 else None


def _factor(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The factor within which 90 % of the predictions lie."""
    logs = [abs(np.log(row[key] / row["predicted"])) for row in rows if row[key]]
    return float(np.exp(np.quantile(logs, 0.9))) if logs else None


def _families(qualities: Sequence[Mapping[str, Any]]) -> list[Facts]:
    """First order beside single roundings, by family of operators; the middle of all steps."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for one in qualities:
        for family, row in one["first_order"].items():
            families.setdefault(family, []).append(row)
    return [
        {
            "family": family,
            "steps": len(rows),
            "count": sum(row["count"] for row in rows),
            "low": min(row["low"] for row in rows),
            "median": median(row["median"] for row in rows),
            "high": max(row["high"] for row in rows),
        }
        for family, rows in sorted(families.items())
    ]


def _trainings(results: Sequence[Any]) -> list[Facts]:
    """By network and point: how far loss and accuracy end from FP32's, start by start."""
    points = [one for one in results if isinstance(one, dict) and "points" in one]
    trainings = []
    for prepared in points:
        runs = [one for one in results if one.get("network") == prepared["name"] and "fp32" in one]
        if not runs:
            continue
        rows = []
        for index, point in enumerate(prepared["points"]):
            beside = [(run[str(index)], run["fp32"]) for run in runs]
            rows.append(
                {
                    **point,
                    "accuracy": fmean(a["accuracy"] for a, _ in beside),
                    "gained": _mean_of([a["accuracy"] - b["accuracy"] for a, b in beside]),
                    "accuracy_moved": fmean(abs(a["accuracy"] - b["accuracy"]) for a, b in beside),
                    "loss_moved": fmean(abs(a["loss"] - b["loss"]) for a, b in beside),
                    "last_moved": fmean(abs(a["last"] - b["last"]) for a, b in beside),
                }
            )
        errors = [row["error"] for row in rows]
        every = [([run[str(index)] for index in range(len(rows))], run["fp32"]) for run in runs]
        trainings.append(
            {
                "name": prepared["name"],
                "seeds": len(runs),
                "fp32": _mean_of([run["fp32"]["accuracy"] for run in runs]),
                "rows": rows,
                "ranks": {
                    "accuracy": _ranks_of(errors, [[p["accuracy"] for p in of] for of, _ in every]),
                    "loss held out, moved": _ranks_of(
                        errors, [[abs(p["loss"] - fp32["loss"]) for p in of] for of, fp32 in every]
                    ),
                    "last training loss, moved": _ranks_of(
                        errors, [[abs(p["last"] - fp32["last"]) for p in of] for of, fp32 in every]
                    ),
                },
            }
        )
    return trainings


def _ranks_of(errors: Sequence[float], values: Sequence[Sequence[float]]) -> Facts:
    """Rank correlation start by start: its mean with an interval of 95 %, and whether that leaves out zero.

    A start whose values are all equal has a correlation of 0: nothing is ordered there.
    """
    ranks = _mean_of([float(spearmanr(errors, of).statistic) if len(set(of)) > 1 else 0.0 for of in values])
    return {**ranks, "orders": ranks["low"] is not None and not ranks["low"] <= 0.0 <= ranks["high"]}


def _mean_of(values: Sequence[float]) -> Facts:
    """Mean of starts with its interval of 95 %, which takes at least two."""
    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}
