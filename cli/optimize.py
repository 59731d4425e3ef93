"""``campo-onnx optimize``: write a training step in mixed precision."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import UsageError
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, STRATEGIES, strategy_called

from .evidence import CostsOption, ProfileOption, opened_target
from .options import (
    AN_INPUT,
    DECISION,
    OUTPUT,
    SAFETY,
    DeviceOption,
    DimOption,
    ForceOption,
    KeepFp32Option,
    MarginOption,
    ModelArgument,
    PrecisionOption,
    RangeOption,
    StoreOption,
    dimensions,
    existing,
    ranges,
)
from .render.checks import print_data_safety
from .render.console import print_json, print_note, print_warning, working
from .render.plan import print_report
from .render.verification import print_verification
from .verification import (
    RepairOption,
    StepsOption,
    VerifyOption,
    check_repairable,
    check_verifiable,
    verified,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from campo_onnx.options import Options
    from campo_onnx.pipeline import Optimized


class SafetyMode(StrEnum):
    """What decides which nodes may run in low precision."""

    LISTS = "lists"
    DATA = "data"


def optimize(
    model: ModelArgument,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Where to write the mixed-precision step.", show_default=False),
    ],
    dim: DimOption = None,
    device: DeviceOption = "auto",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=" ".join(f"`{s.name}`: {s.title}." for s in STRATEGIES.values()),
            rich_help_panel=DECISION,
        ),
    ] = DEFAULT_STRATEGY,
    costs: CostsOption = CostSource.AUTO,
    profile: ProfileOption = None,
    store: StoreOption = None,
    margin_us: MarginOption = 1000.0,
    no_pads: Annotated[
        bool,
        typer.Option(
            "--no-pads",
            help="Do not zero-pad matrix products for tensor cores. By default cost-aware strategies pad "
            "where that is predicted to pay.",
            rich_help_panel=DECISION,
        ),
    ] = False,
    pad_threshold_us: Annotated[
        float,
        typer.Option(
            "--pad-threshold-us",
            metavar="US",
            min=0.0,
            help="Microseconds that padding a node must save beyond the predicted cost of its pads.",
            rich_help_panel=DECISION,
        ),
    ] = 0.0,
    min_gain: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="For cost-aware strategies: share of the step that must be predicted to be saved. Below it "
            "the step stays FP32, since costs are not known more precisely.",
            rich_help_panel=DECISION,
        ),
    ] = 0.01,
    precision: PrecisionOption = "fp16",
    lists: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Which operators may run in low precision: a preset (campo, tf115, tf2, pytorch, nvidia) or "
            "a file of your own. By default the strategy's own lists.",
            rich_help_panel=SAFETY,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="OP", help="Put an operator on the allow list.", rich_help_panel=SAFETY
        ),
    ] = None,
    infer: Annotated[
        list[str] | None,
        typer.Option(
            "--infer", metavar="OP", help="Put an operator on the infer list.", rich_help_panel=SAFETY
        ),
    ] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear", metavar="OP", help="Put an operator on the clear list.", rich_help_panel=SAFETY
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny", metavar="OP", help="Put an operator on the deny list.", rich_help_panel=SAFETY
        ),
    ] = None,
    keep_fp32: KeepFp32Option = None,
    value_range: RangeOption = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if --allow, --infer, --clear, --deny or --keep-fp32 matches no node, instead of a "
            "warning.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    safety: Annotated[
        SafetyMode,
        typer.Option(
            help="`lists`: op lists decide. `data`: the FP32 step is also run on the batches of --inputs; "
            "nodes that would overflow or underflow stay FP32, and nodes that the lists keep FP32 only "
            "because of an unsafe producer may run low if no gradient changes.",
            rich_help_panel=SAFETY,
        ),
    ] = SafetyMode.LISTS,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.npz",
            help="A real batch, for --safety data, --verify, and the ranges of masks and other inputs: one "
            "array per graph input, by name. Repeatable.",
            rich_help_panel=SAFETY,
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            metavar="ERROR",
            help="For --safety data: largest relative error of each gradient.",
            rich_help_panel=SAFETY,
        ),
    ] = 0.01,
    verify: VerifyOption = False,
    repair: RepairOption = False,
    verify_steps: StepsOption = 40,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE.json",
            help="Also write every decision with its reason, for `campo-onnx explain`.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the plan as JSON instead of tables.", rich_help_panel=OUTPUT),
    ] = False,
    force: ForceOption = False,
) -> None:
    """Write an exported FP32 training step in mixed precision.

    Op lists and pattern rules say which nodes may run in FP16. For each of them the FP16 time and the
    casts it needs are predicted for the device, and FP16 is used where it pays. The loss, the weight
    update, and graph inputs and outputs stay FP32, so the training loop needs no change.

    Example: `campo-onnx optimize bert.onnx -o bert_mixed.onnx --device v100 --plan plan.json`
    """
    from campo_onnx.ir.exporter import check_not_read, export_with
    from campo_onnx.ops.precision import Precision
    from campo_onnx.optimize.list_file import resolve
    from campo_onnx.optimize.oplists import with_overrides
    from campo_onnx.optimize.report import report_of
    from campo_onnx.options import Options
    from campo_onnx.pipeline import optimize as run_pipeline

    _check_places(model, output, plan, force=force)
    read = existing(device, lists, profile, store, *(inputs or ()))
    check_not_read((output, *([plan] if plan else [])), read, AN_INPUT)
    _check_inputs(safety, inputs or [])
    if repair:
        check_repairable(strategy, verify=verify)
    chosen_lists = resolve(lists if lists is not None else strategy_called(strategy).default_lists)
    chosen_lists = with_overrides(
        chosen_lists, allow=allow or (), infer=infer or (), clear=clear or (), deny=deny or ()
    )
    with opened_target(device, costs, profile=profile, store=store) as target:
        if verify:
            check_verifiable(target.device)
        options = Options(
            device=target.device,
            lists=chosen_lists,
            strategy=strategy,
            margin_us=margin_us,
            pads=not no_pads,
            pad_threshold_us=pad_threshold_us,
            min_gain=min_gain,
            low=Precision(precision),
            keep_fp32=tuple(keep_fp32 or ()),
            dims=dimensions(dim),
            costs=costs,
            evidence=target.evidence,
            ranges=ranges(value_range),
        )
        if inputs:
            options = _with_measured_ranges(model, options, inputs)
        if safety is SafetyMode.DATA:
            options = _with_data_safety(model, options, inputs or [], budget)
        with working(f"planning {model.name} for {target.device.name}"):
            optimized = run_pipeline(model, options)
        operators = {"--allow": allow, "--infer": infer, "--clear": clear, "--deny": deny}
        _report_unmatched(optimized, operators, keep_fp32 or [], strict=strict)
        if verify:
            verification = verified(
                optimized, options, inputs=inputs or [], repair=repair, steps=verify_steps
            )
            optimized = verification.returned
            print_verification(verification)
    _note_what_surprises(model, optimized, options)
    with working(f"writing {output.name}"):
        texts = {} if plan is None else {plan: optimized.plan.to_json()}
        imported = optimized.imported
        export_with(optimized.model, output, folder=imported.folder, texts=texts, read=imported.data_files)
    if json:
        print_json(optimized.plan.to_json())
    else:
        moved = optimized.given_traffic, optimized.planned_traffic
        print_report(report_of(optimized.plan), moved=moved, output=output, plan=plan)


def _check_places(model: Path, output: Path, plan: Path | None, *, force: bool) -> None:
    from campo_onnx.ir.exporter import check_destination

    check_destination(output, force=force, source=model)
    if plan is not None:
        check_destination(plan, force=force)
        for other, what in ((output, "--output"), (model, "MODEL")):
            if plan.resolve() == other.resolve():
                raise UsageError(f"--plan and {what} are the same file", remedy="Give the plan another name.")


def _check_inputs(safety: SafetyMode, inputs: list[Path]) -> None:
    if safety is SafetyMode.DATA and not inputs:
        raise UsageError("--safety data needs a batch", remedy="Give --inputs FILE.npz.")


def _with_measured_ranges(model: Path, options: "Options", inputs: list[Path]) -> "Options":
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.ranges import measured_ranges
    from campo_onnx.runtime.feeds import read_feeds

    view = import_model(model, options.dims).view
    found = measured_ranges(view, [read_feeds(path, view) for path in inputs])
    return replace(options, ranges={**found, **options.ranges})


def _report_unmatched(
    optimized: "Optimized",
    operators: "Mapping[str, list[str] | None]",
    keep_fp32: list[str],
    *,
    strict: bool,
) -> None:
    from campo_onnx.optimize.overrides import unmatched

    given = {option: texts or [] for option, texts in operators.items()}
    for sentence in unmatched(optimized.imported.view, operators=given, keep_fp32=keep_fp32):
        if strict:
            raise UsageError(sentence, remedy="Correct it, or leave --strict out.")
        print_warning(sentence)


def _note_what_surprises(model: Path, optimized: "Optimized", options: "Options") -> None:
    if not options.device.computes_in(options.low):
        print_note(f"{options.device.name} has no {options.low.value} arithmetic, so it cannot pay there.")
    if refused := optimized.refused_by(options.device.provider):
        print_warning(
            f"ONNX Runtime's CUDA provider does not load this graph, in FP32 or mixed: it refuses "
            f"BatchNormalization with training_mode=1 ({len(refused)} nodes, the first is {refused[0]!r}). "
            "Export with campo_onnx.export.torch, which decomposes batch normalization."
        )
    if optimized.imported.converted_from is not None:
        print_note(
            f"{model} uses opset {optimized.imported.converted_from}: it was converted to opset "
            f"{optimized.imported.view.opset['']} by onnx's version converter, and is written at that."
        )
    if optimized.imported.stamp is not None:
        stamp = optimized.imported.stamp
        print_note(
            f"{model} is already optimized (strategy {stamp.strategy}, {stamp.device}, {stamp.low}) and "
            "stays as it is. To plan again, start from the FP32 file."
        )
    elif low := optimized.unscaled_gradients:
        print_warning(
            f"{len(low)} nodes of the backward pass run in {options.low.value}, and the graph does not scale "
            "its loss: small gradients become zero. Export the step with a loss scale (the exporters of "
            "campo_onnx.export do), or use --precision bf16."
        )


def _with_data_safety(model: Path, options: "Options", inputs: list[Path], budget: float) -> "Options":
    from campo_onnx.data_safety import measure_safety
    from campo_onnx.ir.importer import import_model
    from campo_onnx.runtime.feeds import read_feeds

    imported = import_model(model, options.dims)
    batches = [read_feeds(path, imported.view) for path in inputs]
    with working(f"measuring safety of {model.name} on {len(batches)} batch(es)"):
        found = measure_safety(imported, options, batches, budget=budget)
    print_data_safety(found, budget)
    return found.applied_to(options)
