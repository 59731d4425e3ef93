"""Hardware counters of kernels, read by Nsight Compute's command line (``ncu``) where it works.

``ncu`` runs a process of its own (:mod:`campo_onnx.runtime.onnxruntime.ncu_step`) and replays every kernel
until all counters are read. Times taken meanwhile mean nothing; counters do.
"""

import csv
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.files import temporary_folder

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


TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"

METRICS = (
    DURATION,
    "sm__inst_executed.avg.per_cycle_active",  # instructions per cycle
    "sm__warps_active.avg.pct_of_peak_sustained_active",  # achieved occupancy
    "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second",  # loads; blind to those of TMA
    "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second",
    "l1tex__t_sectors.sum",
    "l1tex__t_sectors_lookup_miss.sum",
    "lts__t_sectors.sum",  # L2
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors_lookup_miss.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    TENSOR_PIPE,
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed.sum",
)
"""The events of the Campo paper (4.2.2) under their names on Hopper: two passes over each kernel."""

LIMIT_S = 300.0
"""Time after which a run under ``ncu`` is given up."""

_WHAT = "hardware counters cannot be read"
_REMEDY = "Leave them out with --counters off."
_ALSO_IN = ("/usr/local/cuda/bin",)


def count(
    models: Sequence[Path],
    *,
    metrics: Sequence[str] = METRICS,
    dims: Mapping[str, int] | None = None,
    limit_s: float = LIMIT_S,
) -> tuple[Mapping[str, float] | None, ...]:
    """Read counters of one step of each model.

    Models run one after another in one process, on made-up inputs. :data:`DURATION` is read whatever the
    metrics are: shares are weighted by it. Gives for each model its kernels summed up by :func:`totals`; None
    for one that did not run or launched nothing. DeviceUnavailableError says that ``ncu`` is missing, may not
    read counters, fails or does not end.
    """
    program = shutil.which("ncu", path=os.pathsep.join([os.environ.get("PATH", ""), *_ALSO_IN]))
    if program is None:
        raise DeviceUnavailableError(
            _WHAT, why="ncu (NVIDIA Nsight Compute) is not installed", remedy=_REMEDY
        )
    with temporary_folder() as workshop:
        log = workshop / "ncu.csv"
        words = command(program, log, models, metrics=metrics, dims=dims or {})
        printed = _run(words, limit_s)
        written = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    kernels = parse(written)
    if not kernels:
        why, remedy = explain(written + "\n" + printed)
        raise DeviceUnavailableError(_WHAT, why=why, remedy=remedy)
    groups = divide(kernels)
    if len(groups) != len(models):
        raise DeviceUnavailableError(
            _WHAT,
            why=f"ncu saw {len(groups)} of {len(models)} models ({explain(printed)[0]})",
            remedy=_REMEDY,
        )
    return tuple(totals(group) if group else None for group in groups)


def command(
    program: str, log: Path, models: Sequence[Path], *, metrics: Sequence[str], dims: Mapping[str, int]
) -> list[str]:
    """The command line that profiles one step of each model.

    Caches stay warm and clocks as they are, as in training. Only what runs between the step process's
    calls of ``cuProfilerStart`` and ``cuProfilerStop`` is profiled.
    """
    names = dict.fromkeys([DURATION, *metrics])
    return [
        program,
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *("--profile-from-start", "off", "--replay-mode", "kernel"),
        *("--cache-control", "none", "--clock-control", "none"),
        *("--metrics", ",".join(names)),
        *(sys.executable, "-m", "campo_onnx.runtime.onnxruntime.ncu_step"),
        *(word for name, size in dims.items() for word in ("--dim", f"{name}={size}")),
        *map(str, models),
    ]


def tensor_pipe_share(
    model_file: Path, *, dims: Mapping[str, int] | None = None, limit_s: float = LIMIT_S
) -> float | None:
    """Share of a step's GPU time in which the tensor pipes were busy, from 0 to 1.

    None where counters cannot be read; :func:`count` says why.
    """
    try:
        (counters,) = count([model_file], metrics=[TENSOR_PIPE], dims=dims, limit_s=limit_s)
    except DeviceUnavailableError:
        return None
    percent = None if counters is None else counters.get(TENSOR_PIPE)
    return None if percent is None else percent / 100


def explain(output: str) -> tuple[str, str]:
    """Why ``ncu`` wrote no table, and what to do about it."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "the driver lets only administrators read performance counters (ERR_NVGPUCTRPERM)",
            "Have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0, or the container started "
            f"with the capability SYS_ADMIN. {_REMEDY}",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    others = [line for line in lines if not line.startswith(("==PROF==", '"'))]
    first = next(iter(errors), "") or next(reversed(others), "")
    return first.removeprefix("==WARNING==").strip() or "ncu wrote nothing", _REMEDY


def _run(words: Sequence[str], limit_s: float) -> str:
    """Run a program and return what it printed; one that takes too long is ended with its children."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceUnavailableError(_WHAT, why=f"ncu does not start ({error})", remedy=_REMEDY) from None
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        raise DeviceUnavailableError(
            _WHAT, why=f"ncu did not end within {limit_s:.0f} s", remedy=_REMEDY
        ) from None
    finally:
        if process.poll() is None:
            _kill(process)


def _kill(process: "subprocess.Popen[str]") -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
