"""Predictions of measured plans by several models of costs, and what measured steps teach the best of them.

Nothing is measured here. The graphs of plans say which nodes are low and which Casts there are; models price
them, and medians of rounds say what they took.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from benchmarks.measured import summary
from benchmarks.measured.factors import ALONE, MeasuredStep, factors_of, fit_in_step, step_us
from benchmarks.measured.plans import FP32, PLANS, folder_of
from campo_onnx.bench.statistics import paired_speedup
from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.in_step import InStep, Part
from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.parts import parts_of
from campo_onnx.costs.predicted import CostModel
from campo_onnx.costs.table import CostTable
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision

Facts = dict[str, Any]

PROFILED, LEARNED, PER_OPERATOR = "profiled", "learned", "per operator"
GENERAL, FIGURES = "general", "figures"
MODELS = {
    PROFILED: "one model per operator, and a profile of the FP32 step (the paper's input)",
    LEARNED: "one model per operator, corrected by measured steps of the other networks",
    PER_OPERATOR: "one model per operator",
    GENERAL: "one general model",
    FIGURES: "public figures (roofline)",
}
"""Cost models by name."""

_FEWEST_PLANS = 3
_FEWEST_NETWORKS = 3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured plan.

    Parameters
    ----------
    network, plan
        Their names.
    parts_us
        By name of a model: what it predicts for each part of the step.
    rounds_ms
        Medians of its turns.
    """

    network: str
    plan: str
    parts_us: Mapping[str, Mapping[Part, float]]
    rounds_ms: Sequence[float]

    @property
    def step(self) -> MeasuredStep:
        """Its step beside what single nodes predict."""
        return MeasuredStep(
            graph=self.network,
            parts_us=self.parts_us[PER_OPERATOR],
            measured_us=median(self.rounds_ms) * 1e3,
        )


def measured_plans(
    rounds_ms: Mapping[str, Mapping[str, Sequence[float]]],
    graphs: Path,
    calibration: Calibration,
    profiles: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Iterator[Measured]:
    """Price every measured plan by every model.

    Parameters
    ----------
    rounds_ms
        Times by network and side.
    graphs
        Parent of the folders of graphs.
    calibration
        The models.
    profiles
        FP32 times by node, by network.
    """
    precision = calibration.precision
    alone = replace(calibration, in_step=ALONE)
    for network, times in rounds_ms.items():
        folder = folder_of(network, graphs)
        view = import_model(folder / f"{FP32}.onnx").view
        ports = {node.name: ports_of(view.signature(node.name), precision) for node in view.nodes}
        parts = parts_of(view)
        tables = {
            PER_OPERATOR: CostModel(alone).predict(view, ports),
            GENERAL: CostModel(replace(alone, entries=())).predict(view, ports),
            FIGURES: estimate(view, ports, calibration.target, precision),
        }
        if network in profiles:
            tables[PROFILED] = CostModel(calibration).predict(view, ports, fp32_us=profiles[network])
        for plan in (FP32, *PLANS):
            if times.get(plan):
                low, casts = changes_in(folder / f"{plan}.onnx", ports, precision)
                yield Measured(
                    network=network,
                    plan=plan,
                    parts_us={name: priced(table, parts, low, casts) for name, table in tables.items()},
                    rounds_ms=times[plan],
                )


def changes_in(
    path: Path, ports: Mapping[str, Ports], precision: Precision
) -> tuple[frozenset[str], tuple[int, ...]]:
    """Read from the graph of a plan which nodes are low, and the elements of each Cast that it has more."""
    mixed = import_model(path).view
    low, casts = set(), []
    for node in mixed.nodes:
        if node.name in ports:
            own = ports[node.name]
            tensors = [node.outputs[i] for i in own.low_outputs if i < len(node.outputs)]
            tensors += [node.inputs[i] for i in own.low_inputs if i < len(node.inputs)]
            if any(tensor and mixed.tensors[tensor].dtype == precision.onnx_dtype for tensor in tensors):
                low.add(node.name)
        elif node.op.op_type == "Cast":
            casts.append(mixed.tensors[node.outputs[0]].elements or 0)
    return frozenset(low), tuple(casts)


def priced(
    table: CostTable, parts: Mapping[str, Part], low: frozenset[str], casts: Sequence[int]
) -> Mapping[Part, float]:
    """Add up what a plan's nodes and Casts are predicted to take, by part."""
    parts_us = dict.fromkeys(Part, 0.0)
    for name, cost in table.nodes.items():
        parts_us[parts[name]] += cost.low_us if name in low else cost.fp32_us
    parts_us[Part.CASTS] += sum(map(table.cast.cast_us, casts))
    return parts_us


def learned(plans: Sequence[Measured]) -> Facts | None:
    """Compare the models: errors, rankings, mispredictions and what they cost; None for too few networks."""
    names = dict.fromkeys(plan.network for plan in plans)
    networks = {name: [plan for plan in plans if plan.network == name] for name in names}
    if len(networks) < _FEWEST_NETWORKS:
        return None
    is_profiled = all(PROFILED in plan.parts_us for plan in plans) and all(
        any(plan.plan == FP32 for plan in group) for group in networks.values()
    )
    models = {name: title for name, title in MODELS.items() if is_profiled or name != PROFILED}
    predicted = {name: _predictions(plans, name) for name in models}
    in_step = fit_in_step([plan.step for plan in plans])
    return {
        "plans": len(plans),
        "networks": len(networks),
        "titles": models,
        "models": {name: _quality(plans, networks, predicted_us) for name, predicted_us in predicted.items()},
        "factors": dict(in_step.factors),
        "moments": _moments(plans) if is_profiled else None,
        "itself": _mean([_agreement(group) for group in networks.values()]),
        "rows": [
            {
                "name": name,
                "title": summary.title_of(name),
                **{model: _misprediction(group, us) for model, us in predicted.items()},
            }
            for name, group in networks.items()
        ],
    }


def _predictions(plans: Sequence[Measured], model: str) -> Mapping[tuple[str, str], float]:
    if model == PROFILED:
        return _profiled(plans)
    if model != LEARNED:
        return {(p.network, p.plan): sum(p.parts_us[model].values()) for p in plans}
    predicted_us = {}
    for network in dict.fromkeys(p.network for p in plans):
        in_step = InStep(factors=factors_of([p.step for p in plans if p.network != network]))
        predicted_us |= {
            (network, p.plan): step_us(in_step, p.step.parts_us) for p in plans if p.network == network
        }
    return predicted_us


def _profiled(plans: Sequence[Measured]) -> Mapping[tuple[str, str], float]:
    """Predict steps from the measured FP32 step, by the speed-ups that a profile of it gives.

    Profiles are taken at other moments than steps, when a shared machine may be slower or faster throughout.
    """
    sums_us = {(p.network, p.plan): sum(p.parts_us[PROFILED].values()) for p in plans}
    fp32 = {p.network: p for p in plans if p.plan == FP32}
    return {
        (name, plan): float(fp32[name].step.measured_us * us / sums_us[name, FP32])
        for (name, plan), us in sums_us.items()
    }


def _moments(plans: Sequence[Measured]) -> float:
    """Mean difference of an FP32 step between the moments when it was measured and when it was profiled."""
    pairs = [(p.step.measured_us, sum(p.parts_us[PROFILED].values())) for p in plans if p.plan == FP32]
    return fmean(max(pair) / min(pair) - 1 for pair in pairs)


def _quality(
    plans: Sequence[Measured],
    networks: Mapping[str, Sequence[Measured]],
    predicted_us: Mapping[tuple[str, str], float],
) -> Facts:
    errors = [abs(predicted_us[p.network, p.plan] / p.step.measured_us - 1) for p in plans]
    low_errors = [error for error, p in zip(errors, plans, strict=True) if p.plan != FP32]
    ranks = [summary.spearman(_points(group, predicted_us)) for group in networks.values()]
    missed = [_misprediction(group, predicted_us) for group in networks.values()]
    return {
        "error": fmean(errors),
        "low_error": fmean(low_errors) if low_errors else None,
        "median_error": median(errors),
        "spearman": summary.spearman(_points(plans, predicted_us)),
        "within": _mean(ranks),
        "pairs": sum(one["pairs"] for one in missed),
        "wrong": sum(one["wrong"] for one in missed),
        "loss": fmean(one["loss"] for one in missed),
        "most_lost": max(one["loss"] for one in missed),
    }


def _points(group: Sequence[Measured], predicted_us: Mapping[tuple[str, str], float]) -> list[Facts]:
    return [
        {"predicted_ms": predicted_us[p.network, p.plan], "measured_ms": median(p.rounds_ms)} for p in group
    ]


def _misprediction(group: Sequence[Measured], predicted_us: Mapping[tuple[str, str], float]) -> Facts:
    """Say which plan a model would take, what it loses to the best one, and which pairs it orders wrongly.

    Of pairs of plans, those count whose difference is measured: the interval of their ratio leaves out 1.
    """
    chosen = min(group, key=lambda p: predicted_us[p.network, p.plan])
    best = min(group, key=lambda p: median(p.rounds_ms))
    pairs = wrong = 0
    for a, b in combinations(group, 2):
        ratio = paired_speedup(a.rounds_ms, b.rounds_ms)
        if ratio is not None and not ratio.low <= 1 <= ratio.high:
            pairs += 1
            is_faster = predicted_us[b.network, b.plan] < predicted_us[a.network, a.plan]
            wrong += is_faster != (ratio.median > 1)
    loss = median(chosen.rounds_ms) / median(best.rounds_ms) - 1
    return {"chosen": chosen.plan, "best": best.plan, "loss": loss, "pairs": pairs, "wrong": wrong}


def _agreement(group: Sequence[Measured]) -> float | None:
    """Rank correlation of a network's plans by odd rounds with the same by even ones."""
    halves = [(median(p.rounds_ms[::2]), median(p.rounds_ms[1::2])) for p in group if len(p.rounds_ms) > 1]
    return summary.spearman([{"predicted_ms": odd, "measured_ms": even} for odd, even in halves])


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
