"""Campo: four traverses that ask what a Cast costs (Campo, section 4.3)."""

import math
from collections.abc import Iterator

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import between, connected, neighbours, taint
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies.listed import has_class, listed_verdicts

_GRAY = (OpClass.INFER, OpClass.CLEAR)


def campo(problem: Problem) -> Assignment:
    """Decide by the paper's four traverses, unrefined; all FP32 where that is predicted faster."""
    problem = problem.with_pads_in_costs
    verdicts = listed_verdicts(problem)
    first = traverse_1(problem)
    verdicts |= first.verdicts
    low = first.low
    tainted = traverse_2(problem)
    for name in tainted:
        verdicts[name] = Reason.DOWNSTREAM_OF_DENY.of()
    between = traverse_3(problem, low, tainted)
    for name in between:
        verdicts[name] = Reason.BETWEEN.of()
    low |= between
    fourth = traverse_4(problem, low, tainted)
    verdicts |= fourth.verdicts
    low |= fourth.low
    for node in problem.view.nodes:
        if problem.is_free(node.name) and node.name not in verdicts:
            verdicts[node.name] = Reason.NOT_BETWEEN.of()
    if problem.predicted_us(low) >= problem.predicted_us(frozenset()):
        verdicts |= dict.fromkeys(low, Reason.NEVER_WORSE.of())
        low = frozenset()
    return Assignment(low=low, verdicts={k: v for k, v in verdicts.items() if problem.is_free(k)})


def traverse_1(problem: Problem) -> Assignment:
    """Allow nodes: low where FP16 time plus casts beats FP32 time.

    Casts of inputs count unless the input is low already (made low, or cast for another node);
    casts of outputs always count, since no reader is decided yet. The traverse is repeated until
    nothing more pays, so that the order in which the file lists nodes decides nothing.
    """
    verdicts: dict[str, Verdict] = {}
    low: set[str] = set()
    has_low_version = {tensor for tensor, site in problem.sites.items() if site.existing is not None}
    waiting = [node for node in problem.view.nodes if has_class(problem, node.name, OpClass.ALLOW)]
    changed = True
    while changed:
        changed = False
        for node in waiting:
            cost, ports = problem.costs.nodes[node.name], problem.ports[node.name]
            inputs = {node.inputs[i] for i in ports.low_inputs} & problem.sites.keys()
            outputs = {node.outputs[i] for i in ports.low_outputs} & problem.sites.keys()
            to_cast = {t for t in inputs - has_low_version if problem.sites[t].producer not in low}
            cast_us = sum(problem.sites[t].cast_us for t in (*sorted(to_cast), *sorted(outputs)))
            pays = cost.low_us + cast_us < cost.fp32_us
            verdicts[node.name] = (Reason.TRAVERSE_1_LOW if pays else Reason.TRAVERSE_1_FP32).of(
                gain_us=cost.gain_us, cast_us=cast_us
            )
            if pays:
                changed = True
                low.add(node.name)
                has_low_version |= to_cast
        waiting = [node for node in waiting if node.name not in low]
    return Assignment(low=frozenset(low), verdicts=verdicts)


def traverse_2(problem: Problem) -> frozenset[str]:
    """Infer and clear nodes that a deny node makes unsafe."""
    tainted = taint(problem.view, problem.classification)
    return frozenset(name for name in tainted if problem.is_free(name))


def traverse_3(problem: Problem, low: frozenset[str], tainted: frozenset[str]) -> frozenset[str]:
    """Infer and clear nodes between low nodes.

    The paper extends TensorFlow's pass here, whose rule is "between"; read literally, as every
    remaining infer and clear node, nothing would be left for traverse 4.
    """
    return between(problem.view, low, lambda name: name not in tainted and has_class(problem, name, *_GRAY))


def traverse_4(problem: Problem, low: frozenset[str], tainted: frozenset[str]) -> Assignment:
    """Clear nodes connected to a low node through clear nodes: each group low if it pays.

    A group is decided as a whole: what its nodes gain against the change of all casts at its
    boundary. Groups can share a Cast, so this too is repeated until nothing more pays.
    """
    verdicts: dict[str, Verdict] = {}
    low_now = set(low)
    waiting = list(_clear_groups(problem, low, tainted))
    changed = True
    while changed:
        changed = False
        for group in waiting:
            gain_us = math.fsum(problem.costs.nodes[name].gain_us for name in group)
            sites = {site.tensor: site for name in group for site in problem.sites_of(name)}
            before_us = math.fsum(site.new_cast_us(low_now) for site in sites.values())
            after_us = math.fsum(site.new_cast_us(low_now | group) for site in sites.values())
            pays = gain_us > after_us - before_us
            verdict = (Reason.TRAVERSE_4_LOW if pays else Reason.TRAVERSE_4_FP32).of(
                gain_us=gain_us, nodes=len(group), cast_us=after_us - before_us
            )
            verdicts |= dict.fromkeys(group, verdict)
            if pays:
                changed = True
                low_now |= group
        waiting = [group for group in waiting if not group <= low_now]
    return Assignment(low=frozenset(low_now - low), verdicts=verdicts)


def _clear_groups(problem: Problem, low: frozenset[str], tainted: frozenset[str]) -> Iterator[frozenset[str]]:
    """Yield connected groups of remaining clear nodes that touch a low node, in graph order."""
    view, decided = problem.view, low | tainted
    remaining = {
        n.name for n in view.nodes if n.name not in decided and has_class(problem, n.name, OpClass.CLEAR)
    }
    for group in connected(view, remaining):
        if any(other.name in low for name in group for other in neighbours(view.node[name], view)):
            yield group
