"""Decisions as columns of numbers and texts: what a page reads, a tenth of the size of the plan file.

Texts come from the graph and were written by strangers. They are made visible here, written into the
page as data (:mod:`campo_onnx.report.page`), and shown there as text.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from campo_onnx.ir.origin import scope_in
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.registry import spec
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.explanation import explained
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.step_ops import Moved, moved_by, moved_by_cast
from campo_onnx.wording import visible

_MOST_NODES = 200  # directly in one module; more are divided into sections, in the order of the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module, or a section of one that has too many nodes to look at."""

    name: str  # its own part of the path
    parent: int  # index of the module it is in; -1 for the whole graph
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTree:
    """Module of every node."""

    modules: tuple[Module, ...]  # each after its parent; the first is the whole graph
    module_of: tuple[int, ...]  # index of the module that each node is in


def module_tree(scopes: Sequence[tuple[str, ...]], kinds: Sequence[str] = ()) -> ModuleTree:
    """Find the modules of a graph.

    `scopes` are the modules that each node is in, as :func:`campo_onnx.ir.origin.scope_in` gives them, in the
    order of the graph; `kinds` the classes of these modules, ``""``, or nothing at all, where they are
    unknown.

    A module that holds more than 200 nodes itself is divided into sections of equal size: graphs whose
    names tell of no modules can be opened as well.
    """
    modules = [Module(name="", parent=-1)]
    index_of: dict[tuple[str, ...], int] = {(): 0}
    module_of: list[int] = []
    for scope in scopes:
        for depth in range(1, len(scope) + 1):
            path = scope[:depth]
            if path not in index_of:
                index_of[path] = len(modules)
                modules.append(Module(name=path[-1], parent=index_of[path[:-1]]))
        module_of.append(index_of[scope])
    for module, kind in zip(module_of, kinds, strict=False):
        if kind and module and not modules[module].kind:
            modules[module] = replace(modules[module], kind=kind)
    return _divided(modules, module_of)


def _divided(modules: list[Module], module_of: list[int]) -> ModuleTree:
    members: dict[int, list[int]] = {}
    for node, module in enumerate(module_of):
        members.setdefault(module, []).append(node)
    for module, inside in members.items():
        if len(inside) <= _MOST_NODES:
            continue
        length = math.isqrt(len(inside) - 1) + 1
        for start in range(0, len(inside), length):
            section = inside[start : start + length]
            for node in section:
                module_of[node] = len(modules)
            modules.append(Module(name=f"{section[0] + 1} to {section[-1] + 1}", parent=module))
    return ModuleTree(modules=tuple(modules), module_of=tuple(module_of))


LOW, ALREADY_LOW, FP32, OTHER = "L", "A", "F", "-"
"""Precision of a node in a page: turned low, low in the given graph, FP32, or no floating point."""

_DIGITS = 3  # nanoseconds


class Texts:
    """Texts that are written once and referred to by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Number of a text."""
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(visible(text))
        return self._known[text]


def columns(plans: Sequence[Plan], problem: Problem | None) -> dict[str, Any]:
    """Write plans of one graph as columns, one entry a node.

    Without the `problem`, where only a plan file is at hand, nothing is said about neighbours, shapes and
    sources of costs.
    """
    first = plans[0]
    number = {decision.node: index for index, decision in enumerate(first.decisions)}
    ops, families = Texts(), Texts()
    operators = [ops(d.op_type) for d in first.decisions]
    tree = module_tree(
        [scope_in(d.node, d.module) for d in first.decisions], [d.kind for d in first.decisions]
    )
    lines = Texts()
    page: dict[str, Any] = {
        "low": first.low.value.upper(),
        "names": [visible(name) for name in number],
        "ops": ops.texts,
        "op": operators,
        "family_of_op": [families(spec(OpKey.parse(op)).family.value) for op in ops.texts],
        "families": families.texts,
        "modules": [visible(module.name) for module in tree.modules],
        "parents": [module.parent for module in tree.modules],
        "kinds": [visible(module.kind) for module in tree.modules],
        "module": list(tree.module_of),
        "line": [lines(d.source) for d in first.decisions],
        "lines": lines.texts,
        "fp32_us": [round(d.fp32_us, _DIGITS) for d in first.decisions],
    }
    if problem is not None:
        page |= _of_graph(number, problem)
    texts, rules, classes = Texts(), Texts(), Texts()
    page["plans"] = [_plan(plan, problem, number, texts, rules, classes) for plan in plans]
    return page | {"reasons": texts.texts, "rules": rules.texts, "classes": classes.texts}


def _of_graph(number: dict[str, int], problem: Problem) -> dict[str, Any]:
    view, shapes, sources = problem.view, Texts(), Texts()
    reads: list[list[int]] = []
    shape = []
    for name in number:
        node = view.node[name]
        producers = (view.producer.get(tensor) for tensor in node.inputs)
        reads.append(list(dict.fromkeys(number[source.name] for source in producers if source is not None)))
        shape.append(shapes(_shape(view, node.outputs)))
    moved = _moved(number, problem)
    return {
        "reads": reads,
        "shapes": shapes.texts,
        "shape": shape,
        "sources": sources.texts,
        "source": [sources(problem.costs.nodes[name].source.value) for name in number],
        "bytes": [round(each.moved_bytes) for each in moved],
        "launches": [each.launches for each in moved],
    }


def _moved(number: dict[str, int], problem: Problem, plan: Plan | None = None) -> list[Moved]:
    """Count every node as it is given, or as a plan has it; without the Casts that are inserted."""
    dropped = set() if plan is None else {cast.node for cast in plan.dropped}
    moved = []
    for name in number:
        low = plan.low if plan is not None and name in plan.low_nodes else None
        ports = Ports() if low is None else problem.ports[name]
        moved.append(Moved() if name in dropped else moved_by(problem.view.signature(name), ports, low))
    return moved


def _shape(view: GraphView, outputs: Iterable[str]) -> str:
    first = next((view.tensors[name] for name in outputs if name in view.tensors), None)
    if first is None or first.shape is None:
        return "unknown"
    return " x ".join(map(str, first.shape)) or "scalar"


def _plan(
    plan: Plan, problem: Problem | None, number: dict[str, int], texts: Texts, rules: Texts, classes: Texts
) -> dict[str, Any]:
    decisions = sorted(plan.decisions, key=lambda d: number[d.node])
    reasons = [decision.reason for decision in decisions]
    counted: dict[str, Any] = {}
    if problem is not None:
        counted["bytes"] = [round(moved.moved_bytes) for moved in _moved(number, problem, plan)]
        counted["cast_bytes"] = [
            round(moved_by_cast(problem.view, cast.tensor, plan.low).moved_bytes) for cast in plan.casts
        ]
    return counted | {
        "title": visible(f"{plan.strategy} ({plan.lists})"),
        "precision": "".join(_precision(d) for d in decisions),
        "reason": [texts(reason) for reason in reasons],
        "why": [texts(_why(plan, d, reason)) for d, reason in zip(decisions, reasons, strict=True)],
        "rule": [rules(d.decided_by.value) for d in decisions],
        "class": [classes(d.op_class.value) for d in decisions],
        "gain_us": [round(d.gain_us, _DIGITS) for d in decisions],
        "cast_us": [round(d.cast_us, _DIGITS) for d in decisions],
        "casts": _casts(plan, number),
        "pads": [
            [number[pad.node], round(pad.gain_us, _DIGITS), round(pad.pads_us, _DIGITS)] for pad in plan.pads
        ],
    }


def _why(plan: Plan, decision: Decision, reason: str) -> str:
    """Say in full why a node has its precision, and what would change it."""
    told = explained(plan, decision.node)
    if decision.decided_by in (Reason.CUT_LOW, Reason.CUT_FP32) and told:
        return " ".join(told)  # which says what the reason says
    reason = reason[:1].upper() + reason[1:]
    return " ".join([reason if reason.endswith((".", "?", "!")) else f"{reason}.", *told])


def _precision(decision: Decision) -> str:
    if decision.precision is None:
        return OTHER
    if decision.is_lowered:
        return LOW
    return ALREADY_LOW if decision.decided_by is Reason.ALREADY_LOW else FP32


def _casts(plan: Plan, number: dict[str, int]) -> list[list[Any]]:
    """Rows of tensor, what is done with the Cast, its producer (-1: an input), consumers, microseconds."""
    rows: list[list[Any]] = []
    for cast in plan.casts:
        readers = list(dict.fromkeys(number[use.node] for use in cast.consumers))
        kind = f"{cast.src.value} -> {cast.dst.value}"
        rows.append(
            [visible(cast.tensor), kind, number.get(cast.producer, -1), readers, round(cast.cast_us, _DIGITS)]
        )
    for kind, existing in (("reused", plan.reused), ("dropped", plan.dropped)):
        for old in existing:
            readers = list(dict.fromkeys(number[use.node] for use in old.consumers))
            rows.append(
                [
                    visible(old.tensor),
                    kind,
                    number.get(old.node, -1),
                    readers,
                    round(old.cast_us, _DIGITS) if kind == "dropped" else 0.0,
                ]
            )
    return rows
