"""``campo-onnx optimize``: write a training step in mixed precision."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import UsageError
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, STRATEGIES, strategy_called

from .error_limit import MaxErrorOption, MaxTimeOption, check_limits, within_limits
from .evidence import (
    CostsOption,
    ExecutionOption,
    FlatWeightsOption,
    ProfileOption,
    Running,
    check_device,
    flat_weights_finder,
    opened_target,
)
from .notes import note_what_surprises, report_unmatched
from .options import (
    AUTO,
    DECISION,
    OUTPUT,
    SAFETY,
    DeviceOption,
    DimOption,
    ForceOption,
    JsonOption,
    KeepFp32Option,
    MarginOption,
    ModelArgument,
    PrecisionOrAutoOption,
    QuietOption,
    RangeOption,
    ReportOption,
    RuntimeOption,
    StoreOption,
    VerboseOption,
    complete_lists,
    complete_strategies,
    dimensions,
    existing,
    low_precision,
    ranges,
)
from .outputs import check_outputs
from .preparation import check_inputs, cleaned_up, planned
from .probing import ProbeBudgetOption, ProbeMode, ProbeOption, probed
from .render.console import command_line, print_json, set_loudness, working
from .render.plan import print_optimized
from .render.verification import print_verification
from .verification import (
    RepairOption,
    StepsOption,
    VerifyOption,
    check_repairable,
    verified,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from campo_onnx.bench.result import BenchResult
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized


class SafetyMode(StrEnum):
    """What decides which nodes may run in low precision."""

    LISTS = "lists"
    DATA = "data"


def optimize(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where to write the mixed-precision step; `step.mixed.onnx` for `step.onnx` by default.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    dim: DimOption = None,
    device: DeviceOption = "auto",
    runtime: RuntimeOption = "auto",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_strategies,
            help=" ".join(f"`{s.name}`: {s.title}." for s in STRATEGIES.values()),
            rich_help_panel=DECISION,
        ),
    ] = DEFAULT_STRATEGY,
    costs: CostsOption = CostSource.AUTO,
    execution: ExecutionOption = Running.STREAM,
    flat_weights: FlatWeightsOption = False,
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
            help="For cost-aware strategies: the share of the step that must be predicted to be saved; below "
            "it the step stays FP32, since costs are not known more precisely.",
            rich_help_panel=DECISION,
        ),
    ] = 0.01,
    precision: PrecisionOrAutoOption = None,
    max_error: MaxErrorOption = None,
    max_time_us: MaxTimeOption = None,
    lists: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=complete_lists,
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
    simplify: Annotated[
        bool,
        typer.Option(
            "--simplify",
            help="First let ONNX Runtime's optimizer clean the graph up, by rules that hold on "
            "every provider, and "
            "check that the result has the same inputs and outputs and computes the same on made-up values.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if --allow, --infer, --clear, --deny or --keep-fp32 matches no node, or a list file "
            "names an operator that ONNX does not have, instead of a warning.",
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
        float | None,
        typer.Option(
            metavar="ERROR",
            help="For --safety data: largest relative error of each gradient.  [default: 0.01, in BF16 0.08]",
            show_default=False,
            rich_help_panel=SAFETY,
        ),
    ] = None,
    probe: ProbeOption = ProbeMode.ON,
    probe_s: ProbeBudgetOption = None,
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
    report: ReportOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Plan and report, and write nothing.", rich_help_panel=OUTPUT),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    force: ForceOption = False,
) -> None:
    """Write an exported FP32 training step in mixed precision.

    Op lists and pattern rules say which nodes may run in FP16. For each of them the FP16 time and the
    casts it needs are predicted for the device, and FP16 is used where it pays. The loss, the weight
    update, and graph inputs and outputs stay FP32, so the training loop needs no change.

    Example: `campo-onnx optimize bert.onnx --device v100 --plan plan.json` writes bert.mixed.onnx.
    """
    from campo_onnx.ir.exporter import check_not_read, export_with
    from campo_onnx.ir.importer import check_model, data_files_of
    from campo_onnx.optimize.lists.list_file import resolve
    from campo_onnx.optimize.lists.oplists import with_overrides
    from campo_onnx.planning.options import Options
    from campo_onnx.report.page import check_report

    set_loudness(quiet=quiet, verbose=verbose)
    check_model(model)
    chosen_lists = resolve(lists if lists is not None else strategy_called(strategy).default_lists)
    chosen_lists = with_overrides(
        chosen_lists, allow=allow or (), infer=infer or (), clear=clear or (), deny=deny or ()
    )
    inputs = inputs or []
    if safety is SafetyMode.DATA and not inputs:
        raise UsageError("--safety data needs a batch", remedy="Give --inputs FILE.npz.")
    check_inputs(inputs)
    check_limits(max_error, max_time_us, strategy=strategy, repair=repair, inputs=inputs)
    if repair:
        check_repairable(strategy, verify=verify)
    check_device(device, runtime)
    low_precision(precision, runtime)
    output = output or default_output(model)
    given_data = data_files_of(model) if simplify else frozenset()
    if not dry_run:
        read = {"--device": device, "--lists": lists, "--profile": profile, "--store": store}
        targets = check_outputs(
            {"--output": output, "--plan": plan, "--report": report},
            {"MODEL": model, "--inputs": inputs, **read},
            force=force,
            source=model,
        )
        check_not_read(targets, given_data)
        if report is not None:
            check_report(report)
    with (
        opened_target(device, runtime, costs, profile=profile, store=store, execution=execution) as basis,
        cleaned_up(model, dim, wanted=simplify) as source,
    ):
        if verify:
            from campo_onnx.costs.choose import this_machine

            this_machine(basis.target)
        options = Options(
            target=basis.target,
            lists=chosen_lists,
            strategy=strategy,
            margin_us=margin_us,
            pads=not no_pads,
            pad_threshold_us=pad_threshold_us,
            min_gain=min_gain,
            low=low_precision(precision, basis.target.runtime.name),
            keep_fp32=tuple(keep_fp32 or ()),
            flat_weights=flat_weights_finder(flat_weights),
            dims=dimensions(dim),
            costs=basis.costs,
            evidence=basis.evidence,
            ranges=ranges(value_range),
        )
        optimized, options, batches = planned(
            model,
            source,
            options,
            inputs,
            auto_precision=precision == AUTO,
            by_data=safety is SafetyMode.DATA,
            budget=budget,
        )
        optimized, options, tried = probed(optimized, options, batches, probe, probe_s)
        optimized = within_limits(optimized, options, batches, max_error, max_time_us)
        report_unmatched(
            optimized.imported.view,
            operators={"--allow": allow, "--infer": infer, "--clear": clear, "--deny": deny},
            keep_fp32=keep_fp32,
            lists=chosen_lists if existing(lists) else None,
            strict=strict,
        )
        measured = None
        if verify:
            first = next(iter(batches.values()), None)
            verification = verified(optimized, options, feeds=first, repair=repair, steps=verify_steps)
            optimized = verification.returned
            print_verification(verification)
            measured = verification.attempts[-1].result if verification.attempts else None
        told = () if json or quiet else _advice(optimized, options)
        notes = [*told, *tried, *note_what_surprises(model, optimized, options, tried)]
        if not dry_run:
            with working(f"writing {output.name}"):
                texts = {} if plan is None else {plan: optimized.plan.to_json()}
                if report is not None:
                    texts[report] = _page(optimized, model, notes, measured)
                imported = optimized.imported
                export_with(
                    optimized.model,
                    output,
                    folder=imported.folder,
                    texts=texts,
                    read=imported.data_files | given_data,
                )
    if json:
        print_json(optimized.plan.to_json())
    else:
        written = () if dry_run else (output, *(path for path in (plan, report) if path is not None))
        print_optimized(optimized, written=written, advice=told)


def _page(optimized: "Optimized", model: Path, notes: "Sequence[str]", measured: "BenchResult | None") -> str:
    from campo_onnx.report.plan_page import plan_page

    moved = optimized.given_traffic, optimized.planned_traffic
    return plan_page(
        optimized.plan,
        optimized.problem,
        moved,
        model=model.name,
        notes=notes,
        measured=measured,
        command=command_line(),
    )


def default_output(model: Path) -> Path:
    """Where the result goes unless told: beside the model.

    Examples
    --------
    >>> default_output(Path("steps/bert.onnx")).as_posix()
    'steps/bert.mixed.onnx'
    """
    return model.with_name(f"{model.name.removesuffix('.onnx')}.mixed.onnx")


def _advice(optimized: "Optimized", options: "Options") -> tuple[str, ...]:
    from campo_onnx.planning.advice import advice

    if optimized.plan.low_nodes:
        return ()
    with working("looking for what would pay"):
        return advice(optimized, options)
