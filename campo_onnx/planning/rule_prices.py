"""The price of each rule: the step is planned again without it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from campo_onnx.ir.importer import Imported
from campo_onnx.optimize.lists.classify import NodeClass
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.plan.rules import RulePrice, RulePrices
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.strategies.listed import listed_verdicts
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide

_NEGLIGIBLE = 1e-9  # of the step: less than the cut is solved to

_OF_OPERATORS = (Reason.KERNEL, Reason.SUMS_LOW, Reason.DENY_LIST, Reason.UNLISTED, Reason.UNKNOWN)
"""Rules of which each operator has one of its own."""


@dataclass(frozen=True, slots=True)
class _Rule:
    reason: Reason
    subject: str = ""


def rule_prices(
    imported: Imported,
    problem: Problem,
    options: Options,
    *,
    error_of: Callable[[Plan], float] | None = None,
    tell: Callable[[int, int], None] = lambda done, most: None,
) -> RulePrices:
    """Plan a step again without each of its rules.

    `imported`, `problem` and `options`: the step, what was decided about, and with what. The least gain does
    not count.
    `error_of`: emulates a plan on batches and returns its error; None where there are none.

    A rule is a reason that keeps nodes in FP32 which have a low variant: a row of the deny list, a pattern
    rule, a safety rule, a kernel that is missing, what ``--keep-fp32`` names. Each is left out alone, so that
    a node which two rules keep stays FP32 in both answers, and such rules cost nothing. Casts, costs and
    signatures are those of the first answer.
    """
    options = replace(options, min_gain=0.0)
    first = decide(problem, imported, options)
    rules = _rules(problem)
    error = None if error_of is None else error_of(first)
    prices = []
    for done, (rule, nodes) in enumerate(rules.items(), 1):
        plan = decide(_without(rule, nodes, problem), imported, options)
        saved_us = first.predicted_us - plan.predicted_us
        price = RulePrice(
            rule=rule.reason,
            subject=rule.subject,
            nodes=len(nodes),
            price_us=saved_us if saved_us > _NEGLIGIBLE * first.predicted_us else 0.0,
            low_nodes=len(plan.low_nodes) - len(first.low_nodes),
        )
        if error_of is not None and price.price_us:
            without = error_of(plan)
            is_finite = math.isfinite(without)
            price = replace(price, error=without if is_finite else None, breaks=not is_finite)
        elif error is not None:
            price = replace(price, error=error)
        prices.append(price)
        tell(done, len(rules))
    prices.sort(key=lambda price: (-price.price_us, -price.nodes, price.title))
    return RulePrices(predicted_us=first.predicted_us, error=error, prices=tuple(prices))


def _rules(problem: Problem) -> Mapping[_Rule, list[str]]:
    """The nodes that each rule keeps in FP32 and that have a low variant."""
    verdicts = listed_verdicts(problem)
    rules: dict[_Rule, list[str]] = {}
    for node in problem.view.nodes:
        ports = problem.ports[node.name]
        if ports.refusal or not (ports.low_inputs or ports.low_outputs):
            continue
        verdict = problem.fixed.get(node.name) or verdicts.get(node.name)
        if verdict is None:
            if node.name not in problem.tainted:
                continue
            rule = _Rule(Reason.DOWNSTREAM_OF_DENY)
        elif verdict.decided_by is Reason.PATTERN:
            rule = _Rule(Reason.PATTERN, str(verdict.facts["why"]))
        elif verdict.decided_by in _OF_OPERATORS:
            rule = _Rule(verdict.decided_by, node.op.label)
        else:
            rule = _Rule(verdict.decided_by)
        rules.setdefault(rule, []).append(node.name)
    return rules


def _without(rule: _Rule, nodes: list[str], problem: Problem) -> Problem:
    """The same problem without a rule."""
    if rule.reason is Reason.DOWNSTREAM_OF_DENY:
        return problem.informed({}, nodes)
    left_out = frozenset(nodes)
    fixed = {name: verdict for name, verdict in problem.fixed.items() if name not in left_out}
    classification = problem.classification
    if len(fixed) == len(problem.fixed):  # the lists keep them, and nothing else does
        allowed = dict.fromkeys(nodes, NodeClass(op_class=OpClass.ALLOW))
        classification = replace(classification, classes={**classification.classes, **allowed})
    return problem.with_same_casts(fixed=fixed, classification=classification)
