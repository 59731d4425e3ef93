"""One row: a network of the population, exported and planned by every strategy for every device."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.population import ALL_FP16, BY_LISTS, DEVICES, OPTIMAL, PLANNED, UNPADDED, Row
from benchmarks.population.networks import Network, network
from campo_onnx import Options, oplists, target
from campo_onnx.bench.bench import bench
from campo_onnx.bench.graphs import read_graphs
from campo_onnx.costs.estimated import estimate
from campo_onnx.export.torch import export_training_step
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Assignment, Problem
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.traffic import traffic
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.runtime.registry import machine

FIGURES = ("predicted_us", "casts", "cast_us", "low_nodes", "pads")
FORM = "v100"
"""Device in whose form all devices are planned, so that plans of one graph are compared."""

_MEASURED = (ALL_FP16, "tf-amp", "fine-grained", "campo", OPTIMAL)


def row(number: int, devices: tuple[str, ...] = DEVICES, measure_on: str = "", steps: int = 20) -> Row:
    """Draw a network, plan it and, where `measure_on` names a provider of this machine, measure it."""
    drawn = network(number)
    imported = import_model(exported(drawn, FORM))
    result: Row = {
        "number": number,
        "family": drawn.family,
        "figures": drawn.figures,
        **features(imported),
        "devices": planned(imported, devices),
    }
    if measure_on:
        result["measured"] = measured(import_model(exported(drawn)), measure_on, steps)
    return result


def exported(drawn: Network, form: str | None = None) -> onnx.ModelProto:
    """Export forward, loss and backward pass, in the form for a device: the paper times no update."""
    return export_training_step(
        drawn.module, drawn.loss, drawn.inputs, drawn.targets, unscale=False, target=form
    )


def features(imported: Imported) -> Row:
    """Say what a step is like, whatever the device."""
    view = imported.view
    counted = traffic(view)
    gemms = [gemm for node in view.nodes for gemm in work_of(view.signature(node.name)).gemms]
    flops = math.fsum(gemm.flops for gemm in gemms)
    aligned = math.fsum(gemm.flops for gemm in gemms if gemm.is_aligned(Multiples.of_all(8)))
    pooled = counted.by_family.get(Family.POOLING)
    return {
        "nodes": len(view.nodes),
        "launches": counted.total.launches,
        "moved_bytes": counted.total.moved_bytes,
        "peak_bytes": counted.peak_bytes,
        "product_flops": flops,
        "aligned_share": aligned / flops,
        "pooling_share": pooled.moved_bytes / counted.total.moved_bytes if pooled else 0.0,
    }


def planned(imported: Imported, devices: Iterable[str]) -> Row:
    """Let every strategy plan for every device: predicted steps and casts."""
    questions, answers, by_device = Questions(imported), {}, {}
    for name in devices:
        problem = questions.problem("campo", name)
        fp32_us, products = problem.predicted_us(frozenset()), _products(problem)
        priced = {}
        for strategy in PLANNED:
            lists = lists_of(strategy)
            asked = questions.problem(lists, name)
            if strategy in BY_LISTS:
                if strategy not in answers:
                    answers[strategy] = low_nodes(strategy, asked)
                priced[strategy] = price(asked, answers[strategy])
            else:
                priced[strategy] = price_of(decide(asked, imported, questions.options(strategy, name)))
        by_device[name] = {
            "fp32_us": fp32_us,
            "product_share": math.fsum(problem.costs.nodes[node].fp32_us for node in products) / fp32_us,
            "fixed_share": math.fsum(problem.costs.nodes[node].fp32_us for node in problem.fixed) / fp32_us,
            "slower_low_us": slower_low(problem),
            **{figure: {key: one[figure] for key, one in priced.items()} for figure in FIGURES},
        }
    return by_device


def lists_of(strategy: str) -> str:
    """Name the lists that a strategy plans with."""
    return STRATEGIES[strategy].default_lists if strategy in STRATEGIES else "campo"


class Questions:
    """The problems of one graph: values and classes do not depend on the device, costs do."""

    def __init__(self, imported: Imported) -> None:
        self._imported = imported
        self._first: dict[str, Problem] = {}
        self._by_device: dict[tuple[str, str], Problem] = {}

    def options(self, strategy: str, name: str) -> Options:
        """Make the options of a strategy for a device."""
        chosen = OPTIMAL if strategy == UNPADDED else strategy
        lists = oplists(lists_of(strategy))
        return Options(target=target(name), lists=lists, strategy=chosen, pads=strategy != UNPADDED)

    def problem(self, lists: str, name: str) -> Problem:
        """Find the problem under some lists for a device."""
        first, asked = self._first.get(lists), target(name)
        if first is None:
            options = Options(target=asked, lists=oplists(lists))
            self._first[lists] = self._by_device[lists, name] = problem_of(self._imported, options)
        elif (lists, name) not in self._by_device:
            costs = estimate(first.view, first.ports, asked, first.low)
            self._by_device[lists, name] = replace(first, costs=costs)
        return self._by_device[lists, name]


def low_nodes(strategy: str, problem: Problem) -> frozenset[str]:
    """Ask a strategy that looks at no costs, so that its answer is that for every device."""
    if strategy == ALL_FP16:
        return all_fp16(problem).low
    return STRATEGIES[strategy].decide(problem).low


def all_fp16(problem: Problem) -> Assignment:
    """Lower every node that may be: one with an FP16 kernel whose values FP16 holds. Lists have no say."""
    free = [node.name for node in problem.view.nodes if problem.is_free(node.name)]
    facts = {"margin_us": math.inf, "gain_us": 0.0, "low": problem.low.name}
    verdict = Verdict(decided_by=Reason.MARGIN_LOW, facts=facts)
    return Assignment(low=frozenset(free), verdicts=dict.fromkeys(free, verdict))


def price(problem: Problem, low: frozenset[str]) -> Row:
    """Price an answer as :func:`campo_onnx.optimize.plan.assemble.make_plan` does, without the plan."""
    casts = [cast for site in problem.sites.values() if (cast := site.new_cast(low)) is not None]
    return {
        "predicted_us": problem.predicted_us(low),
        "casts": len(casts),
        "cast_us": math.fsum(cast.cast_us for cast in casts),
        "low_nodes": len(low),
        "pads": 0,
    }


def price_of(plan: Plan) -> Row:
    """Say the same of a plan."""
    return {
        "predicted_us": plan.predicted_us,
        "casts": len(plan.casts),
        "cast_us": math.fsum(cast.cast_us for cast in plan.casts),
        "low_nodes": len(plan.low_nodes),
        "pads": len(plan.pads),
    }


def _products(problem: Problem) -> list[str]:
    view = problem.view
    return [node.name for node in view.nodes if work_of(view.signature(node.name)).gemms]


def slower_low(problem: Problem) -> Row:
    """Sum up what nodes lose that FP16 makes slower, by family, Casts left out of account."""
    lost_us: Row = {}
    for node in problem.view.nodes:
        gain_us = problem.costs.nodes[node.name].gain_us
        if problem.is_free(node.name) and gain_us < 0:
            family = spec(node.op).family.value
            lost_us[family] = lost_us.get(family, 0.0) - gain_us
    return lost_us


def plan_of(strategy: str, imported: Imported, name: str) -> Plan:
    """Plan by one strategy, or all FP16."""
    questions = Questions(imported)
    if strategy == ALL_FP16:
        problem = questions.problem("campo", name)
        return make_plan(problem, all_fp16(problem), strategy=ALL_FP16, lists="campo")
    options = questions.options(strategy, name)
    return decide(questions.problem(options.lists.name, name), imported, options)


def measured(imported: Imported, provider: str, steps: int) -> Row:
    """Time the FP32 step and the planned ones in turns on this machine: median and 95 % interval."""
    here = machine(provider)
    with TemporaryDirectory() as folder:
        paths = [*_written(imported, here.provider, Path(folder))]
        result = bench(read_graphs(paths), here, steps=steps, energy=False)
    by_graph = {
        Path(one.name).stem: {
            "us": one.step_us.median,
            "low_us": one.step_us.low,
            "high_us": one.step_us.high,
        }
        if one.step_us is not None
        else {"failure": str(one.failure)}
        for one in result.rows
    }
    return {
        "provider": here.provider,
        "device": here.device,
        "ort": here.ort,
        "steps": steps,
        "rows": by_graph,
    }


def _written(imported: Imported, name: str, folder: Path) -> Iterator[Path]:
    path = folder / "fp32.onnx"
    onnx.save(imported.model, path)
    yield path
    for strategy in _MEASURED:
        path = folder / f"{strategy}.onnx"
        export_model(rewrite(imported, plan_of(strategy, imported, name)), path)
        yield path
