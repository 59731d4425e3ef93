"""``campo-onnx compare``: every strategy side by side."""

from typing import Annotated

import typer

from campo_onnx.costs.evidence import CostSource

from .evidence import CostsOption, ExecutionOption, ProfileOption, Running, check_device, opened_target
from .notes import report_unmatched
from .options import (
    AN_INPUT,
    SAFETY,
    VERIFICATION,
    DeviceOption,
    DimOption,
    ForceOption,
    FormatOption,
    JsonOption,
    KeepFp32Option,
    MarginOption,
    ModelArgument,
    PlotOption,
    PrecisionOption,
    ReportOption,
    StoreOption,
    check_one_form,
    complete_lists,
    dimensions,
    existing,
)
from .render.bench import print_written
from .render.comparison import headline, print_comparison
from .render.console import print_json, working
from .render.table import TableFormat
from .verification import check_verifiable, measured_strategies


def compare(
    model: ModelArgument,
    dim: DimOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp16",
    lists: Annotated[
        str | None,
        typer.Option(
            "--lists",
            metavar="NAME|FILE",
            autocompletion=complete_lists,
            help="One preset or file for all strategies, instead of each one's own lists.",
            rich_help_panel=SAFETY,
        ),
    ] = None,
    keep_fp32: KeepFp32Option = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if --keep-fp32 matches no node, or a list file names an operator that ONNX does not "
            "have, instead of a warning.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    costs: CostsOption = CostSource.AUTO,
    execution: ExecutionOption = Running.STREAM,
    profile: ProfileOption = None,
    store: StoreOption = None,
    margin_us: MarginOption = 1000.0,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also measure every strategy's step on this machine, which must have --device.",
            rich_help_panel=VERIFICATION,
        ),
    ] = False,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=6,
            help="For --measure: timed steps of each strategy.",
            rich_help_panel=VERIFICATION,
        ),
    ] = 30,
    plot: PlotOption = None,
    report: ReportOption = None,
    form: FormatOption = TableFormat.TEXT,
    json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Compare the strategies on one training step: casts, predicted step, speed-up.

    With --measure also the measured step of each. No model is written.

    Example: `campo-onnx compare bert.onnx --device v100`
    """
    import json as json_format

    from campo_onnx.charts import check_plot, draw_plans, save_figure
    from campo_onnx.comparison import compare as run_comparison
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_destination, check_not_read
    from campo_onnx.ir.importer import check_model
    from campo_onnx.ops.precision import Precision
    from campo_onnx.optimize.list_file import resolve
    from campo_onnx.optimize.oplists import preset
    from campo_onnx.options import Options
    from campo_onnx.report.page import check_report

    check_one_form(json=json, form=form)
    check_model(model)
    check_device(device)
    if plot is not None:
        check_plot(plot)
    if report is not None:
        check_report(report)
    targets = [path for path in (plot, report) if path is not None]
    for path in targets:
        check_destination(path, force=force)
    check_not_read(targets, existing(model, device, lists, profile, store), AN_INPUT)
    chosen_lists = None if lists is None else resolve(lists)
    with opened_target(device, costs, profile=profile, store=store, execution=execution) as target:
        if measure:
            check_verifiable(target.device)
        options = Options(
            device=target.device,
            lists=preset("campo"),
            margin_us=margin_us,
            low=Precision(precision),
            keep_fp32=tuple(keep_fp32 or ()),
            dims=dimensions(dim),
            costs=target.costs,
            evidence=target.evidence,
        )
        with working(f"comparing strategies on {model.name} for {target.device.name}"):
            comparison = run_comparison(model, options, lists=chosen_lists)
        report_unmatched(
            comparison.imported.view,
            operators={},
            keep_fp32=keep_fp32,
            lists=chosen_lists if existing(lists) else None,
            strict=strict,
        )
        check_not_read(targets, comparison.imported.data_files)
    if measure:
        comparison = measured_strategies(comparison, options, steps=steps)
    if plot is not None:
        plans = [row.plan for row in comparison.rows]
        title = f"{model.name} on {headline(plans[0])}: predicted step"
        measured_us = [row.measured_us for row in comparison.rows]
        save_figure(draw_plans(plans, title=title, measured_us=measured_us), plot)
    if report is not None:
        from campo_onnx.report.comparison_page import comparison_page

        with working(f"writing {report.name}"):
            write_text(comparison_page(comparison, model=model.name), report)
    if json:
        rows = [
            {
                "strategy": row.plan.strategy,
                "lists": row.plan.lists,
                "low_nodes": len(row.plan.low_nodes),
                "casts": len(row.plan.casts),
                "cast_us": row.plan.cast_us,
                "predicted_us": row.plan.predicted_us,
                "lower_bound_us": row.plan.lower_bound_us,
                "tensor_core_share": row.tensor_core_share,
                "launches": row.traffic.total.launches,
                "moved_bytes": row.traffic.total.moved_bytes,
                "cast_moved_bytes": row.traffic.casts.moved_bytes,
                "peak_bytes": row.traffic.peak_bytes,
                "measured_us": row.measured_us,
                "measured_speedup": row.measured_speedup,
                "measured_bounds": row.measured_bounds,
                "verdict": row.verdict or None,
            }
            for row in comparison.rows
        ]
        first = comparison.rows[0].plan
        document = {
            "format_version": 1,
            "model": str(model),
            "device": first.device,
            "source": first.source,
            "captured": first.captured,
            "low": first.low.value,
            "fp32_us": first.fp32_us,
            "strategies": rows,
        }
        print_json(json_format.dumps(document, indent=1) + "\n")
    else:
        print_comparison(comparison, plot=plot, form=form)
        print_written(report, form=form)
