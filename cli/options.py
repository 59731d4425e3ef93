"""Options that several commands share, and how they are parsed."""

import math
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


class Use(StrEnum):
    """Whether to use something that does not work everywhere."""

    AUTO = "auto"
    OFF = "off"


def complete_devices(incomplete: str) -> list[str]:
    """Names of devices, for the shell's completion."""
    from campo_onnx.hardware.datasheet import devices

    return [name for name in ("auto", *devices()) if name.startswith(incomplete)]


def complete_strategies(incomplete: str) -> list[str]:
    """Names of strategies, for the shell's completion."""
    from campo_onnx.optimize.strategies import STRATEGIES

    return [name for name in STRATEGIES if name.startswith(incomplete)]


def complete_lists(incomplete: str) -> list[str]:
    """Names of preset lists, for the shell's completion."""
    from campo_onnx.optimize.lists.oplists import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_precisions(incomplete: str) -> list[str]:
    """Names of low precisions, for the shell's completion."""
    return [p.value for p in low_precisions() if p.value.startswith(incomplete)]


def complete_providers(incomplete: str) -> list[str]:
    """Processors that graphs can run on, for the shell's completion."""
    return [name for name in ("auto", "cpu", "cuda") if name.startswith(incomplete)]


def complete_runtimes(incomplete: str) -> list[str]:
    """Names of runtimes, for the shell's completion."""
    from campo_onnx.runtime.registry import AUTO, runtimes

    names = (AUTO, *(runtime.name for runtime in runtimes()))
    return [name for name in names if name.startswith(incomplete)]


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
    typer.Option(
        "--dim",
        metavar="NAME=SIZE",
        help="Size of a symbolic dimension, e.g. `--dim batch=64`. Costs are computed for this size; "
        "the written file keeps the symbol. Repeatable.",
        rich_help_panel=INPUT,
    ),
]
RangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Lowest and highest value of a graph input, e.g. `--range mask=-10000:0`. Without a "
        "range, a mask that is an input, and what is computed from scalar inputs, stays FP32. Repeatable.",
        rich_help_panel=SAFETY,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME|FILE",
        autocompletion=complete_devices,
        help="The device to plan for; `campo-onnx devices` lists them. `auto`: the GPU "
        "of this machine if its datasheet is known, else h200.",
        rich_help_panel=DECISION,
    ),
]


def _low_precision(text: str) -> str:
    known = tuple(precision.value for precision in low_precisions())
    if text not in known:
        raise UsageError(f"unknown low precision {text!r}", remedy=did_you_mean(text, known))
    return text


def low_precision(text: str | None, runtime: str) -> "Precision":
    """Turn ``--precision`` into a low precision; None, or ``auto``, is what the runtime computes in.

    Raises
    ------
    UsageError
        If the runtime refuses the precision.
    """
    from campo_onnx.ops.precision import Precision
    from campo_onnx.runtime.registry import check_precision, default_precision

    if text is None or text == AUTO:
        return default_precision(runtime)
    check_precision(Precision(text), runtime)
    return Precision(text)


PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        parser=_low_precision,
        autocompletion=complete_precisions,
        metavar="|".join(precision.value for precision in low_precisions()),
        show_default=False,
        help="The low precision. By default FP16; BF16 where the runtime computes in no FP16.",
        rich_help_panel=DECISION,
    ),
]
PrecisionOrAutoOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        parser=lambda text: AUTO if text == AUTO else _low_precision(text),
        autocompletion=lambda incomplete: [
            *complete_precisions(incomplete),
            *(name for name in (AUTO,) if name.startswith(incomplete)),
        ],
        metavar="|".join([*(precision.value for precision in low_precisions()), AUTO]),
        show_default=False,
        help="The low precision; by default FP16, or BF16 where the runtime computes in no FP16. `auto` "
        "plans in each that the device computes in: BF16 where the graph does not scale its loss, else the "
        "faster one.",
        rich_help_panel=DECISION,
    ),
]
KeepFp32Option = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-fp32",
        metavar="REGEX",
        help="Keep nodes in FP32 whose full name, operator or module matches: "
        "`--keep-fp32 'layers\\.11'`. Repeatable.",
        rich_help_panel=SAFETY,
    ),
]
MarginOption = Annotated[
    float,
    typer.Option(
        "--margin-us",
        metavar="US",
        min=0.0,
        help="For fine-grained: keep FP32 where it is faster by more than this many microseconds.",
        rich_help_panel=DECISION,
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.svg|png|pdf",
        help="Also draw the result; needs `pip install 'campo-onnx[plot]'`.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Also write everything as a page for the browser, in one file; needs "
        "`pip install 'campo-onnx[report]'`.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
RunOnOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda",
        autocompletion=complete_providers,
        help="Where to run. `auto`: CUDA where it works, else the CPU.",
        rich_help_panel=MEASURE,
    ),
]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="NAME",
        autocompletion=complete_runtimes,
        help="The runtime that runs the graph: its kernels count, and timings are filed under it. `auto`: "
        "onnxruntime.",
        rich_help_panel=DECISION,
    ),
]
RunInOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="NAME",
        autocompletion=complete_runtimes,
        help="The runtime that runs the graph. `auto`: onnxruntime.",
        rich_help_panel=MEASURE,
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        metavar="N",
        min=0,
        help="Threads per node on a CPU; 0 takes all cores.",
        rich_help_panel=MEASURE,
    ),
]
CountersOption = Annotated[
    Use,
    typer.Option(
        "--counters",
        help="Hardware counters of every distinct node. `auto`: where NVIDIA's ncu can read them.",
        rich_help_panel=MEASURE,
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FILE",
        help="File that keeps measured times; by default in your cache folder.",
        show_default=False,
        rich_help_panel=MEASURE,
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option("--workers", min=1, metavar="N", help="Processes of this machine.", rich_help_panel=SCALE),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Work on a Ray cluster: HOST:PORT, `auto` for the one that runs here, or `local` to start one "
        "for this run. Its machines see the files under the same paths.",
        show_default=False,
        rich_help_panel=SCALE,
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Overwrite existing files.", rich_help_panel=OUTPUT)
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document instead; an error is a JSON document, too.",
        rich_help_panel=OUTPUT,
    ),
]
FormatOption = Annotated[
    TableFormat,
    typer.Option(
        "--format",
        help="How to print the table: `csv` has full precision and one unit per column, `markdown` goes into "
        "an issue.",
        rich_help_panel=OUTPUT,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print warnings and errors only.", rich_help_panel=OUTPUT),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every row, and notes in full.", rich_help_panel=OUTPUT)
]


def check_one_form(*, json: bool, form: TableFormat) -> None:
    """Check that only one form of the result is asked for.

    Raises
    ------
    UsageError
        If JSON and another form are.
    """
    if json and form is not TableFormat.TEXT:
        raise UsageError(
            f"--json and --format {form.value} contradict each other", remedy="Give one of them."
        )


def existing(*names: "Path | str | None") -> list[Path]:
    """Those of some names, paths and presets that are files: nothing may be written over them."""
    return [Path(name) for name in names if name is not None and os.path.isfile(name)]


def dimensions(texts: list[str] | None) -> dict[str, int]:
    """Read ``NAME=SIZE`` texts.

    Raises
    ------
    UsageError
        If one is not of that form, or a name comes twice.
    """
    found: dict[str, int] = {}
    for text in texts or ():
        name, separator, size = (part.strip() for part in text.partition("="))
        if not separator or not name or not (size.isascii() and size.removeprefix("-").isdigit()):
            raise UsageError(f"--dim {text!r} is not NAME=SIZE", remedy="Write, for example, --dim batch=64.")
        if found.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim gives {name!r} two sizes, {found[name]} and {size}")
    return found


def ranges(texts: list[str] | None) -> dict[str, "DeclaredRange"]:
    """Read ``NAME=LOW:HIGH`` texts.

    Raises
    ------
    UsageError
        If one is not of that form, is empty, or a name comes twice.
    """
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
