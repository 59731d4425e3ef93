"""``campo-onnx explain``: why a node has its precision."""

from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from campo_onnx.errors import UsageError

from .completion import complete_nodes
from .options import ForceOption, FormatOption, JsonOption, ReportOption, check_one_form, option
from .outputs import check_outputs
from .render.bench import print_written
from .render.console import print_json
from .render.plan import print_decision, print_decisions, print_rules
from .render.table import TableFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from campo_onnx.optimize.plan.edits import Decision
    from campo_onnx.optimize.plan.plan import Plan

_MOST_IMPORTANT = 10


def explain(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan, written by `campo-onnx optimize --plan`.", show_default=False
        ),
    ],
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            autocompletion=complete_nodes,
            help="Name of a node, or of a module. Without it, the decisions with the largest effect.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int, option(None, "--top", metavar="N", min=0, help="Without a node: how many decisions; 0 for all.")
    ] = _MOST_IMPORTANT,
    rules: Annotated[
        bool,
        option(
            None, "--rules", help="What each rule costs, of a plan that was written with `optimize --rules`."
        ),
    ] = False,
    report: ReportOption = None,
    form: FormatOption = TableFormat.TEXT,
    json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Explain why a node has its precision.

    It shows the gain, the casts it shares, and what would change it.

    Examples: `campo-onnx explain plan.json node_mm_12`, and every decision with
    `campo-onnx explain plan.json --top 0 --format csv`.
    """
    from campo_onnx.files import read_bytes, write_text
    from campo_onnx.files.codec import to_plain
    from campo_onnx.optimize.plan.explanation import explained
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.report.page import check_report

    check_one_form(json=json, form=form)
    check_report(report)
    check_outputs({"--report": report}, {"PLAN": plan}, force=force)
    read = Plan.from_json(read_bytes(plan, title=str(plan)), title=str(plan))
    if report is not None:
        from campo_onnx.report.plan_page import plan_page

        write_text(plan_page(read, model=plan.name), report)
    if rules:
        _explain_rules(read, str(plan), node, json=json, form=form)
        print_written(None if json else report, form=form)
        return
    of_module = [d for d in read.decisions if node in d.modules] if node not in read.decision else []
    if node is None or of_module:
        shown = of_module or read.decisions
        most = sorted(shown, key=lambda d: (-abs(d.gain_us), d.node))[: top or None]
        if json:
            _print_json(most)
        else:
            print_decisions(read, most, form=form)
            print_written(report, form=form)
        return
    if node not in read.decision:
        modules = dict.fromkeys(module for d in read.decisions for module in d.modules)
        near = get_close_matches(node, read.decision, n=3) or get_close_matches(node, modules, n=3)
        raise UsageError(
            f"unknown node or module {node!r}",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else f"`campo-onnx explain {plan} --top 0` lists all.",
        )
    decision = read.decision[node]
    casts = read.casts_at.get(node, ())
    pad = next((pad for pad in read.pads if pad.node == node), None)
    if json:
        parts = {"casts": to_plain(casts), "pad": to_plain(pad), "explanation": list(explained(read, node))}
        _print_json([decision], parts)
    else:
        print_decision(read, decision, casts, pad, explained(read, node))
        print_written(report)


def _explain_rules(plan: "Plan", title: str, node: str | None, *, json: bool, form: TableFormat) -> None:
    """Print what each rule costs."""
    from campo_onnx.files.codec import to_plain
    from campo_onnx.files.document_format import to_report

    if node is not None:
        raise UsageError("--rules is about the whole plan", remedy="Leave the node out, or --rules.")
    if plan.rules is None:
        raise UsageError(
            f"{title} has no prices of rules",
            why="it was written without --rules",
            remedy=f"Plan again: campo-onnx optimize MODEL --rules --plan {title} --force",
        )
    if json:
        rows = [
            {**to_plain(price), "title": price.title, "sentence": plan.rules.sentence(price)}
            for price in plan.rules.prices
        ]
        print_json(to_report("campo-onnx explanation", 1, {**to_plain(plan.rules), "prices": rows}))
    else:
        print_rules(plan.rules, form=form)


def _print_json(decisions: "Sequence[Decision]", parts: "Mapping[str, Any]" = MappingProxyType({})) -> None:
    from campo_onnx.files.codec import to_plain
    from campo_onnx.files.document_format import to_report

    rows = [{**to_plain(decision), "reason": decision.reason} for decision in decisions]
    print_json(to_report("campo-onnx explanation", 1, {"decisions": rows, **parts}))
