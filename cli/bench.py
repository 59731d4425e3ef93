"""``campo-onnx bench``: compare the measured training steps of graphs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from campo_onnx.errors import CheckFailedError, UsageError

from .notes import sentence_of_form
from .options import (
    INPUT,
    MEASURE,
    OUTPUT,
    BatchOption,
    DimOption,
    ForceOption,
    MachineArguments,
    PlotOption,
    PrintArguments,
    ResultsOption,
    Use,
    dimensions,
    option,
)
from .outputs import check_outputs
from .render.bench import print_bench, print_failures, print_written
from .render.console import INTERRUPTED, print_json, print_note, progressing, working
from .render.units import roughly
from .signature import with_options

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchResult


@with_options
def bench(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="STEP.onnx",
            help="Training steps with the same inputs and outputs. The others are compared with the first.",
            show_default=False,
        ),
    ],
    dim: DimOption = None,
    inputs: BatchOption = None,
    batch: Annotated[
        int | None,
        option(
            INPUT,
            "--batch",
            metavar="N",
            min=1,
            help="Samples per step, for samples/s; by default the leading dimension of the batch, where it "
            "can be inferred.",
        ),
    ] = None,
    *,
    place: MachineArguments,
    steps: Annotated[
        int, option(MEASURE, "--steps", metavar="N", min=6, help="Timed steps of each graph, at most.")
    ] = 50,
    seconds: Annotated[
        float | None,
        option(MEASURE, "--seconds", metavar="S", min=0.0, help="Start no further round after this time."),
    ] = None,
    tolerance: Annotated[
        float,
        option(
            MEASURE,
            "--tolerance",
            metavar="SHARE",
            min=0.0,
            max=0.99,
            help="Speed-ups within this of 1 count as no difference.",
        ),
    ] = 0.01,
    cuda_graph: Annotated[
        bool, option(MEASURE, "--cuda-graph", help="Let CUDA capture each step once and replay it.")
    ] = False,
    energy: Annotated[
        Use,
        option(
            MEASURE,
            "--energy",
            help="auto measures it where the GPU has a counter, which takes several seconds a graph.",
        ),
    ] = Use.AUTO,
    tensor_cores: Annotated[
        bool,
        option(
            MEASURE,
            "--tensor-cores",
            help="CUDA: also measure how busy tensor cores are, in one more step of each graph under ncu.",
        ),
    ] = False,
    fail_if_slower: Annotated[
        bool,
        option(
            OUTPUT,
            "--fail-if-slower",
            help="Exit with code 9 if a graph is slower than the first or could not be compared.",
        ),
    ] = False,
    plot: PlotOption = None,
    output: ResultsOption = None,
    printing: PrintArguments,
    force: ForceOption = False,
) -> None:
    """Measure training steps on this machine, in turns.

    The graphs run in alternation, in random order, on the same inputs. A graph is reported as faster or
    slower only if the whole 95 % confidence interval of its speed-up is. Ctrl-C stops early; what was
    measured until then is printed and written, and the exit code is 130.

    Example: `campo-onnx bench step.onnx mixed.onnx --dim batch=64`
    """
    from campo_onnx.bench.bench import bench as run_bench
    from campo_onnx.bench.graphs import check_same_interface, read_graphs
    from campo_onnx.bench.meters import with_tensor_pipe
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_not_read
    from campo_onnx.lowering.place import Place
    from campo_onnx.report.charts import draw_bench, save_figure
    from campo_onnx.runtime.feeds import read_feeds

    printing.apply()
    _check_request(models, place.device, plot)
    targets = check_outputs(
        {"--output": output, "--plot": plot}, {"MODEL": models, "--inputs": inputs}, force=force
    )
    here = place.machine
    if tensor_cores and not here.is_gpu:
        raise UsageError("--tensor-cores needs --device cuda", why="a CPU has no tensor cores")
    with working("reading graphs"):
        graphs = read_graphs(models, dimensions(dim), Place.on(here))
        check_same_interface(graphs)
        for graph in graphs:
            check_not_read(targets, graph.imported.data_files)
        first = graphs[0].imported
        feeds = None if inputs is None else read_feeds(inputs, first.view, first.defaults)
    for graph in graphs:
        print_note(sentence_of_form(graph.imported, here.runtime, graph.name))
    several = f"{len(graphs)} graphs" if len(graphs) > 1 else graphs[0].name

    def loaded(seconds: float) -> None:
        advance.describe(f"timing {several} on {here.provider}, {roughly(seconds)}")

    with progressing(f"loading {several} on {here.provider}") as advance:
        if not sys.stderr.isatty():
            print_note(f"Loading {several} on {here.provider}.")
        result = run_bench(
            graphs,
            here,
            feeds=feeds,
            steps=steps,
            budget_s=seconds,
            cuda_graph=cuda_graph,
            tolerance=tolerance,
            batch=batch,
            energy=energy is Use.AUTO,
            on_progress=advance,
            on_loaded=loaded,
        )
    if tensor_cores:
        with working("reading hardware counters"):
            result = with_tensor_pipe(result, models, dimensions(dim))
    if output is not None:
        write_text(result.to_json(), output)
    if plot is not None:
        save_figure(draw_bench(result, title="Measured training steps"), plot)
    if printing.json:
        print_json(result.to_json())
    else:
        print_bench(result, printing.form)
        print_written(output, plot, form=printing.form)
    print_failures(result)
    _leave(result, fail_if_slower=fail_if_slower)


def _check_request(models: list[Path], device: str, plot: Path | None) -> None:
    """Check what can be checked before anything is read."""
    from campo_onnx.hardware.hardware import PROCESSORS
    from campo_onnx.ir.importer import check_model
    from campo_onnx.report.charts import check_plot

    for model in models:
        check_model(model)
    if device not in ("auto", *PROCESSORS):
        raise UsageError(
            f"--provider {device!r}: unknown provider",
            why="graphs run on this machine, on one of ONNX Runtime's providers",
            remedy="Choose auto, cpu or cuda. For a device that is not here, `campo-onnx compare` predicts.",
        )
    check_plot(plot)


def _leave(result: "BenchResult", *, fail_if_slower: bool) -> None:
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if all(row.failure for row in result.rows):
        raise typer.Exit(result.rows[0].failure_code)
    if fail_if_slower:
        _check_none_slower(result)


def _check_none_slower(result: "BenchResult") -> None:
    from campo_onnx.bench.result import Outcome

    first = result.rows[0].name
    for row in result.rows[1:]:
        if row.verdict is Outcome.SLOWER and row.speedup is not None:
            raise CheckFailedError(
                f"{row.name} is slower than {first}",
                why=f"its speed-up is {row.speedup.median:.3f}, and no more than {row.speedup.high:.3f}",
            )
        if row.verdict in (Outcome.FAILED, Outcome.NOT_COMPARED):
            raise CheckFailedError(
                f"{row.name} could not be compared with {first}", why=row.failure.rstrip(".")
            )
