"""``campo-onnx try``: a PyTorch training step, measured here beside torch's own and predicted for GPUs."""

from typing import Annotated

import typer

from campo_onnx.costs.evidence import CostSource

from .evidence import CostsOption
from .options import (
    MEASURE,
    ForceOption,
    PrintArguments,
    ReportOption,
    ResultsOption,
    RunInOption,
    ThreadsOption,
    option,
)
from .outputs import check_outputs
from .render.bench import print_written
from .render.console import INTERRUPTED, command_line, keeping_others_apart, print_json, progressing
from .render.trial import print_trial
from .signature import with_options


@with_options
def try_step(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py:FUNCTION",
            help="A function without arguments that returns a module, its loss and a batch, such as "
            "`(model, loss, (x, y))`. The script is executed.",
            show_default=False,
        ),
    ],
    runtime: RunInOption = "auto",
    threads: ThreadsOption = 0,
    compiles: Annotated[
        bool,
        option(
            MEASURE,
            "--compile",
            help="Also measure torch.compile, which takes minutes to compile large networks.",
        ),
    ] = False,
    steps: Annotated[int, option(MEASURE, "--steps", metavar="N", min=6, help="Timed rounds, at most.")] = 24,
    seconds: Annotated[
        float,
        option(MEASURE, "--seconds", metavar="S", min=0.0, help="Start no further round after this time."),
    ] = 40.0,
    costs: CostsOption = CostSource.AUTO,
    report: ReportOption = None,
    output: ResultsOption = None,
    *,
    printing: PrintArguments,
    force: ForceOption = False,
) -> None:
    """Measure a PyTorch step here, and predict it for GPUs.

    The step is exported and planned. Then torch eager, torch autocast and our step, in FP32 and mixed, take
    turns, and their gradients are compared. A step is forward, loss and backward. Needs PyTorch.

    Example: `campo-onnx try train.py:make`
    """
    from campo_onnx.integrations.trial.script import (
        is_raised_by_user,
        split_target,
        step_from,
        telling_errors_of,
    )
    from campo_onnx.report.page import check_report
    from campo_onnx.runtime.registry import runtime_called

    printing.apply()
    script, function = split_target(target)
    runtime_called(runtime)
    check_report(report)

    def check() -> None:
        check_outputs({"--output": output, "--report": report}, {"SCRIPT": source}, force=force)

    source, paths = script.absolute(), (output, report)
    check()
    # The user's code may go to another folder, and write files.
    output, report = (path if path is None else path.absolute() for path in paths)
    command = command_line()
    with (
        keeping_others_apart(),
        progressing(f"running {script.name}") as advance,
        telling_errors_of(script, is_users=is_raised_by_user),
    ):
        user = step_from(script, function)
        from campo_onnx.integrations.trial.trial import try_step as run_trial

        phase = ""

        def progress(now: str, done: int, total: int) -> None:
            nonlocal phase
            if now != phase:
                phase = now
                advance.describe(f"{now} {script.name}:{function}")
            advance(done, total)

        trial = run_trial(
            *user,
            name=f"{script.name}:{function}",
            runtime=runtime,
            threads=threads,
            compiles=compiles,
            steps=steps,
            seconds=seconds,
            costs=costs,
            on_progress=progress,
        )
    check()
    if output is not None or report is not None:
        from campo_onnx.files import write_texts
        from campo_onnx.integrations.trial.page import trial_page

        texts = {} if output is None else {output: trial.to_json()}
        if report is not None:
            texts[report] = trial_page(trial, command=command)
        write_texts(texts)
    if printing.json:
        print_json(trial.to_json())
    else:
        print_trial(trial, printing.form)
        print_written(*paths, form=printing.form)
    if trial.measured.interrupted:
        raise typer.Exit(INTERRUPTED)
