"""``optimize --rules``: what each rule costs."""

from dataclasses import replace
from typing import TYPE_CHECKING

from .render.console import print_note, progressing

if TYPE_CHECKING:
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds


def priced(optimized: "Optimized", options: "Options", batches: "list[Feeds]") -> "Optimized":
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
