"""Tables of hardware counters as ``ncu --csv`` writes them."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DURATION = "gpu__time_duration.sum"
"""The metric that holds how long a kernel ran, in nanoseconds."""

_TIMES_NS = {
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_PREFIX = re.compile(r"([KMGT])(i?)[a-z]+")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """Counters of one kernel.

    Name and grid are as ``ncu`` writes them. Values go by metric, in nanoseconds, bytes, bytes per second,
    per cent and counts; one that could not be read is missing.
    """

    name: str
    grid: str
    values: Mapping[str, float]


def parse(text: str) -> tuple[KernelCounters, ...]:
    """Read what ``ncu --csv`` writes, in the order in which the kernels ran.

    Both tables are understood: a row per kernel with a second header of units (``--page raw``), and a
    row per kernel and metric. Lines beside the table, thousands separators and scaled units are, too.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return ()
    rows = list(csv.DictReader(lines[start:]))
    rows_of: dict[str, tuple[str, str, dict[str, float]]] = {}
    units: Mapping[str, str] = {}
    for row in rows:
        if not row["ID"]:
            units = row
            continue
        values = rows_of.setdefault(row["ID"], (row["Kernel Name"], row.get("Grid Size") or "", {}))[2]
        if "Metric Name" in row:
            cells = [(row["Metric Name"], row["Metric Value"], row.get("Metric Unit") or "")]
        else:
            cells = [(name, text, units.get(name) or "") for name, text in row.items() if "__" in name]
        for name, cell, unit in cells:
            if (value := _number(cell)) is not None:
                values[name] = value * _scale(unit)
    return tuple(KernelCounters(name=name, grid=grid, values=v) for name, grid, v in rows_of.values())


def divide(kernels: Sequence[KernelCounters]) -> tuple[tuple[KernelCounters, ...], ...]:
    """Split kernels by model: before each, the step process launches one kernel that is always the same.

    They come in the order in which they ran; the first one is such a mark.
    """
    groups: list[list[KernelCounters]] = []
    for kernel in kernels:
        if (kernel.name, kernel.grid) == (kernels[0].name, kernels[0].grid):
            groups.append([])
        else:
            groups[-1].append(kernel)
    return tuple(map(tuple, groups))


def totals(kernels: Sequence[KernelCounters]) -> Mapping[str, float]:
    """Sum several kernels up: counts add up, shares and rates are weighted by time.

    A metric that one of the kernels lacks is left out.
    """
    weights = [kernel.values.get(DURATION, 0.0) for kernel in kernels]
    names = set.intersection(*(set(kernel.values) for kernel in kernels))
    sums = {}
    for name in sorted(names):
        values = [kernel.values[name] for kernel in kernels]
        if name.endswith(".sum"):
            sums[name] = math.fsum(values)
        elif sum(weights) > 0:
            sums[name] = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return sums


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _scale(unit: str) -> float:
    """Factor from a unit to nanoseconds, bytes or counts.

    >>> _scale("usecond"), _scale("Gbyte/second"), _scale("%")
    (1000.0, 1000000000.0, 1.0)
    """
    if unit in _TIMES_NS:
        return _TIMES_NS[unit]
    match = _PREFIX.fullmatch(unit.partition("/")[0])
    return float((1024 if match[2] else 1000) ** _POWERS[match[1]]) if match else 1.0
