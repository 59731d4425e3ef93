"""``campo-onnx explain``: why a node has its precision."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from campo_onnx.errors import UsageError

from .render.console import print_json
from .render.plan import print_decision, print_decisions

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
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Explain why a node has its precision: its op list, its gain, its casts, and the rule that decided.

    Example: `campo-onnx explain plan.json node_mm_12`
    """
    import json as json_format
    from dataclasses import asdict

    from campo_onnx.optimize.plan import Plan

    try:
        text = plan.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{plan} cannot be read", why=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{plan} is not a plan file", remedy="Write one with: campo-onnx optimize MODEL --plan FILE"
        ) from None
    read = Plan.from_json(text, title=str(plan))
    if node is None:
        most = sorted(read.decisions, key=lambda d: (-abs(d.gain_us), d.node))[:_MOST_IMPORTANT]
        if json:
            print_json(json_format.dumps([asdict(decision) for decision in most], indent=1) + "\n")
        else:
            print_decisions(read, most)
        return
    decisions = {decision.node: decision for decision in read.decisions}
    if node not in decisions:
        near = get_close_matches(node, decisions, n=3)
        raise UsageError(
            f"the plan has no node {node!r}",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "See the model in a viewer.",
        )
    casts = [cast for cast in read.casts if node == cast.producer or node in cast.consumers]
    pad = next((pad for pad in read.pads if pad.node == node), None)
    if json:
        document = asdict(decisions[node]) | {
            "casts": [asdict(cast) for cast in casts],
            "pad": None if pad is None else asdict(pad),
        }
        print_json(json_format.dumps(document, indent=1) + "\n")
    else:
        print_decision(read, decisions[node], casts, pad)
