"""Check a mixed graph: read both files, evaluate every rule."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from campo_onnx.checking.context import context_of
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.rules import RULES, VALID
from campo_onnx.checking.verdict import Finding, Status, Verdict, Verdicts, failed, not_checked, passed
from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ir.constants import chunks
from campo_onnx.ir.importer import Imported, import_model


def check(mixed: str | Path, against: str | Path, policy: Policy, *, name: str = "") -> Verdicts:
    """Check a mixed graph against the FP32 graph it was made from and the limits of a policy.

    No GPU is needed: drift is measured on the emulated mixed graph, times are predicted. There is one verdict
    per rule; a mixed graph that is not a valid model fails the first, and the others are then not checked.

    `name`: name of the graph in reports; by default `mixed`.

    Raises UsageError if a file is missing, or the policy names something that the FP32 graph does not have;
    ModelError and UnsupportedModelError if the FP32 graph cannot be read; PlanMismatchError if the mixed
    graph belongs to another model.
    """
    verdicts_of = partial(Verdicts, name=name or str(mixed), mixed=str(mixed), against=str(against))
    fp32 = import_model(against, policy.dims)
    if fp32.stamp is not None:
        raise UsageError(
            f"{against} is itself a result of campo-onnx",
            why="a mixed graph is compared with the FP32 graph it was made from",
            remedy="Name that file with --against.",
        )
    try:
        read = _read_whole(mixed, policy)
    except (ModelError, UnsupportedModelError) as error:
        rest = (Verdict(rule=rule.name, finding=not_checked("the graph is not valid")) for rule in RULES)
        return verdicts_of(verdicts=(Verdict(rule=VALID, finding=failed(str(error))), *rest))
    context = context_of(fp32, read, policy, title=str(mixed))
    valid = Verdict(rule=VALID, finding=passed("onnx.checker accepts it in full"))
    others = (Verdict(rule=rule.name, finding=_strict(rule.check(context), policy)) for rule in RULES)
    return verdicts_of(
        verdicts=(valid, *others),
        device=context.target.name,
        captured=context.target.captures,
        costs=context.problem.costs.source,
    )


def _read_whole(mixed: str | Path, policy: Policy) -> Imported:
    imported = import_model(mixed, policy.dims)
    for tensor in imported.constants.values():
        next(chunks(tensor, imported.folder), None)  # onnx.checker does not look at external data
    return imported


def _strict(finding: Finding, policy: Policy) -> Finding:
    if policy.strict and finding.status is Status.NOT_CHECKED:
        return replace(finding, status=Status.FAILED, reason=f"not checked: {finding.reason}")
    return finding
