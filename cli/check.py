"""``campo-onnx check``: for CI, whether a mixed graph is still valid, accurate and fast."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from campo_onnx.errors import CheckFailedError, UsageError

from .options import DECISION, INPUT, OUTPUT, DimOption, dimensions
from .render.checks import print_annotations, print_verdicts
from .render.console import print_json, progressing, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from campo_onnx.checking.policy import Pair
    from campo_onnx.checking.verdict import Verdicts

LIMITS = "What is asked"


def check(
    mixed: Annotated[
        Path | None, typer.Argument(help="The mixed-precision step (.onnx).", show_default=False)
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="MODEL",
            help="The FP32 step that it was made from.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE.toml",
            help="Check every graph that this file names, instead of one; limits stand in the file.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    dim: DimOption = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.npz",
            help="A batch to measure drift on: one array per graph input, by name. Repeatable. Without one, "
            "inputs are made up.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.json",
            help="A committed plan: the graph may not have more casts, nor a slower predicted step.",
            show_default=False,
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(
            help="Relative error that the loss and each gradient may have, emulated.  [default: 0.01]",
            show_default=False,
            rich_help_panel=LIMITS,
        ),
    ] = None,
    min_speedup: Annotated[
        float | None,
        typer.Option(
            help="Predicted FP32 step over predicted mixed step, at least.  [default: 1.0]",
            show_default=False,
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_casts: Annotated[
        int | None,
        typer.Option(help="Casts that may be inserted.", show_default=False, rich_help_panel=LIMITS),
    ] = None,
    keep_fp32: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-fp32",
            metavar="REGEX",
            help="Nodes that have to be FP32 as well, by whole name or operator. Repeatable.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="A rule that cannot be checked counts as failed.", rich_help_panel=LIMITS
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="The device to predict for. By default the baseline's, else the one the mixed file was made "
            "for.",
            show_default=False,
            rich_help_panel=DECISION,
        ),
    ] = None,
    lists: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Op lists that say which operators have to be FP32.  [default: campo]",
            show_default=False,
            rich_help_panel=DECISION,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)
    ] = False,
    junit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.xml",
            help="Also write JUnit XML, for the CI's test report; an existing report is replaced.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    github: Annotated[
        bool,
        typer.Option(
            "--github",
            help="Annotate files in GitHub's way; on by itself inside GitHub Actions.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Check that a mixed step is valid, unchanged for its caller, accurate, and as fast as promised.

    For CI: exit code 9 when a rule is broken. Nothing needs a GPU: FP16 is emulated, and times are
    predicted.

    Example: `campo-onnx check mixed.onnx --against step.onnx --baseline plan.json`
    """
    from campo_onnx.checking.check import check_all
    from campo_onnx.checking.policy import Pair, Policy, load_policy
    from campo_onnx.checking.reports import to_annotations, to_json, to_junit
    from campo_onnx.devices.datasheet import device as device_called
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_destination
    from campo_onnx.optimize.oplists import resolve

    if policy is not None:
        alone = {
            "MIXED": mixed,
            "--against": against,
            "--dim": dim,
            "--inputs": inputs,
            "--baseline": baseline,
            "--max-drift": max_drift,
            "--min-speedup": min_speedup,
            "--max-casts": max_casts,
            "--keep-fp32": keep_fp32,
            "--strict": strict or None,
            "--device": device,
            "--lists": lists,
        }
        if clash := next((name for name, value in alone.items() if value is not None), None):
            raise UsageError(
                f"{clash} and --policy exclude each other",
                remedy=f"Write it into {policy}, or leave --policy out.",
            )
        pairs = load_policy(policy)
    elif mixed is None or against is None:
        raise UsageError(
            "nothing says what to check", remedy="Give MIXED and --against MODEL, or --policy FILE.toml."
        )
    else:
        given = {"max_drift": max_drift, "min_speedup": min_speedup}
        asked = Policy(
            **{name: value for name, value in given.items() if value is not None},
            max_casts=max_casts,
            baseline=baseline,
            device=None if device is None else device_called(device),
            lists=resolve(lists or "campo"),
            keep_fp32=tuple(keep_fp32 or ()),
            dims=dimensions(dim),
            inputs=tuple(inputs or ()),
            strict=strict,
        )
        pairs = (Pair(name=str(mixed), mixed=mixed, against=against, policy=asked),)
    if junit is not None:
        check_destination(junit, force=True)
        _refuse_input(junit, [policy, *(path for pair in pairs for path in _files(pair))])
    if len(pairs) == 1:
        with working(f"checking {pairs[0].name}"):
            checked = check_all(pairs)
    else:
        with progressing(f"checking {len(pairs)} graphs") as advance:
            checked = check_all(pairs, advance)
    if junit is not None:
        write_text(to_junit(checked), junit)
    if json:
        print_json(to_json(checked))
    else:
        print_verdicts(checked)
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        print_annotations(to_annotations(checked), beside_a_document=json)
    _leave(checked)


def _files(pair: "Pair") -> "Sequence[Path | None]":
    return (pair.mixed, pair.against, pair.policy.baseline, *pair.policy.inputs)


def _refuse_input(report: Path, inputs: "Sequence[Path | None]") -> None:
    for path in inputs:
        if path is not None and path.resolve() == report.resolve():
            raise UsageError(
                f"--junit {report} would overwrite what is checked", remedy="Give the report another name."
            )


def _leave(checked: "Sequence[Verdicts]") -> None:
    """End as the results demand: an error outranks a broken rule."""
    for verdicts in checked:
        if verdicts.error is not None:
            raise verdicts.error
    broken = [f"{verdicts.name}: {v.rule}" for verdicts in checked for v in verdicts.failed]
    if broken:
        raise CheckFailedError(
            f"{len(broken)} checks failed" if len(broken) > 1 else "a check failed", why=", ".join(broken)
        )
