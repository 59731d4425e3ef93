"""``campo-onnx profile``: time every node of an FP32 training step."""

from pathlib import Path
from typing import Annotated

import typer

from .evidence import telling_what_is_kept
from .notes import sentence_of_form
from .options import (
    MEASURE,
    BatchOption,
    CountersOption,
    DimOption,
    ForceOption,
    MachineArguments,
    ModelArgument,
    PrintArguments,
    StoreOption,
    Use,
    dimensions,
    option,
)
from .outputs import check_outputs
from .render.console import INTERRUPTED, print_json, print_note, progressing, working
from .render.costs import print_profile
from .signature import with_options


@with_options
def profile(
    model: ModelArgument,
    output: Annotated[
        Path, option(None, "-o", "--output", metavar="FILE.parquet", help="Where to write the table.")
    ],
    dim: DimOption = None,
    inputs: BatchOption = None,
    *,
    place: MachineArguments,
    steps: Annotated[int, option(MEASURE, metavar="N", min=1, max=1000, help="Training steps to time.")] = 10,
    kernel_trace: Annotated[
        Use,
        option(
            MEASURE,
            help="CUDA: trace all kernels of the step. `auto`: where PyTorch's profiler is available and the "
            "trace agrees with nodes timed alone.",
        ),
    ] = Use.AUTO,
    counters: CountersOption = Use.AUTO,
    store: StoreOption = None,
    printing: PrintArguments,
    force: ForceOption = False,
) -> None:
    """Time every node of an FP32 step on this machine.

    On a CPU the times come from ONNX Runtime's profile of the whole step. On CUDA they come from a
    trace of its kernels, or each distinct node is timed alone; identical nodes are timed once, and all
    timings are kept for later runs. Ctrl-C stops early: the steps until then are written, and the exit
    code is 130.

    Example: `campo-onnx profile bert.onnx -o bert.parquet --dim batch=8`
    """
    from campo_onnx.ir.exporter import check_not_read
    from campo_onnx.ir.importer import check_model, import_model
    from campo_onnx.lowering.place import Place
    from campo_onnx.lowering.sequence import as_it_runs
    from campo_onnx.measure.node_timer import NodeTimer
    from campo_onnx.measure.profile import write_profile
    from campo_onnx.measure.profiler import take_profile
    from campo_onnx.measure.store import Store, default_path
    from campo_onnx.runtime.feeds import read_feeds, synthesize
    from campo_onnx.targets.detect import target_of

    printing.apply()
    check_model(model)
    saves_time = store is None
    store = store or default_path()
    check_outputs({"--output": output}, {"MODEL": model, "--inputs": inputs, "--store": store}, force=force)
    here = place.machine
    target = target_of(here)
    sizes = dimensions(dim)
    imported = as_it_runs(import_model(model, sizes), Place.on(here), sizes)
    print_note(sentence_of_form(imported, here.runtime, model.name))
    check_not_read([output], imported.data_files)
    with working("preparing inputs"):
        view, defaults = imported.view, imported.defaults
        feeds = synthesize(view) if inputs is None else read_feeds(inputs, view, defaults)
    with Store(store, saves_time=saves_time) as timings, telling_what_is_kept(timings):
        print_note(timings.notice)
        with progressing(f"profiling {model.name} on {here.provider}") as advance:
            timer = NodeTimer(machine=here, store=timings)
            taken = take_profile(
                imported,
                feeds,
                timer,
                target,
                steps=steps,
                kernel_trace=kernel_trace is Use.AUTO,
                counters=counters is Use.AUTO and here.is_gpu,
                on_progress=advance,
            )
    write_profile(taken, output)
    if printing.json:
        print_json(taken.to_json())
    else:
        print_profile(taken, output, printing.form)
    if taken.interrupted:
        raise typer.Exit(INTERRUPTED)
