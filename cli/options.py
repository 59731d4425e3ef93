"""Options that several commands share, and how they are parsed."""

import math
import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.ops.precision import low_precisions

from .render.table import TableFormat

if TYPE_CHECKING:
    from campo_onnx.ops.precision import Precision
    from campo_onnx.optimize.values.ranges import DeclaredRange

INPUT = "Input"
DECISION = "How to decide"
COSTS = "Costs"
SAFETY = "What may run in low precision"
VERIFICATION = "Measuring on this machine"
MEASURE = "How to measure"
OUTPUT = "Output"
SCALE = "Many graphs"


AUTO = "auto"
"""Leaves a choice to the program."""


def option(panel: str | None, *flags: str, help: str, **settings: Any) -> Any:
    """One option, in a panel of the help; a default of None is not shown."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **settings)


class Use(StrEnum):
    """Whether to use something that does not work everywhere."""

    AUTO = "auto"
    OFF = "off"


def _completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For the shell's completion: the names that begin with what is typed."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _devices() -> Iterable[str]:
    from campo_onnx.hardware.datasheet import devices

    return (AUTO, *devices())


def _strategies() -> Iterable[str]:
    from campo_onnx.optimize.strategies import STRATEGIES

    return STRATEGIES


def _lists() -> Iterable[str]:
    from campo_onnx.optimize.lists.oplists import preset_names

    return preset_names()


def _runtimes() -> Iterable[str]:
    from campo_onnx.runtime.registry import runtimes

    return (AUTO, *(runtime.name for runtime in runtimes()))


def _precisions() -> Iterable[str]:
    return (precision.value for precision in low_precisions())


complete_devices, complete_runtimes = _completing(_devices), _completing(_runtimes)
complete_strategies, complete_lists = _completing(_strategies), _completing(_lists)
complete_providers = _completing(lambda: (AUTO, "cpu", "cuda"))


def complete_calibrated(incomplete: str) -> list[str]:
    """Operators that a calibration times, for the shell's completion; several are separated by commas."""
    from campo_onnx.calibrate.run import full_workload

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{op}" for op in full_workload("cuda").ops if op.startswith(last)]


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Nodes of the plan that stands before, for the shell's completion."""
    from campo_onnx.errors import CampoError
    from campo_onnx.files import read_bytes
    from campo_onnx.optimize.plan.plan import Plan

    path = Path(str(ctx.params.get("plan")))
    try:
        plan = Plan.from_json(read_bytes(path, title=str(path)), title=str(path))
    except CampoError:
        return []
    return [node for node in plan.decision if node.startswith(incomplete)]


ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="The exported FP32 training step (.onnx).", show_default=False),
]
DimOption = Annotated[
    list[str] | None,
    option(
        INPUT,
        "--dim",
        metavar="NAME=SIZE",
        help="Size of a symbolic dimension, e.g. `--dim batch=64`. Costs are computed for this size; "
        "the written file keeps the symbol. Repeatable.",
    ),
]
RangeOption = Annotated[
    list[str] | None,
    option(
        SAFETY,
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Lowest and highest value of a graph input, e.g. `--range mask=-10000:0`. Without a "
        "range, a mask that is an input, and what is computed from scalar inputs, stays FP32. Repeatable.",
    ),
]
DeviceOption = Annotated[
    str,
    option(
        DECISION,
        "--device",
        metavar="NAME|FILE",
        autocompletion=complete_devices,
        help="The device to plan for; `campo-onnx devices` lists them. `auto`: the GPU "
        "of this machine if its datasheet is known, else h200.",
    ),
]


def _low_precision(text: str) -> str:
    known = tuple(precision.value for precision in low_precisions())
    if text not in known:
        raise UsageError(f"unknown low precision {text!r}", remedy=did_you_mean(text, known))
    return text


def low_precision(text: str | None, runtime: str) -> "Precision":
    """Turn ``--precision`` into a low precision; None, or ``auto``, is what the runtime computes in."""
    from campo_onnx.ops.precision import Precision
    from campo_onnx.runtime.registry import check_precision, default_precision

    if text is None or text == AUTO:
        return default_precision(runtime)
    check_precision(Precision(text), runtime)
    return Precision(text)


PrecisionOption = Annotated[
    str | None,
    option(
        DECISION,
        "--precision",
        metavar="|".join(precision.value for precision in low_precisions()),
        parser=_low_precision,
        autocompletion=_completing(_precisions),
        help="The low precision. By default FP16; BF16 where the runtime computes in no FP16.",
    ),
]
PrecisionOrAutoOption = Annotated[
    str | None,
    option(
        DECISION,
        "--precision",
        metavar="|".join([*(precision.value for precision in low_precisions()), AUTO]),
        parser=lambda text: AUTO if text == AUTO else _low_precision(text),
        autocompletion=_completing(lambda: (*_precisions(), AUTO)),
        help="The low precision; by default FP16, or BF16 where the runtime computes in no FP16. `auto` "
        "plans in each that the device computes in: BF16 where the graph does not scale its loss, else the "
        "faster one.",
    ),
]
KeepFp32Option = Annotated[
    list[str] | None,
    option(
        SAFETY,
        "--keep-fp32",
        metavar="REGEX",
        help="Keep nodes in FP32 whose full name, operator or module matches: "
        "`--keep-fp32 'layers\\.11'`. Repeatable.",
    ),
]
MarginOption = Annotated[
    float,
    option(
        DECISION,
        "--margin-us",
        metavar="US",
        min=0.0,
        help="For fine-grained: keep FP32 where it is faster by more than this many microseconds.",
    ),
]
PlotOption = Annotated[
    Path | None,
    option(
        OUTPUT,
        "--plot",
        metavar="FILE.svg|png|pdf",
        help="Also draw the result; needs `pip install 'campo-onnx[plot]'`.",
    ),
]
ReportOption = Annotated[
    Path | None,
    option(
        OUTPUT,
        "--report",
        metavar="FILE.html",
        help="Also write everything as a page for the browser, in one file; needs "
        "`pip install 'campo-onnx[report]'`.",
    ),
]
RunOnOption = Annotated[
    str,
    option(
        MEASURE,
        "--device",
        metavar="auto|cpu|cuda",
        autocompletion=complete_providers,
        help="Where to run. `auto`: CUDA where it works, else the CPU.",
    ),
]
RuntimeOption = Annotated[
    str,
    option(
        DECISION,
        "--runtime",
        metavar="NAME",
        autocompletion=complete_runtimes,
        help="The runtime that runs the graph: its kernels count, and timings are filed under it. `auto`: "
        "onnxruntime.",
    ),
]
RunInOption = Annotated[
    str,
    option(
        MEASURE,
        "--runtime",
        metavar="NAME",
        autocompletion=complete_runtimes,
        help="The runtime that runs the graph. `auto`: onnxruntime.",
    ),
]
ThreadsOption = Annotated[
    int,
    option(MEASURE, "--threads", metavar="N", min=0, help="Threads per node on a CPU; 0 takes all cores."),
]
CountersOption = Annotated[
    Use,
    option(
        MEASURE,
        "--counters",
        help="Hardware counters of every distinct node. `auto`: where NVIDIA's ncu can read them.",
    ),
]
StoreOption = Annotated[
    Path | None,
    option(
        MEASURE,
        "--store",
        metavar="FILE",
        help="File that keeps measured times; by default in your cache folder.",
    ),
]
WorkersOption = Annotated[
    int,
    option(SCALE, "--workers", metavar="N", min=1, help="Processes of this machine."),
]
ClusterOption = Annotated[
    str,
    option(
        SCALE,
        "--cluster",
        metavar="ADDRESS",
        help="Work on a Ray cluster: HOST:PORT, `auto` for the one that runs here, or `local` to start one "
        "for this run. Its machines see the files under the same paths.",
    ),
]
ForceOption = Annotated[bool, option(OUTPUT, "--force", help="Overwrite existing files.")]
JsonOption = Annotated[
    bool,
    option(OUTPUT, "--json", help="Print one JSON document instead; an error is a JSON document, too."),
]
FormatOption = Annotated[
    TableFormat,
    option(
        OUTPUT,
        "--format",
        help="How to print the table: `csv` has full precision and one unit per column, `markdown` goes into "
        "an issue.",
    ),
]
QuietOption = Annotated[
    bool,
    option(OUTPUT, "--quiet", "-q", help="Print warnings and errors only."),
]
VerboseOption = Annotated[bool, option(OUTPUT, "--verbose", "-v", help="Print every row, and notes in full.")]


def check_one_form(*, json: bool, form: TableFormat) -> None:
    """Check that only one form of the result is asked for."""
    if json and form is not TableFormat.TEXT:
        raise UsageError(
            f"--json and --format {form.value} contradict each other", remedy="Give one of them."
        )


def existing(*names: "Path | str | None") -> list[Path]:
    """Those of some names, paths and presets that are files: nothing may be written over them."""
    return [Path(name) for name in names if name is not None and os.path.isfile(name)]


def dimensions(texts: list[str] | None) -> dict[str, int]:
    """Read ``NAME=SIZE`` texts."""
    found: dict[str, int] = {}
    for text in texts or ():
        name, separator, size = (part.strip() for part in text.partition("="))
        if not separator or not name or not (size.isascii() and size.removeprefix("-").isdigit()):
            raise UsageError(f"--dim {text!r} is not NAME=SIZE", remedy="Write, for example, --dim batch=64.")
        if found.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim gives {name!r} two sizes, {found[name]} and {size}")
    return found


def ranges(texts: list[str] | None) -> dict[str, "DeclaredRange"]:
    """Read ``NAME=LOW:HIGH`` texts."""
    from campo_onnx.optimize.values.ranges import DeclaredRange

    found: dict[str, DeclaredRange] = {}
    for text in texts or ():
        name, equals, bounds = (part.strip() for part in text.rpartition("="))
        lowest, colon, highest = (part.strip() for part in bounds.partition(":"))
        try:
            low, high = float(lowest), float(highest)
        except ValueError:
            low = high = math.nan
        if not (name and equals and colon) or math.isnan(low) or math.isnan(high):
            raise UsageError(
                f"--range {text!r} is not NAME=LOW:HIGH", remedy="Write, for example, --range mask=-10000:0."
            )
        if name in found:
            raise UsageError(f"--range gives {name!r} twice")
        found[name] = DeclaredRange(lowest=low, highest=high)
    return found
