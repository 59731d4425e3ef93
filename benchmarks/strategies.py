"""Predicted step and casts of campo, tf-amp and optimal on training graphs, with the same lists.

    python -m benchmarks.strategies GRAPH.onnx ... [--dim GRAPH:NAME=SIZE ...]

Writes results/strategies.json and .md. All figures are estimates from public figures of the devices.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages import made, publish
from campo_onnx import Options, Plan, device, oplists, optimize_model

DEVICES = ("h200", "v100")
LISTS = ("campo", "tf2", "tf115")
STRATEGIES = ("tf-amp", "campo", "optimal")

Row = dict[str, Any]


def rows_of(path: Path, dims: Mapping[str, int]) -> Iterator[Row]:
    """Plan one graph for every device and preset."""
    for device_name in DEVICES:
        for lists in LISTS:
            options = Options(device=device(device_name), lists=oplists(lists), dims=dims)
            plans = {s: optimize_model(path, replace(options, strategy=s)).plan for s in STRATEGIES}
            yield {
                "graph": path.stem,
                "nodes": len(plans["campo"].decisions),
                "device": device_name,
                "lists": lists,
                "fp32_us": plans["campo"].fp32_us,
                "predicted_us": {name: plan.predicted_us for name, plan in plans.items()},
                "casts": {name: len(plan.casts) for name, plan in plans.items()},
                "refused": refused(plans["campo"], plans["tf-amp"]),
            }


def refused(campo: Plan, tf_amp: Plan) -> Row | None:
    """Where campo does not win: what it leaves in FP32 that tf-amp lowers, and who decided most of it."""
    if campo.predicted_us <= tf_amp.predicted_us:
        return None
    low = tf_amp.low_nodes - campo.low_nodes
    gains_us: dict[str, float] = {}
    for decision in campo.decisions:
        if decision.node in low:
            by = decision.decided_by.value
            gains_us[by] = gains_us.get(by, 0.0) + decision.gain_us
    return {
        "decided_by": max(gains_us, key=gains_us.__getitem__),
        "nodes": len(low),
        "gain_us": sum(gains_us.values()),
    }


def summary(rows: list[Row]) -> Row:
    """Count who wins."""
    both = [row["casts"] for row in rows if row["casts"]["campo"] and row["casts"]["tf-amp"]]
    return {
        "rows": len(rows),
        "campo_wins": sum(r["predicted_us"]["campo"] <= r["predicted_us"]["tf-amp"] for r in rows),
        "campo_slower_than_fp32": sum(r["predicted_us"]["campo"] > r["fp32_us"] for r in rows),
        "optimal_beaten": sum(
            r["predicted_us"]["optimal"] > min(r["fp32_us"], *r["predicted_us"].values()) * (1 + 1e-9)
            for r in rows
        ),
        "both_lower": len(both),
        "fewer_casts": fmean(1 - c["campo"] / c["tf-amp"] for c in both) if both else None,
    }


def dims_of(path: Path, texts: list[str]) -> dict[str, int]:
    """Sizes of symbolic dimensions given for one graph."""
    found = {}
    for text in texts:
        graph, _, binding = text.partition(":")
        name, _, size = binding.partition("=")
        if graph == path.stem:
            found[name] = int(size)
    return found


def main() -> None:
    """Plan, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--dim", nargs="+", action="extend", default=[], metavar="GRAPH:NAME=SIZE")
    options = parser.parse_args()
    rows = [row for path in options.graphs for row in rows_of(path, dims_of(path, options.dim))]
    print(*publish("strategies", {"made": made(), "summary": summary(rows), "rows": rows}))


if __name__ == "__main__":
    main()
