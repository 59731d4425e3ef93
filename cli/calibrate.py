"""``campo-onnx calibrate``: learn what this machine's nodes and Casts cost."""

from pathlib import Path
from typing import Annotated

import typer

from .options import DECISION, OUTPUT, ForceOption, LowPrecision, PrecisionOption
from .profile import MEASURE, CountersOption, RunOnOption, StoreOption, ThreadsOption, Use
from .render.console import print_json, print_note, progressing
from .render.costs import print_calibration


def calibrate(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write the calibration (JSON). By default in your data folder, where "
            "`--costs auto` and `model` find it again; a file elsewhere is passed as `--device FILE`.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Minutes instead of hours: fewer operators and shapes.", rich_help_panel=DECISION
        ),
    ] = False,
    ops: Annotated[
        str | None,
        typer.Option(
            "--ops",
            metavar="OP,OP,...",
            help="Only these operators.",
            show_default=False,
            rich_help_panel=DECISION,
        ),
    ] = None,
    shapes: Annotated[
        int | None,
        typer.Option(
            min=9,
            help="Shapes per operator, instead of 40 with --quick and 400 without. A third is kept to test.",
            show_default=False,
            rich_help_panel=DECISION,
        ),
    ] = None,
    precision: PrecisionOption = LowPrecision.FP16,
    device: RunOnOption = "auto",
    cuda_graph: Annotated[
        bool,
        typer.Option("--cuda-graph", help="Time nodes inside captured CUDA graphs.", rich_help_panel=MEASURE),
    ] = False,
    counters: CountersOption = Use.AUTO,
    threads: ThreadsOption = 0,
    store: StoreOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the calibration itself.", rich_help_panel=OUTPUT)
    ] = False,
    force: ForceOption = False,
) -> None:
    """Learn the costs of this machine, once: Casts, and every operator in both precisions.

    Operators run on shapes of real networks in FP32 and in the low precision; a model for each
    predicts the one from the other, and is tested on shapes it has not seen. Every timing is kept:
    a calibration that was interrupted goes on where it stopped.

    Example: `campo-onnx calibrate --quick`
    """
    from dataclasses import replace

    from campo_onnx.calibrate.catalog import file_name, make_folder, user_folder
    from campo_onnx.calibrate.run import calibrate as run_campaign
    from campo_onnx.calibrate.run import full_campaign, quick_campaign
    from campo_onnx.devices.detect import device_of
    from campo_onnx.errors import UsageError
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_destination
    from campo_onnx.measure.counters import counters_of
    from campo_onnx.measure.node_timer import Bench
    from campo_onnx.measure.store import GRAPH, STREAM, Store, default_path
    from campo_onnx.ops.precision import Precision
    from campo_onnx.runtime.providers import choose_provider, machine

    if output is not None:
        check_destination(output, force=force)
    here = machine(choose_provider(device), threads)
    if cuda_graph and here.provider != "cuda":
        raise UsageError("--cuda-graph needs the CUDA provider", remedy="Leave it out on a CPU.")
    figures, low = device_of(here), Precision(precision.value)
    execution = GRAPH if cuda_graph else STREAM
    if output is None:
        make_folder(user_folder())
        output = user_folder() / file_name(figures.name, low, execution)
        check_destination(output, force=force)
    campaign = (quick_campaign if quick else full_campaign)(here.provider)
    if ops is not None:
        campaign = replace(campaign, ops=tuple(op.strip() for op in ops.split(",") if op.strip()))
    if shapes is not None:
        sampling = replace(campaign.sampling, count=shapes)
        campaign = replace(campaign, sampling=sampling, casts=min(campaign.casts, shapes))
    with Store(store or default_path()) as timings:
        if timings.notice:
            print_note(timings.notice)
        with progressing(f"calibrating {here.device} ({here.provider})") as advance:
            bench = Bench(machine=here, store=timings, execution=execution)
            with_counters = counters is Use.AUTO and here.provider == "cuda"
            made = run_campaign(
                campaign, bench, figures, low, advance, counters_of if with_counters else None
            )
    write_text(made.to_json(), output)
    if json:
        print_json(made.to_json())
    else:
        print_calibration(made, output)
