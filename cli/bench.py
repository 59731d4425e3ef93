"""``campo-onnx bench``: time training steps of graphs against each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from campo_onnx.errors import CheckFailedError, UsageError

from .options import INPUT, OUTPUT, DimOption, ForceOption, PlotOption, dimensions
from .profile import MEASURE, RunOnOption, ThreadsOption
from .render.bench import print_bench, print_failures, print_written
from .render.console import print_json, progressing, working

if TYPE_CHECKING:
    from campo_onnx.bench.result import BenchResult


def bench(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="STEP.onnx",
            help="Training steps with the same inputs and outputs. The first is what the others are "
            "held against.",
            show_default=False,
        ),
    ],
    dim: DimOption = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE.npz",
            help="Real inputs: one array per graph input. Else they are made up.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            help="Samples in a step, for samples/s; by default the leading dimension of the batch, "
            "where it can be told from the state.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    device: RunOnOption = "auto",
    threads: ThreadsOption = 0,
    steps: Annotated[
        int, typer.Option("--steps", min=6, help="Steps of each graph, at most.", rich_help_panel=MEASURE)
    ] = 50,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0.0,
            help="Begin no further round after that long.",
            show_default=False,
            rich_help_panel=MEASURE,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0.0,
            max=0.99,
            help="Speed-ups that may be within this of 1 are no difference.",
            rich_help_panel=MEASURE,
        ),
    ] = 0.01,
    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph", help="Let CUDA capture each step once and replay it.", rich_help_panel=MEASURE
        ),
    ] = False,
    tensor_cores: Annotated[
        bool,
        typer.Option(
            "--tensor-cores",
            help="Also read how busy the tensor cores are, in one more step of each graph under ncu (CUDA).",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    fail_if_slower: Annotated[
        bool,
        typer.Option(
            "--fail-if-slower",
            help="Exit with 9 if a graph is slower than the first, or could not be compared.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    plot: PlotOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE.json",
            help="Write results and every single time as JSON.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)
    ] = False,
    force: ForceOption = False,
) -> None:
    """Time training steps of graphs against each other, on this machine.

    The graphs take turns, in an order drawn anew each round, on the same inputs. A graph is called
    faster or slower only where the 95 % interval of its speed-up leaves no doubt. Ctrl-C ends early
    with what was measured.

    Example: `campo-onnx bench step.onnx mixed.onnx --dim batch=64`
    """
    from campo_onnx.bench.bench import bench as run_bench
    from campo_onnx.bench.graphs import check_same_interface, read_graphs
    from campo_onnx.bench.meters import with_tensor_pipe
    from campo_onnx.charts import check_plot, draw_bench, save_figure
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_destination
    from campo_onnx.runtime.feeds import read_feeds
    from campo_onnx.runtime.providers import ORT_NAME, choose_provider, machine

    if device not in ("auto", *ORT_NAME):
        raise UsageError(
            f"--device {device!r} cannot be timed",
            why="graphs run on this machine, on one of ONNX Runtime's providers",
            remedy="Choose auto, cpu or cuda. What another device would do, `campo-onnx compare` predicts.",
        )
    if plot is not None:
        check_plot(plot)
    for target in filter(None, (plot, output)):
        for model in models:
            check_destination(target, force=force, source=model)
    here = machine(choose_provider(device), threads)
    if tensor_cores and here.provider != "cuda":
        raise UsageError("--tensor-cores needs --device cuda", why="a CPU has none")
    with working("reading graphs"):
        graphs = read_graphs(models, dimensions(dim))
        check_same_interface(graphs)
        feeds = None if inputs is None else read_feeds(inputs, graphs[0].imported.view)
    with progressing(f"timing {len(graphs)} graphs on {here.provider}") as advance:
        result = run_bench(
            graphs,
            here,
            feeds=feeds,
            steps=steps,
            budget_s=seconds,
            cuda_graph=cuda_graph,
            tolerance=tolerance,
            batch=batch,
            on_progress=advance,
        )
    if tensor_cores:
        with working("reading hardware counters"):
            result = with_tensor_pipe(result, models, dimensions(dim))
    if output is not None:
        write_text(result.to_json(), output)
    if plot is not None:
        save_figure(draw_bench(result, title="Measured training steps"), plot)
    if json:
        print_json(result.to_json())
    else:
        print_bench(result)
        print_written(output, plot)
    print_failures(result)
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
