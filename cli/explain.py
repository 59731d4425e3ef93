"""``campo-onnx explain``: why a node has its precision."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from campo_onnx.errors import UsageError

from .options import AN_INPUT, ForceOption, ReportOption
from .render.console import print_json, print_written
from .render.plan import print_decision, print_decisions

if TYPE_CHECKING:
    from campo_onnx.optimize.plan import Decision

_MOST_IMPORTANT = 10


def explain(
    plan: Annotated[
        Path, typer.Argument(help="A plan, written by `campo-onnx optimize --plan`.", show_default=False)
    ],
    node: Annotated[
        str | None,
        typer.Argument(
            help="Name of a node. Without it, the ten decisions with the largest effect.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    force: ForceOption = False,
) -> None:
    """Explain why a node has its precision: its op list, its gain, its casts, and the rule that decided.

    Example: `campo-onnx explain plan.json node_mm_12`
    """
    import json as json_format

    from campo_onnx.codec import to_json, to_plain
    from campo_onnx.files import read_bytes, write_text
    from campo_onnx.ir.exporter import check_destination, check_not_read
    from campo_onnx.optimize.plan import Plan
    from campo_onnx.report.page import check_report

    if report is not None:
        check_report(report)
        check_destination(report, force=force)
        check_not_read([report], [plan], AN_INPUT)
    read = Plan.from_json(read_bytes(plan, title=str(plan)), title=str(plan))
    if report is not None:
        from campo_onnx.report.plan_page import plan_page

        write_text(plan_page(read, model=plan.name), report)
    if node is None:
        most = sorted(read.decisions, key=lambda d: (-abs(d.gain_us), d.node))[:_MOST_IMPORTANT]
        if json:
            print_json(json_format.dumps([_document(decision) for decision in most], indent=1) + "\n")
        else:
            print_decisions(read, most)
            print_written(report)
        return
    if node not in read.decision:
        near = get_close_matches(node, read.decision, n=3)
        raise UsageError(
            f"the plan has no node {node!r}",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "See the model in a viewer.",
        )
    decision = read.decision[node]
    casts = [c for c in read.casts if node == c.producer or node in {use.node for use in c.consumers}]
    pad = next((pad for pad in read.pads if pad.node == node), None)
    if json:
        document = _document(decision) | {"casts": to_plain(casts), "pad": to_plain(pad)}
        print_json(to_json(document))
    else:
        print_decision(read, decision, casts, pad)
        print_written(report)


def _document(decision: "Decision") -> dict[str, Any]:
    from campo_onnx.codec import to_plain

    return {**to_plain(decision), "reason": decision.reason}
