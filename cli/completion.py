"""Completion by the shell: names of devices, runtimes, strategies, operators and nodes."""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from campo_onnx.ops.precision import low_precisions

AUTO = "auto"
"""Leaves a choice to the program."""


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete what is typed to the names that begin with it."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _devices() -> Iterable[str]:
    from campo_onnx.targets.target import targets

    return (AUTO, *targets())


def _strategies() -> Iterable[str]:
    from campo_onnx.optimize.strategies import STRATEGIES

    return STRATEGIES


def _lists() -> Iterable[str]:
    from campo_onnx.optimize.lists.oplists import preset_names

    return preset_names()


def _runtimes() -> Iterable[str]:
    from campo_onnx.runtime.registry import runtimes

    return (AUTO, *(runtime.name for runtime in runtimes()))


def precisions() -> Iterable[str]:
    """Names of the low precisions."""
    return (precision.value for precision in low_precisions())


complete_devices, complete_runtimes = completing(_devices), completing(_runtimes)
complete_strategies, complete_lists = completing(_strategies), completing(_lists)
complete_providers = completing(lambda: (AUTO, "cpu", "cuda"))


def complete_calibrated(incomplete: str) -> list[str]:
    """Operators that a calibration times, for the shell's completion; several are separated by commas."""
    from campo_onnx.calibrate.layers import SAMPLED_OPS

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{op}" for op in SAMPLED_OPS if op.startswith(last)]


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Nodes of the plan that stands before, for the shell's completion."""
    from campo_onnx.errors import CampoError
    from campo_onnx.files import read_bytes
    from campo_onnx.optimize.plan.plan import Plan

    path = Path(str(ctx.params.get("plan")))
    try:
        plan = Plan.from_json(read_bytes(path, title=str(path)), title=str(path))
    except CampoError:
        return []
    return [node for node in plan.decision if node.startswith(incomplete)]
