"""Tables and a picture of the rows that have come in."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.figures import distributions
from benchmarks.pages import provenance, publish
from benchmarks.population import ALL_FP16, OPTIMAL, PLANNED, Row

FP32 = "fp32"
SHOWN = ("tf-amp", "fine-grained", "campo", OPTIMAL)
"""Strategies in the picture."""

OVER = {FP32: "all FP32", ALL_FP16: "all FP16"}
_BINS_MS = (0.0, 50.0, 150.0, float("inf"))
_EXPECTED_MS = 10.0
_LEVEL = 1e-9  # two sums of the same times
FEATURES = {
    "batch": "batch size",
    "nodes": "nodes",
    "launches": "kernels launched",
    "moved_bytes": "bytes moved",
    "product_flops": "FLOPs of matrix products",
    "intensity": "those FLOPs per byte moved",
    "aligned_share": "share of them in multiples of 8",
    "pooling_share": "share of bytes in pooling",
    "fp32_us": "FP32 step",
    "product_share": "share of it in products",
    "launch_share": "kernels launched per FP32 step",
    "fixed_share": "share of it that must stay FP32",
}
_PER_DEVICE = ("fp32_us", "product_share", "fixed_share")


def publish_rows(rows: Sequence[Row], asked: int, folder: Path) -> tuple[Path, ...]:
    """Write JSON, page and picture."""
    data = summary(rows, asked)
    written = publish("population", data, folder)
    picture = folder / "population.svg"
    panels = {
        f"{device}, over {title}": {name: data["quantiles"][device][over][name] for name in SHOWN}
        for device in data["devices"]
        for over, title in OVER.items()
    }
    distributions(panels, picture, axis="predicted speed-up")
    return (*written, picture)


def summary(rows: Sequence[Row], asked: int) -> Row:
    """Sum up all rows."""
    table = frame(rows)
    devices = table["device"].unique(maintain_order=True).to_list()
    families = sorted({row["family"] for row in rows})
    by_device = {device: table.filter(pl.col("device") == device) for device in devices}
    return {
        "made": provenance("torch", "polars", "scipy"),
        "networks": len(rows),
        "asked": asked,
        "families": {family: sum(row["family"] == family for row in rows) for family in families},
        "devices": devices,
        "strategies": list(PLANNED),
        "features": FEATURES,
        "fp32_ms": {
            device: {
                family: _percentiles(_of(one, family)["fp32_us"].to_numpy() / 1e3) for family in families
            }
            for device, one in by_device.items()
        },
        "wins": {
            device: {
                over: {name: _wins(one, name, over) for name in PLANNED if name != over} for over in OVER
            }
            for device, one in by_device.items()
        },
        "quantiles": {
            device: {over: {name: _quantiles(one, name, over) for name in SHOWN} for over in OVER}
            for device, one in by_device.items()
        },
        "slower_fp16": {
            device: {family: _slower(_of(one, family)) for family in families}
            for device, one in by_device.items()
        },
        "slower_nodes": {device: _slower_nodes(rows, device) for device in devices},
        "beside_paper": {device: _beside_paper(_of(one, "alexnet")) for device, one in by_device.items()},
        "correlations": {device: _correlations(one) for device, one in by_device.items()},
        "chance": 1.96 / np.sqrt(len(rows) - 1) if len(rows) > 1 else None,
        "measured": [row["measured"] | {"number": row["number"]} for row in rows if "measured" in row],
    }


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Make one line for each network and device: features, and the step by every strategy."""
    return pl.DataFrame(
        {
            "device": device,
            "family": row["family"],
            "batch": row["figures"]["batch"],
            **{name: row[name] for name in ("nodes", "launches", "moved_bytes", "product_flops")},
            **{name: row[name] for name in ("aligned_share", "pooling_share")},
            "intensity": row["product_flops"] / row["moved_bytes"],
            **{name: on_device[name] for name in _PER_DEVICE},
            "launch_share": row["launches"] / on_device["fp32_us"],
            FP32: on_device["fp32_us"],
            **{name: on_device["predicted_us"][name] for name in PLANNED},
        }
        for row in rows
        for device, on_device in row["devices"].items()
    )


def _of(table: pl.DataFrame, family: str) -> pl.DataFrame:
    return table.filter(pl.col("family") == family)


def _speedups(table: pl.DataFrame, name: str, over: str) -> NDArray[np.float64]:
    return (table[over] / table[name]).to_numpy()


def _percentiles(values: NDArray[np.float64]) -> Mapping[str, float] | None:
    if not len(values):
        return None
    low, median, high = np.percentile(values, (5, 50, 95))
    return {"low": float(low), "median": float(median), "high": float(high)}


def _wins(table: pl.DataFrame, name: str, over: str) -> Row:
    speedups = _speedups(table, name, over)
    return {
        **(_percentiles(speedups) or {}),
        "mean": float(speedups.mean()),
        "highest": float(speedups.max()),
        "lowest": float(speedups.min()),
        "slower": int((speedups < 1 - _LEVEL).sum()),
    }


def _quantiles(table: pl.DataFrame, name: str, over: str) -> list[float]:
    return [float(q) for q in np.percentile(_speedups(table, name, over), range(0, 101, 2))]


def _slower(table: pl.DataFrame) -> Row:
    speedups = _speedups(table, ALL_FP16, FP32)
    return {"networks": len(speedups), "slower": int((speedups < 1 - _LEVEL).sum())}


def _slower_nodes(rows: Sequence[Row], device: str) -> Row:
    """Count networks with nodes that FP16 makes slower even without Casts, and the families of such nodes."""
    lost = [row["devices"][device]["slower_low_us"] for row in rows]
    families = sorted({family for one in lost for family in one})
    return {"networks": sum(map(bool, lost)), "families": families}


def _beside_paper(table: pl.DataFrame) -> list[Row]:
    """Sum up what two strategies win over all FP16, by the step and where 10 ms are expected."""
    half_ms = table[ALL_FP16].to_numpy() / 1e3
    rows = []
    for name in ("fine-grained", OPTIMAL):
        speedups = _speedups(table, name, ALL_FP16)
        saved_ms = half_ms - table[name].to_numpy() / 1e3
        for low, high in pairwise(_BINS_MS):
            chosen = speedups[(half_ms >= low) & (half_ms < high)]
            rows.append({"strategy": name, "from_ms": low, **_mean(chosen)})
        rows.append({"strategy": name, "from_ms": None, "expected": False, **_mean(speedups)})
        expected = speedups[saved_ms >= _EXPECTED_MS]
        rows.append({"strategy": name, "from_ms": None, "expected": True, **_mean(expected)})
    return rows


def _mean(speedups: NDArray[np.float64]) -> Row:
    return {
        "networks": len(speedups),
        "mean": float(speedups.mean()) if len(speedups) else None,
        "highest": float(speedups.max()) if len(speedups) else None,
    }


def _correlations(table: pl.DataFrame) -> Row:
    """Correlate ranks of features with ranks of what is won; None where a feature is always the same."""
    targets = {
        "optimal over all FP32": _speedups(table, OPTIMAL, FP32),
        "optimal over all FP16": _speedups(table, OPTIMAL, ALL_FP16),
        "all FP16 over all FP32": _speedups(table, ALL_FP16, FP32),
    }
    return {
        feature: {
            title: _rank_correlation(table[feature].to_numpy(), values) for title, values in targets.items()
        }
        for feature in FEATURES
    }


def _rank_correlation(feature: NDArray[Any], won: NDArray[np.float64]) -> float | None:
    if len({*feature.tolist()}) < 2 or len({*won.tolist()}) < 2:
        return None
    return float(spearmanr(feature, won).statistic)
