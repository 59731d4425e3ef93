"""Other strategies and other devices: the same step, planned for them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import CampoError
from campo_onnx.hardware.datasheet import devices
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, decide, problem_of
from campo_onnx.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan that was not asked for, in numbers."""

    strategy: str
    device: str
    low_nodes: int
    casts: int
    fp32_us: float
    predicted_us: float


def alternatives(
    optimized: Optimized, options: Options, *, patience_s: float = 5.0
) -> tuple[Alternative, ...]:
    """Plan a step with the other strategies, and from public figures for the other GPUs.

    After `patience_s` no further plan is tried.
    """
    if optimized.was_optimized_before:
        return ()
    until, found = time.monotonic() + patience_s, []
    for other in _others(options):
        if time.monotonic() >= until:
            break
        imported, same = optimized.imported, other.target == options.target
        try:
            problem = optimized.problem if same else problem_of(imported, other)
            plan = decide(problem, imported, other)
        except CampoError:  # a target whose runtime refuses the precision
            continue
        found.append(
            Alternative(
                strategy=plan.strategy,
                device=other.target.name,
                low_nodes=len(plan.low_nodes),
                casts=len(plan.casts),
                fp32_us=plan.fp32_us,
                predicted_us=plan.predicted_us,
            )
        )
    return tuple(found)


def _others(options: Options) -> Iterator[Options]:
    for name in STRATEGIES:
        if name != options.strategy:
            yield replace(options, strategy=name)
    for name, hardware in devices().items():
        if hardware.is_gpu and name != options.target.name:
            there = Target.of(hardware)
            yield replace(options, target=there, costs=CostSource.DATASHEET, evidence=Evidence())
