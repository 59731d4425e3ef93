"""Predicted step and casts of campo, tf-amp and optimal on training graphs, with the same lists.

    python -m benchmarks.strategies GRAPH.onnx ...

Writes results/strategies.json and .md. All figures are estimates from public figures of the devices.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evaluation.predicted import missed_us
from benchmarks.pages import arguments, provenance, publish
from campo_onnx import Options, Plan, oplists, optimize_model, target

DEVICES = ("h200", "v100")
LISTS = ("campo", "tf2", "tf115")
STRATEGIES = ("tf-amp", "campo", "optimal")

Row = dict[str, Any]


def rows_of(path: Path) -> Iterator[Row]:
    """Plan one graph for every device and preset."""
    for device_name in DEVICES:
        for lists in LISTS:
            options = Options(target=target(device_name), lists=oplists(lists))
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
    gains_us = missed_us(campo, tf_amp.low_nodes)
    (decided_by, _), *_ = gains_us.most_common(1)
    nodes = len(tf_amp.low_nodes - campo.low_nodes)
    return {"decided_by": decided_by, "nodes": nodes, "gain_us": sum(gains_us.values())}


def summary(rows: list[Row]) -> Row:
    """Count who wins."""
    both = [row["casts"] for row in rows if row["casts"]["campo"] and row["casts"]["tf-amp"]]
    steps = [(row["fp32_us"], row["predicted_us"]) for row in rows]
    return {
        "rows": len(rows),
        "campo_wins": sum(us["campo"] <= us["tf-amp"] for _, us in steps),
        "campo_slower_than_fp32": sum(us["campo"] > fp32_us for fp32_us, us in steps),
        "optimal_beaten": sum(us["optimal"] > min(fp32, *us.values()) * (1 + 1e-9) for fp32, us in steps),
        "both_lower": len(both),
        "fewer_casts": fmean(1 - c["campo"] / c["tf-amp"] for c in both) if both else None,
    }


def main() -> None:
    """Plan, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("graphs", nargs="+", type=Path)
    rows = [row for path in parser.parse_args().graphs for row in rows_of(path)]
    print(*publish("strategies", {"made": provenance(), "summary": summary(rows), "rows": rows}))


if __name__ == "__main__":
    main()
