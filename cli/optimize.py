"""``campo-onnx optimize``: the main job."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from campo_onnx.errors import UsageError
from .render import print_json, print_note, print_report, working

_INPUT = "Input"
_DECISION = "How to decide"
_OUTPUT = "Output"


class LowPrecision(str, Enum):
    """The low precisions on offer."""

    FP16 = "fp16"
    BF16 = "bf16"


def optimize(
    model: Annotated[
        Path, typer.Argument(help="The exported FP32 training step, an .onnx file.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Where to write the mixed-precision step.", show_default=False),
    ],
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME=SIZE",
            help="Size of a symbolic dimension, e.g. [bold]--dim batch=64[/bold]. Costs are judged at this "
            "size; the written file keeps the symbol. Repeatable.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="The device to plan for; [bold]campo-onnx devices[/bold] lists them. [bold]auto[/bold]: the GPU of "
            "this machine if its figures are known, else h200.",
            rich_help_panel=_DECISION,
        ),
    ] = "auto",
    strategy: Annotated[
        str,
        typer.Option(
            help="[bold]campo[/bold]: four traverses that weigh every cast (USENIX ATC'22). [bold]tf-amp[/bold]: "
            "TensorFlow's lists and paint, no costs. [bold]fp32[/bold]: change nothing.",
            rich_help_panel=_DECISION,
        ),
    ] = "campo",
    precision: Annotated[
        LowPrecision, typer.Option(help="The low precision.", rich_help_panel=_DECISION)
    ] = LowPrecision.FP16,
    lists: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Which operators may be low: a preset (campo, tf115, tf2) or a file of your own. "
            "By default campo, and tf115 for the strategy tf-amp.",
            rich_help_panel=_DECISION,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="OP", help="Put an operator on the allow list.", rich_help_panel=_DECISION
        ),
    ] = None,
    infer: Annotated[
        list[str] | None,
        typer.Option(
            "--infer", metavar="OP", help="Put an operator on the infer list.", rich_help_panel=_DECISION
        ),
    ] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear", metavar="OP", help="Put an operator on the clear list.", rich_help_panel=_DECISION
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny", metavar="OP", help="Put an operator on the deny list.", rich_help_panel=_DECISION
        ),
    ] = None,
    keep_fp32: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-fp32",
            metavar="REGEX",
            help="Keep nodes in FP32 whose whole name or operator matches. Repeatable.",
            rich_help_panel=_DECISION,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="Also write every decision with its reason (JSON); [bold]campo-onnx explain[/bold] reads it.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the plan as JSON instead of tables.", rich_help_panel=_OUTPUT),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite existing files.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Write an exported FP32 training step in mixed precision.

    Every operator is classed by lists and pattern rules; every node's FP16 time and the casts it
    would need are predicted for the device; FP16 goes where it pays. The loss, the weight update,
    graph inputs and outputs stay FP32, so master weights and the training loop need no change.

    Example: [bold]campo-onnx optimize bert.onnx -o bert_mixed.onnx --device v100 --plan plan.json[/bold]
    """
    from campo_onnx.calibrate.detect import resolve_device
    from campo_onnx.ir.exporter import check_destination, export_model, export_text
    from campo_onnx.ir.precision import Precision
    from campo_onnx.optimize.oplists import resolve, with_overrides
    from campo_onnx.optimize.report import report_of
    from campo_onnx.optimize.strategies import DEFAULT_LISTS
    from campo_onnx.pipeline import Options
    from campo_onnx.pipeline import optimize as run_pipeline

    check_destination(output, force=force, source=model)
    if plan is not None:
        check_destination(plan, force=force, source=model)
        if plan.resolve() == output.resolve():
            raise UsageError(
                "--plan and --output name the same file", remedy="Give the plan a name of its own."
            )
    planned_for, note = resolve_device(device)
    chosen_lists = resolve(lists if lists is not None else DEFAULT_LISTS.get(strategy, "campo"))
    options = Options(
        device=planned_for,
        lists=with_overrides(
            chosen_lists, allow=allow or (), infer=infer or (), clear=clear or (), deny=deny or ()
        ),
        strategy=strategy,
        low=Precision(precision.value),
        keep_fp32=tuple(keep_fp32 or ()),
        dims=dict(map(_dimension, dim or ())),
    )
    if note:
        print_note(note)
    with working(f"planning {model.name} for {planned_for.name}"):
        optimized = run_pipeline(model, options)
    if optimized.imported.stamp is not None:
        stamp = optimized.imported.stamp
        print_note(
            f"{model} was optimized already (strategy {stamp.strategy}, {stamp.device}, {stamp.low}): nothing "
            "changes. To decide anew, start from the FP32 file."
        )
    with working(f"writing {output.name}"):
        export_model(optimized.model, output, folder=optimized.imported.folder)
        if plan is not None:
            export_text(optimized.plan.to_json(), plan)
    if json:
        print_json(optimized.plan.to_json())
    else:
        print_report(report_of(optimized.plan, optimized.problem.costs), output=output, plan=plan)


def _dimension(text: str) -> tuple[str, int]:
    name, separator, size = text.partition("=")
    if not separator or not name or not size.strip().lstrip("-").isdigit():
        raise UsageError(f"--dim {text!r} is not NAME=SIZE", remedy="Write, for example, --dim batch=64.")
    return name.strip(), int(size)
