"""A network's step in FP32 and in every plan, as files, beside the figures of the plans.

``graphs/NETWORK/plans.json`` is written last: where it is, the graphs beside it are whole.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measured.gradients import FP32, MOST, write_expected
from campo_onnx import Options, Precision, export_model, oplists
from campo_onnx.calibrate.catalog import CatalogEntry, found_calibrations
from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.files import write_text
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import CONVOLUTIONS_LOW, as_it_runs, lowered
from campo_onnx.ops.facts import work_of
from campo_onnx.optimize.plan.assemble import make_plan
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.targets.detect import resolve_target, this_cpu
from campo_onnx.targets.target import Target

Facts = dict[str, Any]

RUNTIME = "openvino"
LOWERED = "onnxruntime"
"""The step in the form for ONNX Runtime on this CPU: what is not OpenVINO runs no form for OpenVINO."""

ALL_LOW = MOST
PLANS = (ALL_LOW, "tf-amp", "fine-grained", "campo", "optimal")
"""Everything low that may be, and strategies, each with its own default lists."""

MARGIN = 0.01
"""Share of the FP32 step that is the margin of the strategy fine-grained."""

FEEDS = "feeds.safetensors"

_DONE = "plans.json"


def target_here() -> Target:
    """Describe this machine, with OpenVINO on it."""
    target, _ = resolve_target("auto", RUNTIME)
    return target


def catalogued() -> CatalogEntry | None:
    """Look up the calibration that plans rest on; None where none fits."""
    entries = found_calibrations(target_here(), Precision.BF16)
    return next((entry for entry in entries if not entry.refusal), None)


def calibration_here() -> str:
    """Name the calibration that plans rest on; "" where there is none that fits."""
    entry = catalogued()
    return "" if entry is None else f"{entry.origin}, of {entry.calibration.measured_at}"


def folder_of(name: str, graphs: Path) -> Path:
    """Folder of a network's graphs."""
    return graphs / name.replace("/", "-")


def plans_of(name: str, graphs: Path, key: str) -> Facts | None:
    """The plans of a network, where they were made under the same `key`."""
    path = folder_of(name, graphs) / _DONE
    facts: Facts | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return facts["plans"] if facts is not None and facts["key"] == key else None


def prepare(name: str, graphs: Path, key: str, costs: str = "auto") -> None:
    """Export a network's step, plan it, and write all graphs with values for their inputs.

    Parameters
    ----------
    name
        The network.
    graphs
        Parent of its folder.
    key
        Everything else that decides about the graphs; :func:`plans_of` asks for it.
    costs
        Where costs come from, as after ``--costs``.
    """
    import torch
    from safetensors.numpy import save_file

    from benchmarks.measured.networks import case_of
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.export.torch.state_dict import first_state

    torch.set_num_threads(1)  # another network is prepared beside it
    folder = folder_of(name, graphs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DONE).unlink(missing_ok=True)
    module, loss, inputs, targets = case_of(name)
    model = export_training_step(module, loss, inputs, targets, loss_scale=False)
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    values = (value.numpy() for value in (*inputs, *targets))
    feeds = first_state(module, model) | dict(zip(batch, values, strict=True))
    save_file({key: value.copy() for key, value in feeds.items()}, folder / FEEDS)
    imported, target = import_model(model), target_here()
    beside = as_it_runs(imported, Place(target=this_cpu("onnxruntime")))
    export_model(beside.model, folder / f"{LOWERED}.onnx")
    plans = write_plans(form_for_all(imported, target), target, costs, folder)
    write_expected(model, feeds, PLANS, folder)
    write_text(json.dumps({"key": key, "plans": plans}, indent=1) + "\n", folder / _DONE)


def form_for_all(imported: Imported, target: Target) -> Imported:
    """Bring a step into the form in which convolutions may be low; its FP32 step is measured in it, too."""
    place = Place(target=target)
    first = as_it_runs(imported, place)
    try:
        return lowered(first, place, CONVOLUTIONS_LOW)
    except UnsupportedModelError:
        return first


def write_plans(imported: Imported, target: Target, costs: str, folder: Path) -> Facts:
    """Plan a step in every way, write the graphs, and give figures of each plan by its name."""
    asked = Options(target=target, lists=oplists("campo"), low=Precision.BF16, costs=CostSource(costs))
    problems: dict[str, Problem] = {}
    facts: Facts = {}
    for name in (FP32, *PLANS):
        lists = STRATEGIES[name].default_lists if name in STRATEGIES else "campo"
        options = replace(asked, lists=oplists(lists))
        if lists not in problems:
            problems[lists] = _problem(imported, options, problems)
        problem = problems[lists]
        if name == ALL_LOW:
            plan = all_low(problem)
        else:
            margin_us = MARGIN * problem.predicted_us(frozenset())
            plan = decide(problem, imported, replace(options, strategy=name, margin_us=margin_us))
        export_model(rewrite(imported, plan), folder / f"{name}.onnx")
        facts[name] = figures(plan, problem)
    return facts


def _problem(imported: Imported, options: Options, others: Mapping[str, Problem]) -> Problem:
    """State a problem; costs do not depend on lists, and some have to be measured."""
    for other in others.values():
        return replace(problem_of(imported, replace(options, costs=CostSource.DATASHEET)), costs=other.costs)
    return problem_of(imported, options)


def all_low(problem: Problem) -> Plan:
    """Lower every node that may be."""
    from benchmarks.population.rows import all_fp16

    return make_plan(problem, all_fp16(problem), strategy=ALL_LOW, lists="campo")


def figures(plan: Plan, problem: Problem) -> Facts:
    """Count what a plan changes, and say how long it is predicted to take."""
    flops = product_flops(problem)
    low = plan.low_nodes
    return {
        "low": len(low),
        "nodes": len(problem.view.nodes),
        "casts": len(plan.casts),
        "flops_share": math.fsum(n for node, n in flops.items() if node in low) / math.fsum(flops.values()),
        "fp32_us": plan.fp32_us,
        "predicted_us": plan.predicted_us,
        "costs": str(plan.source),
    }


def product_flops(problem: Problem) -> Mapping[str, float]:
    """FLOPs of each node that is a matrix product or a convolution."""
    view = problem.view
    by_node = {
        node.name: math.fsum(gemm.flops for gemm in work_of(view.signature(node.name)).gemms)
        for node in view.nodes
    }
    return {name: flops for name, flops in by_node.items() if flops}
