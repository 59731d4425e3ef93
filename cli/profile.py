"""``campo-onnx profile``: time every node of an FP32 training step."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import INPUT, OUTPUT, DimOption, ForceOption, ModelArgument, dimensions
from .render.console import print_json, print_note, progressing, working
from .render.costs import print_profile

MEASURE = "How to measure"


class Use(StrEnum):
    """Whether something is used that does not work everywhere."""

    AUTO = "auto"
    OFF = "off"


CountersOption = Annotated[
    Use,
    typer.Option(
        "--counters",
        help="Hardware counters of every distinct node. `auto`: where NVIDIA's ncu can read them.",
        rich_help_panel=MEASURE,
    ),
]
RunOnOption = Annotated[
    str,
    typer.Option(
        "--device",
        help="Where to run: `auto`, `cpu` or `cuda`. `auto`: CUDA where it works.",
        rich_help_panel=MEASURE,
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads", min=0, help="Threads per node on a CPU; 0: all cores.", rich_help_panel=MEASURE
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Where timings are kept for good; by default in the user's cache folder.",
        show_default=False,
        rich_help_panel=MEASURE,
    ),
]


def profile(
    model: ModelArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the table (parquet).", show_default=False)
    ],
    dim: DimOption = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="Real inputs: an .npz file with one array per graph input. Else they are made up.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    device: RunOnOption = "auto",
    steps: Annotated[
        int, typer.Option(min=1, max=1000, help="Training steps to time.", rich_help_panel=MEASURE)
    ] = 10,
    threads: ThreadsOption = 0,
    kernel_trace: Annotated[
        Use,
        typer.Option(
            help="On CUDA, a trace of all kernels of the step. `auto`: where PyTorch's profiler records it "
            "and it agrees with nodes timed alone.",
            rich_help_panel=MEASURE,
        ),
    ] = Use.AUTO,
    counters: CountersOption = Use.AUTO,
    store: StoreOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON.", rich_help_panel=OUTPUT)
    ] = False,
    force: ForceOption = False,
) -> None:
    """Time every node of an FP32 training step on this machine.

    On a CPU the times come from ONNX Runtime's profile of the whole step; on CUDA from a trace of its
    kernels, or else every distinct node is timed alone: identical nodes once, for good.

    Example: `campo-onnx profile bert.onnx -o bert.parquet --dim batch=8`
    """
    from campo_onnx.devices.detect import device_of
    from campo_onnx.ir.exporter import check_destination
    from campo_onnx.ir.importer import import_model
    from campo_onnx.measure.node_timer import Bench
    from campo_onnx.measure.profile import write_profile
    from campo_onnx.measure.profiler import take_profile
    from campo_onnx.measure.store import Store, default_path
    from campo_onnx.runtime.feeds import read_feeds, synthesize
    from campo_onnx.runtime.providers import choose_provider, machine

    check_destination(output, force=force, source=model)
    here = machine(choose_provider(device), threads)
    figures = device_of(here)
    imported = import_model(model, dimensions(dim))
    with working("preparing inputs"):
        feeds = synthesize(imported.view) if inputs is None else read_feeds(inputs, imported.view)
    with Store(store or default_path()) as timings:
        if timings.notice:
            print_note(timings.notice)
        with progressing(f"profiling {model.name} on {here.provider}") as advance:
            bench = Bench(machine=here, store=timings)
            taken = take_profile(
                imported,
                feeds,
                bench,
                figures,
                steps=steps,
                kernel_trace=kernel_trace is Use.AUTO,
                counters=counters is Use.AUTO and here.provider == "cuda",
                on_progress=advance,
            )
    write_profile(taken, output)
    if json:
        print_json(taken.to_json())
    else:
        print_profile(taken, output)
