"""Other strategies and other devices: the same step, planned for them."""

import time
from collections.abc import Iterator
from dataclasses import replace

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import CampoError
from campo_onnx.hardware.datasheet import devices
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import Optimized, decide, problem_of
from campo_onnx.targets.target import Target


def alternatives(optimized: Optimized, options: Options, *, patience_s: float = 5.0) -> Iterator[Plan]:
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
    for name, hardware in devices().items():
        if hardware.is_gpu and name != options.target.name:
            there = Target.of(hardware)
            yield replace(options, target=there, costs=CostSource.DATASHEET, evidence=Evidence())
