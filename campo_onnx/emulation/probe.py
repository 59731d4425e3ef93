"""A plan tried on data: what rounding does not explain goes back to FP32, and the rest is decided again.

Rules over ranges see what a value can be. Here the planned step is run, emulated, beside the FP32 step, and
whoever makes it wrong is searched for by halves.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

import onnx

from campo_onnx.emulation.affordable import RUNS, affordable_part
from campo_onnx.emulation.batches import Batch, draw_batches, part_of
from campo_onnx.emulation.faults import Nodes, ProbedBatch, Subject
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.smaller_batch import Step
from campo_onnx.errors import ModelError, UnsupportedModelError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.plan.reason import Verdict
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.optimize.values.loss_scale import gradient_outputs, loss_scaling, low_gradients
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, apply, decide
from campo_onnx.runtime.machine import CPU, free_bytes
from campo_onnx.runtime.registry import machine
from campo_onnx.wording import gigabytes

Wrong: TypeAlias = Callable[[Nodes], Sequence[Verdict]]
Effect: TypeAlias = Callable[[Nodes], float]
IsOver: TypeAlias = Callable[[], bool]

LEAST_BUDGET_S, MOST_BUDGET_S = 5.0, 12.0
"""Seconds that trying a plan may take where nothing else is said; in between, by the number of nodes."""

MOST_BYTES = 2 << 30
"""Memory that trying a plan may take, as predicted; less where a quarter of the free memory is less."""

_NODE_BUDGET_S = 4e-4
_SHARE_OF_FREE = 4
_MOST_TRIALS, _LEAST_TRIALS = 96, 12  # of one search; what is not told apart until then stays FP32
_SEARCH_BUDGETS = 4.0
_MOST_ROUNDS = 6
_MOST_DOUBTFUL = 8
_GROUPS = 16  # of nodes that are wrong only together, whose effect is looked at group by group


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Result of :func:`probe`."""

    optimized: Optimized
    coverage: float
    batches: tuple[str, ...] = ()
    fp32: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    trials: int = 0
    why_not: str = ""  # why nothing was run, or why a batch was left out; `""` if every batch ran

    @property
    def summary(self) -> str:
        """Runs and their outcome, in a sentence or two."""
        if not self.batches:
            return f"The plan was not tried on data: {self.why_not or 'nothing is low'}"
        on = ", ".join(self.batches)
        outcome = "nothing is wrong"
        if self.fp32:
            nodes = "node makes" if len(self.fp32) == 1 else "nodes make"
            outcome = f"{len(self.fp32):,} {nodes} the step wrong and stay FP32"
        ran = f"{self.coverage:.0%}" if self.coverage >= 0.01 else "less than 1%"
        told = f"The plan was tried on data ({on}): {ran} of the low nodes ran; {outcome}."
        return f"{told} Left out: {self.why_not}" if self.why_not else told


def probe(
    optimized: Optimized, options: Options, batches: Sequence[Batch] = (), *, budget_s: float | None = None
) -> Probed:
    """Run the planned step, emulated, beside the FP32 step, and keep in FP32 what makes it wrong.

    Wrong are a tensor that is finite in FP32 alone, whole numbers that differ, and an output that is off by
    more than the limit and by far more than the low products alone put it. Gradients that overflow because of
    the loss scale are not wrong, nor is what FP32 itself hardly determines.

    `batches`: values for every input; drawn where there are none
    (:func:`campo_onnx.emulation.batches.draw_batches`).
    `budget_s`: seconds that one core may take, as predicted, if nothing is wrong; None takes
    :data:`LEAST_BUDGET_S` and 0.4 ms for each node, up to :data:`MOST_BUDGET_S`. A step that takes longer, or
    more than :data:`MOST_BYTES`, runs on fewer batches, with fewer rows in each, then its first part only.
    All searches for what is wrong may take four times as long, as predicted; what is not told apart in that
    time stays FP32.
    """
    view, plan = optimized.problem.view, optimized.plan
    if budget_s is None:
        budget_s = min(LEAST_BUDGET_S + _NODE_BUDGET_S * len(view.nodes), MOST_BUDGET_S)
    if not budget_s > 0:
        raise UsageError(f"the budget for trying the plan is {budget_s:g} s", remedy="Give a positive one.")
    low_nodes = plan.low_nodes
    if not low_nodes or optimized.was_optimized_before:
        return Probed(optimized=optimized, coverage=1.0)
    most_bytes = min(MOST_BYTES, free_bytes() / _SHARE_OF_FREE)
    whole = Step(model=optimized.imported.model, view=view)
    part = affordable_part(whole, budget_s, most_bytes, draws=not batches)
    step = part.step
    covered = low_nodes.intersection(node.name for node in part.model.graph.node)
    allowance = f"{budget_s:.3g} s and {gigabytes(most_bytes)} of memory"
    if not covered:
        why_not = f"not one low node can be run within {allowance}"
        return Probed(optimized=optimized, coverage=0.0, why_not=why_not)
    affordable = max(1, int(budget_s / (part.drawing_s + RUNS * part.step_s)))
    all_trials = max(_LEAST_TRIALS, int(_SEARCH_BUDGETS * budget_s / part.step_s))
    products = [name for name in low_nodes if optimized.problem.op_class(name) is OpClass.ALLOW]
    prepared: list[ProbedBatch] = []
    why_not = ""
    rest = part.left_out(allowance)
    try:
        subject = _subject(optimized, part.model, step.view, options.dims)
        is_whole = part.nodes == len(step.model.graph.node)  # inputs that no node reads have to be fed, too
        nodes = None if is_whole else subject.view.node.keys()
        drawn = draw_batches(step.view, products, options.ranges, nodes=nodes)
        chosen = batches or tuple(islice(drawn, affordable))
    except UnsupportedModelError as error:
        return Probed(optimized=optimized, coverage=0.0, why_not=str(error))
    for number, batch in enumerate(chosen[:affordable]):
        try:
            if batch.doubtful:
                probed = _borne(batch, chosen[0], frozenset(products), subject, step)
                # Who has such data has it in every step: the loss scale settles on it.
                prepared += [probed.at_settled_scale(low_nodes, is_usual=True)] if probed else []
                continue
            probed = ProbedBatch(subject, batch.title, step.cut(batch.feeds))
            # Of the user's batches the scale is the user's.
            prepared.append(probed if batches else probed.at_settled_scale(low_nodes, is_usual=number == 0))
        except (ModelError, UnsupportedModelError, UsageError) as error:
            why_not = why_not or f"the FP32 step does not run on {batch.title}: {error.why or error}"
    if not prepared:
        return Probed(optimized=optimized, coverage=0.0, why_not=why_not)

    def is_over() -> bool:  # in trials, not by the clock: a plan is the same everywhere
        return sum(batch.trials for batch in prepared) > all_trials

    optimized, fp32 = _settled(optimized, options, prepared, is_over)
    return Probed(
        optimized=optimized,
        coverage=len(covered) / len(low_nodes),
        batches=tuple(batch.title for batch in prepared),
        fp32=MappingProxyType(fp32),
        trials=sum(batch.trials for batch in prepared),
        why_not="; ".join(filter(None, (rest, why_not))),
    )


def _borne(
    batch: Batch, ordinary: Batch, products: Nodes, subject: Subject, step: Step
) -> ProbedBatch | None:
    """Prepare a batch with those of its doubtful inputs that FP32 and low products bear; None where none is.

    What overflows in the first product says nothing of the plan: nobody trains on such data.
    """

    def with_ordinary(names: Iterable[str]) -> ProbedBatch:
        feeds = {**batch.feeds, **{name: ordinary.feeds[name] for name in names}}
        return ProbedBatch(subject, batch.title, step.cut(feeds))

    def is_borne(probed: ProbedBatch) -> bool:
        return probed.is_finite and not probed.faults_of_products(products)

    probed = with_ordinary(())
    if is_borne(probed):
        return probed
    if len(batch.doubtful) == 1:
        return None
    tried, rest = batch.doubtful[:_MOST_DOUBTFUL], batch.doubtful[_MOST_DOUBTFUL:]
    bad = [name for name in tried if not is_borne(with_ordinary(n for n in batch.doubtful if n != name))]
    probed = with_ordinary((*bad, *rest))
    return probed if len(bad) < len(tried) and is_borne(probed) else None


def _settled(
    optimized: Optimized,
    options: Options,
    batches: Sequence[ProbedBatch],
    is_over: IsOver,
) -> tuple[Optimized, dict[str, Verdict]]:
    """Decide again until nothing is wrong with the plan; if that does not end, all of it stays FP32."""
    problem, plan = optimized.problem, optimized.plan
    fp32: dict[str, Verdict] = {}
    for turn in range(_MOST_ROUNDS + 1):
        more: dict[str, Verdict] = {}
        for batch in batches:
            more |= _culprits(batch, problem, plan.low_nodes - more.keys(), is_over)
        if not more:
            break
        if turn == _MOST_ROUNDS:
            verdict = next(iter(more.values()))
            more = dict.fromkeys((n.name for n in problem.view.nodes if problem.is_free(n.name)), verdict)
        fp32 |= more
        problem = replace(problem, fixed={**problem.fixed, **more})
        plan = decide(problem, optimized.imported, options)
    if not fp32:
        return optimized, fp32
    return apply(plan, problem, optimized.imported), fp32


def _culprits(batch: ProbedBatch, problem: Problem, low_nodes: Nodes, is_over: IsOver) -> dict[str, Verdict]:
    """Find the nodes that make the step wrong on one batch: first among the products, then among the rest."""
    view = batch.view
    in_order = [node.name for node in view.nodes if node.name in low_nodes]
    products = [name for name in in_order if problem.op_class(name) is OpClass.ALLOW]
    culprits = wrongdoers(products, batch.faults_of_products, batch.effect, view, is_over=is_over)
    right = frozenset(products).difference(culprits)
    careful = batch.trial(right)
    rest = [name for name in in_order if name not in frozenset(products)]

    def wrong(names: Nodes) -> Sequence[Verdict]:
        return batch.faults(right | names, careful)

    def effect(names: Nodes) -> float:
        return batch.effect(right | names)

    return culprits | wrongdoers(rest, wrong, effect, view, is_over=is_over)


def wrongdoers(
    suspects: Sequence[str],
    wrong: Wrong,
    effect: Effect,
    view: GraphView,
    most_trials: int = _MOST_TRIALS,
    is_over: IsOver = lambda: False,
) -> dict[str, Verdict]:
    """Find nodes without which nothing is wrong.

    Halves are tried each by itself, so that a fault is followed to every node that causes it alone. Where
    nodes are wrong only together, those go whose effect is the largest.

    `wrong`: what is wrong if these nodes are low.
    `effect`: how far off the step is if these nodes are low.
    `view`: the graph: nodes that have no part in what is wrong are left alone.
    `most_trials`: sets of nodes to try by halves; nodes that are not told apart until then count as wrong.
    `is_over`: whether further trials take too long: then, too, and where they are wrong only together.
    """
    verdicts: dict[str, Verdict] = {}
    trials = 0

    def search(names: Sequence[str]) -> None:
        nonlocal trials
        trials += 1
        faults = wrong(frozenset(names)) if names else ()
        if not faults:
            return
        names = _involved(names, faults, view)
        if len(names) == 1 or trials > most_trials or is_over():
            verdicts.update(dict.fromkeys(names, faults[0]))
            return
        half = len(names) // 2
        search(names[:half])
        search(names[half:])

    search(suspects)
    rest = [name for name in suspects if name not in verdicts]
    while faults := wrong(frozenset(rest)) if rest else ():
        involved = _by_effect(_involved(rest, faults, view), effect, is_over)
        keep = _longest_right(involved, [n for n in rest if n not in frozenset(involved)], wrong, is_over)
        verdicts |= dict.fromkeys(involved[keep:], faults[0])
        rest = [name for name in rest if name not in verdicts]
    return verdicts


def _involved(names: Sequence[str], faults: Sequence[Verdict], view: GraphView) -> list[str]:
    """Nodes that have a part in what is wrong; all of them where that is not a tensor."""
    tensors = [str(fault.facts["tensor"]) for fault in faults if "tensor" in fault.facts]
    if len(tensors) < len(faults):
        return list(names)
    upstream = view.upstream(tensors)
    return [name for name in names if name in upstream] or list(names)


def _by_effect(names: Sequence[str], effect: Effect, is_over: IsOver) -> list[str]:
    """Nodes in order of their effect, the smallest first: those of each group of neighbours have one.

    Groups that are not tried any more come last.
    """
    size = math.ceil(len(names) / _GROUPS)
    groups = [names[i : i + size] for i in range(0, len(names), size)]
    effects = [math.inf if is_over() else effect(frozenset(group)) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: effects[i])
    return [name for i in order for name in groups[i]]


def _longest_right(involved: Sequence[str], others: Sequence[str], wrong: Wrong, is_over: IsOver) -> int:
    """Number of first nodes that may be low; at least one is not."""
    right, too_many = 0, len(involved)
    while too_many - right > 1 and not is_over():
        middle = (right + too_many) // 2
        if wrong(frozenset([*involved[:middle], *others])):
            too_many = middle
        else:
            right = middle
    return right


def _subject(
    optimized: Optimized, model: onnx.ModelProto, sized: GraphView, dims: Mapping[str, int]
) -> Subject:
    """Prepare the step, or the first part of it, for being run."""
    problem, imported = optimized.problem, optimized.imported
    view = problem.view
    part = part_of(sized, frozenset(node.name for node in model.graph.node))
    if view.is_mixed:
        model = emulate(model, dims)
    model = seeded(model)
    scaling = loss_scaling(view)
    ill_scaled = (
        low_gradients(view, scaling, optimized.plan.low_nodes)
        if problem.low is Precision.FP16 and problem.kind.trains
        else ()
    )
    outputs = {value.name for value in model.graph.output}
    return Subject(
        model=model,
        view=part,
        ports=problem.ports,
        low=problem.low,
        earlier={t: names for t, names in earlier_versions(view).items() if t in outputs},
        machine=machine(CPU, 1),
        folder=imported.folder,
        gradients=gradient_outputs(view, scaling),
        scale=scaling.scale if scaling.scale in view.inputs else None,
        ill_scaled=part.downstream(t for name in ill_scaled for t in view.node[name].outputs if t),
    )
