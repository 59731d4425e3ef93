"""Advice where low precision is not predicted to pay, and other plans beside one: planned, never guessed."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, decide, planned, problem_of
from campo_onnx.targets.target import targets

PATIENCE_S = 5.0
"""Time after which no further plan is tried."""

_BATCH = re.compile(r"(?i)batch|^b$|^n$|^bs$")
_LARGEST_FACTOR = 256
_MOSTLY = 0.5
_NAMED = 3  # operators that a sentence names


def advice(optimized: Optimized, options: Options, *, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """Say why a step stays FP32, and what else to try.

    Batches and devices are tried by planning the same step for them, with the costs of public figures
    for other devices.

    Returns
    -------
    tuple of str
        Sentences; none where something was lowered, the strategy asks no costs, or the graph is a result
        of campo-onnx already.
    """
    plan = optimized.plan
    if plan.low_nodes or optimized.was_optimized_before or not options.chosen_strategy.is_cost_aware:
        return ()
    if any(str(d.decided_by).startswith("verified-") for d in plan.decisions):
        return ()
    other = next((d.precision for d in plan.decisions if d.precision not in (None, Precision.FP32)), None)
    if other is not None:
        wider = f"--precision {other.value} plans it both ways"
        return (f"The file computes in {other.value}, which stays as it is: {wider}.",)
    until = time.monotonic() + patience_s
    too_little = tuple(_too_little(plan))
    if not too_little and not any(d.other_cast_us is not None for d in plan.decisions):
        return (
            "No node may run in low precision: lists, safety rules or missing kernels keep all of them in "
            "FP32; --verbose lists them.",
        )
    denied = tuple(_denied(plan))
    computes = options.target.computes_in(options.low)
    sizes_matter = computes and not denied  # what a list holds, it holds at any size
    return (
        *too_little,
        *denied,
        *(_launches(optimized, options) if computes else ()),
        *(_captured(optimized.imported, options, until) if computes else ()),
        *(_batches(optimized.imported, options, until) if sizes_matter else ()),
        *_devices(optimized.imported, options, until),
    )


def _too_little(plan: Plan) -> Iterator[str]:
    """Say what low precision would have saved, where that is less than is asked for."""
    verdict = next((d.verdict for d in plan.decisions if d.decided_by is Reason.MIN_GAIN), None)
    if verdict is not None:
        yield f"{verdict.reason[:1].upper()}{verdict.reason[1:]}. --min-gain 0 takes any predicted gain."


def _denied(plan: Plan) -> Iterator[str]:
    """Say which operators the deny list holds, where they and what follows them are most of the step."""
    times_us: dict[str, float] = {}
    after_us = 0.0
    for d in plan.decisions:
        if d.decided_by is Reason.DENY_LIST:
            times_us[d.op_type] = times_us.get(d.op_type, 0.0) + d.fp32_us
        elif d.decided_by is Reason.DOWNSTREAM_OF_DENY:
            after_us += d.fp32_us
    if sum(times_us.values()) + after_us > _MOSTLY * plan.fp32_us:
        largest = sorted(times_us, key=lambda op: (-times_us[op], op))[:_NAMED]
        share = (sum(times_us.values()) + after_us) / plan.fp32_us
        yield (
            f"{share:.0%} of the step's time is in operators on the deny list, and downstream of them: "
            f"{', '.join(largest)}. --allow, --infer or other --lists would let them run low."
        )


def _launches(optimized: Optimized, options: Options) -> Iterator[str]:
    plan, target = optimized.plan, options.target
    if not target.hardware.is_gpu or not plan.fp32_us:
        return
    launches = optimized.given_traffic.total.launches
    share = min(1.0, launches * target.launch_us / plan.fp32_us)
    if share > _MOSTLY:
        yield (
            f"The step is launch-bound at this size: {launches:,} launches of {target.launch_us:g} us are "
            f"{share:.0%} of it. No precision makes a launch shorter, and every Cast is one more."
        )


def _captured(imported: Imported, options: Options, until: float) -> Iterator[str]:
    """Try the step as a captured CUDA graph."""
    target = options.target
    if not target.can_capture or target.captured == target or time.monotonic() >= until:
        return
    plan = _plan(imported, replace(options, target=target.captured, costs=CostSource.DATASHEET))
    if plan is not None and plan.low_nodes:
        yield (
            "Captured as a CUDA graph, where a launch costs less, it is predicted to pay: "
            f"{plan.speedup:.2f}x with --execution graph."
        )


def _batches(imported: Imported, options: Options, until: float) -> Iterator[str]:
    """Try larger batches where the graph leaves the batch open."""
    names = [name for name in options.dims if _BATCH.search(name)] or (
        [*options.dims] if len(options.dims) == 1 else []
    )
    if not names:
        if not options.dims:
            yield (
                "The file has fixed sizes. Larger batches have longer kernels, where FP16 pays sooner: "
                "export with a larger batch, or with a symbolic one to try sizes with --dim."
            )
        return
    name, size = names[0], options.dims[names[0]]
    factor, tried = 2, size
    while factor <= _LARGEST_FACTOR and time.monotonic() < until:
        tried = size * factor
        plan = _plan(imported, replace(options, dims={**options.dims, name: tried}))
        if plan is not None and plan.low_nodes:
            yield f"From --dim {name}={tried} on it is predicted to pay: {plan.speedup:.2f}x there."
            return
        factor *= 2
    if tried > size:
        yield f"Larger batches were tried up to --dim {name}={tried}: FP16 is predicted to pay at none."


def _devices(imported: Imported, options: Options, until: float) -> Iterator[str]:
    """Try the other GPUs, from public figures."""
    best: tuple[float, str] | None = None
    for there in _other_gpus(options):
        plan = _plan(imported, there) if time.monotonic() < until else None
        if plan is not None and plan.low_nodes and (best is None or plan.speedup > best[0]):
            best = plan.speedup, there.target.name
    if best is not None:
        yield f"On other devices it is predicted to pay: {best[0]:.2f}x with --device {best[1]}."


def _plan(graph: Imported, options: Options) -> Plan | None:
    try:
        imported = replace(import_model(graph.model, options.dims), folder=graph.folder)
        return planned(imported, options)
    except CampoError:  # a size that the graph does not take
        return None


def alternatives(optimized: Optimized, options: Options, *, patience_s: float = PATIENCE_S) -> Iterator[Plan]:
    """Plan a step with the other strategies, and from public figures for the other GPUs.

    After `patience_s` no further plan is tried.
    """
    until = time.monotonic() + patience_s
    for other in () if optimized.was_optimized_before else _others(options):
        if time.monotonic() >= until:
            return
        try:
            is_here = other.target == options.target
            problem = optimized.problem if is_here else problem_of(optimized.imported, other)
            yield decide(problem, optimized.imported, other)
        except CampoError:  # a runtime that refuses the precision
            continue


def _others(options: Options) -> Iterator[Options]:
    for name in STRATEGIES:
        if name != options.strategy:
            yield replace(options, strategy=name)
    yield from _other_gpus(options)


def _other_gpus(options: Options) -> Iterator[Options]:
    """The same for the other GPUs, from public figures."""
    for name, there in targets().items():
        if there.hardware.is_gpu and name != options.target.name:
            yield replace(options, target=there, costs=CostSource.DATASHEET, evidence=Evidence())
