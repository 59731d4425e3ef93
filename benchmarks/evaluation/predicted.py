"""Predictions of every strategy's plan of a graph for a device. Nothing is run."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evaluation.strategies import (
    CAMPO,
    OPTIMAL,
    PADDING,
    STRATEGIES,
    TF_AMP,
    label_of,
    options_for,
)
from benchmarks.zoo import NOT_ON_RTX2080TI
from campo_onnx import Plan, oplists, optimize_model, target
from campo_onnx.planning.comparison import ComparisonRow, compare

Row = dict[str, Any]
Rows = Mapping[str, Row]
"""By strategy."""


def predict(graph: Path, device_name: str, labels: Collection[str]) -> dict[str, Row]:
    """Let the strategies plan a graph for a device."""
    options = options_for(target(device_name))
    compared = compare(graph, options)
    rows = {label_of(row.plan.strategy, row.plan.lists): row for row in compared.rows}
    unpadded_us = {}
    for label in [label for label in PADDING if label in labels and rows[label].plan.pads]:
        strategy, lists = STRATEGIES[label]
        chosen = replace(options, strategy=strategy, lists=oplists(lists), pads=False)
        unpadded_us[label] = optimize_model(graph, chosen).plan.predicted_us
    best = rows[OPTIMAL].plan
    return {label: _row(rows[label], best, unpadded_us.get(label)) for label in STRATEGIES if label in labels}


def _row(row: ComparisonRow, best: Plan, unpadded_us: float | None) -> Row:
    plan = row.plan
    return {
        **figures(plan, plan.predicted_us if unpadded_us is None else unpadded_us),
        "missed_us": dict(missed_us(plan, best.low_nodes)),
        "tensor_core_share": row.tensor_core_share,
        "source": str(plan.source),
    }


def missed_us(plan: Plan, low: Collection[str]) -> Counter[str]:
    """Sum up by reason what FP16 would gain on nodes that a plan leaves in FP32 and another does not."""
    by_reason: Counter[str] = Counter()
    for decision in plan.decisions:
        if decision.node in low and decision.node not in plan.low_nodes:
            by_reason[decision.decided_by.value] += decision.gain_us
    return by_reason


def figures(plan: Plan, unpadded_us: float) -> Row:
    """Figures of a plan, and its step where it may not pad."""
    return {
        "step_us": plan.predicted_us,
        "unpadded_us": unpadded_us,
        "fp32_us": plan.fp32_us,
        "casts": len(plan.casts),
        "pads": len(plan.pads),
        "low_nodes": len(plan.low_nodes),
        "cast_us": plan.cast_us,
    }


def with_ratios(rows: Rows) -> dict[str, Row]:
    """Add what the figures of the paper show: ratios to FP32 and to TF_AMP, shares of TF_AMP's step."""
    by_label = {label: row | {"speedup": row["fp32_us"] / row["step_us"]} for label, row in rows.items()}
    base = rows.get(TF_AMP)
    for row in by_label.values() if base is not None else ():
        whole_us, casts, share = base["step_us"], base["casts"], base["tensor_core_share"]
        saved = (whole_us - row["unpadded_us"]) / whole_us, (row["unpadded_us"] - row["step_us"]) / whole_us
        row |= {
            "over_tf_amp": whole_us / row["step_us"] - 1,
            "rewriting": saved[0],
            "padding": saved[1],
            "fewer_casts": 1 - row["casts"] / casts if casts else None,
            "more_tensor_cores": row["tensor_core_share"] / share - 1 if share else None,
            "share_of_rewriting": saved[0] / sum(saved) if sum(saved) > 0 else None,
        }
    return by_label


def summary(by_model: Mapping[str, Rows]) -> Row:
    """Sum a device up over the models, as the paper's text does, for `campo` and `optimal`."""
    keys = ("speedup", "over_tf_amp", "fewer_casts", "more_tensor_cores", "rewriting", "padding")
    by_label: Row = {}
    for label in (TF_AMP, CAMPO, OPTIMAL):
        rows = [rows[label] for rows in by_model.values() if label in rows]
        by_label[label] = {key: spread(row.get(key) for row in rows) for key in (*keys, "share_of_rewriting")}
        shared = [rows for model, rows in by_model.items() if model not in NOT_ON_RTX2080TI]
        by_label[label]["low_nodes"] = sum(rows[label]["low_nodes"] for rows in shared if label in rows)
    return by_label


def spread(values: Iterable[float | None]) -> Row | None:
    """Mean, least and most of the numbers that are not None, and their count."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return {"mean": fmean(numbers), "least": min(numbers), "most": max(numbers), "models": len(numbers)}
