"""``optimize --verify``, ``compare --measure`` and ``--drift``: plans measured or emulated here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.errors import UsageError

from .options import VERIFICATION, option
from .render.console import progressing, working

if TYPE_CHECKING:
    from campo_onnx.bench.verify import Verification
    from campo_onnx.planning.comparison import Comparison
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.runtime.feeds import Feeds

REPAIRS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationArguments:
    """Options of ``optimize`` that measure its result."""

    verify: Annotated[
        bool,
        option(
            VERIFICATION,
            "--verify",
            help="Measure the mixed step against FP32 on this machine, which must have --device, and write "
            "FP32 unless the whole 95 % confidence interval says that the mixed step is faster; a file that "
            "is low already takes the place of FP32.",
        ),
    ] = False
    repair: Annotated[
        bool,
        option(
            VERIFICATION,
            "--repair",
            help=f"With --verify: if the mixed step is not faster, plan again with costs corrected by the "
            f"measurement, up to {REPAIRS} times.",
        ),
    ] = False
    verify_steps: Annotated[
        int,
        option(
            VERIFICATION,
            "--verify-steps",
            metavar="N",
            min=6,
            help="For --verify: timed steps of each graph.",
        ),
    ] = 40


def check_repairable(strategy: str, *, verify: bool) -> None:
    """Check that planning again can change the plan."""
    from campo_onnx.optimize.strategies import STRATEGIES, strategy_called

    if not verify:
        raise UsageError("--repair needs --verify", remedy="Give both.")
    if not strategy_called(strategy).is_cost_aware:
        others = [s.name for s in STRATEGIES.values() if s.is_cost_aware]
        raise UsageError(
            f"--repair cannot change what {strategy} decides",
            why="that strategy does not use costs",
            remedy=f"Choose --strategy {' or '.join(others)}.",
        )


def verified(
    optimized: "Optimized",
    options: "Options",
    *,
    feeds: "Feeds | None",
    repair: bool,
    steps: int,
    budget_s: float | None = None,
) -> "Verification":
    """Measure a result, and repair it if asked to, on a batch or a generated one."""
    from campo_onnx.bench.bench import bench
    from campo_onnx.bench.verify import verify
    from campo_onnx.targets.detect import machine_of

    machine = machine_of(options.target)
    with progressing(f"measuring against fp32 on {machine.device}") as advance:
        measure = partial(
            bench, machine=machine, feeds=feeds, steps=steps, budget_s=budget_s, on_progress=advance
        )
        return verify(optimized, options, measure, repairs=REPAIRS if repair else 0)


def measured_strategies(comparison: "Comparison", options: "Options", *, steps: int) -> "Comparison":
    """Measure every strategy's graph against FP32."""
    from campo_onnx.bench.bench import bench
    from campo_onnx.bench.verify import measured
    from campo_onnx.targets.detect import machine_of

    machine = machine_of(options.target)
    with progressing(f"measuring strategies on {machine.device}") as advance:
        measure = partial(bench, machine=machine, steps=steps, on_progress=advance)
        return measured(comparison, measure, options.dims)


def drifting(
    comparison: "Comparison", numerics: "Sequence[str]", *, inputs: Path | None, dims: "Mapping[str, int]"
) -> "Comparison":
    """Emulate every strategy's graph, on the batch in `inputs` or a generated one."""
    from campo_onnx.emulation.comparison_drift import Numerics, with_drift
    from campo_onnx.runtime.feeds import read_feeds

    imported = comparison.imported
    feeds = None if inputs is None else read_feeds(inputs, imported.view, imported.defaults)
    with working("emulating strategies on the CPU"):
        return with_drift(comparison, [Numerics(one) for one in numerics], feeds=feeds, dims=dims)
