"""``campo-onnx optimize``: write a training step in mixed precision."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .completion import AUTO
from .decision import GraphArguments, ListArguments, StrategyArguments, plain_options
from .error_limit import Decided, best_within, check_limits
from .evidence import TargetArguments, opened_target
from .notes import note_what_surprises, report_unmatched
from .options import (
    OUTPUT,
    SAFETY,
    ForceOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    ReportOption,
    VerboseOption,
    existing,
    low_precision,
    option,
)
from .outputs import check_outputs
from .preparation import DataArguments, ProbeArguments, cleaned_up, planned, probed
from .render.bench import print_verification
from .render.console import command_line, print_json, print_note, progressing, set_loudness, working
from .render.plan import print_optimized
from .signature import with_options
from .verification import VerificationArguments, check_repairable, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from campo_onnx.bench.result import BenchResult
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds

    from .outputs import Read


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputArguments:
    """Options that say what is written and printed."""

    output: Annotated[
        Path | None,
        option(
            OUTPUT,
            "-o",
            "--output",
            metavar="FILE",
            help="Where to write the mixed-precision step; `step.mixed.onnx` for `step.onnx` by default.",
        ),
    ] = None
    plan: Annotated[
        Path | None,
        option(
            OUTPUT,
            "--plan",
            metavar="FILE.json",
            help="Also write every decision with its reason, for `campo-onnx explain`.",
        ),
    ] = None
    report: ReportOption = None
    rules: Annotated[
        bool,
        option(
            OUTPUT,
            "--rules",
            help="Also say what each rule costs: the step is planned again without it, and with --inputs "
            "emulated, too. Plan and report keep the prices.",
        ),
    ] = False
    dry_run: Annotated[bool, option(OUTPUT, "--dry-run", help="Plan and report, and write nothing.")] = False
    json: JsonOption = False
    quiet: QuietOption = False
    verbose: VerboseOption = False
    force: ForceOption = False

    def destination(self, model: Path) -> Path:
        """Path of the result."""
        return self.output or default_output(model)

    def check(self, model: Path, read: "Mapping[str, Read]", data: frozenset[Path]) -> None:
        """Find out before any work whether everything can be written."""
        from campo_onnx.ir.exporter import check_not_read
        from campo_onnx.report.page import check_report

        if self.dry_run:
            return
        written = {"--output": self.destination(model), "--plan": self.plan, "--report": self.report}
        targets = check_outputs(written, {"MODEL": model, **read}, force=self.force, source=model)
        check_not_read(targets, data)
        check_report(self.report)


@with_options
def optimize(
    model: ModelArgument,
    *,
    outputs: OutputArguments,
    graph: GraphArguments,
    where: TargetArguments,
    decision: StrategyArguments,
    allowed: ListArguments,
    data: DataArguments,
    probing: ProbeArguments,
    measuring: VerificationArguments,
    simplify: Annotated[
        bool,
        option(
            SAFETY,
            "--simplify",
            help="First let ONNX Runtime's optimizer clean the graph up, by rules that hold on "
            "every provider, and "
            "check that the result has the same inputs and outputs and computes the same on made-up values.",
        ),
    ] = False,
) -> None:
    """Write a training step in mixed precision.

    Op lists and pattern rules say which nodes may run in FP16. For each of them the FP16 time and the
    casts it needs are predicted for the device, and FP16 is used where it pays. The loss, the weight
    update, and graph inputs and outputs stay FP32, so the training loop needs no change.

    Example: `campo-onnx optimize bert.onnx --device v100 --plan plan.json` writes bert.mixed.onnx.
    """
    from campo_onnx.ir.importer import check_model, data_files_of
    from campo_onnx.planning.auto_precision import computed_in

    set_loudness(quiet=outputs.quiet, verbose=outputs.verbose)
    check_model(model)
    lists = allowed.resolved(decision.strategy)
    data.check()
    limits = decision.max_error, decision.max_time_us
    check_limits(*limits, strategy=decision.strategy, repair=measuring.repair, inputs=data.files)
    if measuring.repair:
        check_repairable(decision.strategy, verify=measuring.verify)
    where.check()
    low_precision(decision.precision, where.runtime)
    weights = data_files_of(model) if simplify else frozenset()
    outputs.check(model, {"--inputs": data.files, "--lists": allowed.lists, **where.files}, weights)
    with opened_target(where) as basis, cleaned_up(model, graph.dim, wanted=simplify) as source:
        if measuring.verify:
            from campo_onnx.targets.detect import machine_of

            machine_of(basis.target)
        options = plain_options(basis, where, graph, decision, lists)
        is_open = decision.precision == AUTO

        def decide(options: "Options") -> Decided:
            chooses = is_open and limits == (None, None)
            optimized, options, batches = planned(model, source, options, data, auto_precision=chooses)
            optimized, options, tried = probed(optimized, options, batches, probing)
            return Decided(optimized, options, batches, tried)

        if limits == (None, None):
            decided = decide(options)
        else:
            lows = (computed_in(options.target) if is_open else ()) or (options.low,)
            decided = best_within(decide, options, lows, *limits)
        optimized, options, batches, tried = decided
        report_unmatched(
            optimized.imported.view,
            operators=allowed.operators,
            keep_fp32=graph.keep_fp32,
            lists=lists if existing(allowed.lists) else None,
            strict=allowed.strict,
        )
        measured = None
        if measuring.verify:
            first = next(iter(batches.values()), None)
            verification = verified(
                optimized, options, feeds=first, repair=measuring.repair, steps=measuring.verify_steps
            )
            optimized = verification.returned
            print_verification(verification)
            measured = verification.attempts[-1].result if verification.attempts else None
        if outputs.rules:
            optimized = _priced(optimized, options, [*batches.values()])
        told = () if outputs.json or outputs.quiet else _advice(optimized, options)
        notes = [*told, *tried, *note_what_surprises(model, optimized, options, tried)]
        page = partial(_page, optimized, options, model, batches=[*batches.values()], measured=measured)
        written = () if outputs.dry_run else _write(optimized, model, outputs, weights, partial(page, notes))
    if outputs.json:
        print_json(optimized.plan.to_json())
    else:
        print_optimized(optimized, written=written, advice=told)


def _write(
    optimized: "Optimized",
    model: Path,
    outputs: OutputArguments,
    weights: frozenset[Path],
    page: "Callable[[], str]",
) -> "Sequence[Path]":
    """Write the graph with its plan and its page, all of them or none."""
    from campo_onnx.ir.exporter import export_model

    output, plan, report = outputs.destination(model), outputs.plan, outputs.report
    with working(f"writing {output.name}"):
        texts = {} if plan is None else {plan: optimized.plan.to_json()}
        if report is not None:
            texts[report] = page()
        imported = optimized.imported
        read = imported.data_files | weights
        export_model(optimized.model, output, folder=imported.folder, texts=texts, read=read)
    return output, *texts


def _priced(optimized: "Optimized", options: "Options", batches: "Sequence[Feeds]") -> "Optimized":
    """Add the prices of rules to a plan; with batches also the error that each saves."""
    from campo_onnx.planning.rule_prices import rule_prices

    if optimized.was_optimized_before:
        print_note("--rules: the model is a result of campo-onnx already, so no rule decides about it.")
        return optimized
    error_of = None
    if batches:
        from campo_onnx.emulation.frontier import error_on

        error_of = error_on(optimized.imported, options, batches)
    with progressing("planning without each rule") as advance:
        prices = rule_prices(optimized.imported, optimized.problem, options, error_of=error_of, tell=advance)
    return replace(optimized, plan=replace(optimized.plan, rules=prices))


def _page(
    optimized: "Optimized",
    options: "Options",
    model: Path,
    notes: "Sequence[str]",
    *,
    batches: "Sequence[Feeds]",
    measured: "BenchResult | None",
) -> str:
    from campo_onnx.errors import ModelError, UnsupportedModelError
    from campo_onnx.planning.advice import alternatives
    from campo_onnx.report.plan_page import plan_page

    drift = {}
    if batches and optimized.plan.low_nodes:
        from campo_onnx.emulation.comparison_drift import output_drift

        try:
            drift = output_drift(optimized.imported, optimized.model, batches, options.dims)
        except (ModelError, UnsupportedModelError) as error:
            notes = (*notes, f"Drift was not emulated: {error}")
    moved = optimized.given_traffic, optimized.planned_traffic
    return plan_page(
        optimized.plan,
        optimized.problem,
        moved,
        model=model.name,
        notes=notes,
        measured=measured,
        alternatives=[*alternatives(optimized, options)],
        drift=drift,
        command=command_line(),
    )


def default_output(model: Path) -> Path:
    """The default path of the result, beside the model.

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
