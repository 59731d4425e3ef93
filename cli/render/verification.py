"""Measurements of `optimize --verify`."""

from typing import TYPE_CHECKING

from .console import escape, stderr
from .units import duration

if TYPE_CHECKING:
    from campo_onnx.bench.verify import Attempt, Verification


def print_verification(verification: "Verification") -> None:
    """Print the measured step of each attempt and of what it is measured against; say what is returned."""
    console = stderr()
    if not verification.attempts:
        console.print("Nothing to verify: the plan changes nothing.")
        return
    for number, attempt in enumerate(verification.attempts, start=1):
        console.print(escape(_told(attempt, number)))
    if not verification.won:
        told = "No mixed step was faster, so FP32 is returned."
        if verification.returned.problem.starts_low:
            told = "No planned step was faster, so the file stays as it is."
        console.print(told, style="bold")


def _told(attempt: "Attempt", number: int) -> str:
    fp32, mixed = attempt.result.rows[:2]
    where = f"Measured on {attempt.result.machine.device}" if number == 1 else "Planned again and measured"
    if fp32.step_us is None or mixed.step_us is None or mixed.speedup is None:
        return f"{where}: the step does not run in {mixed.name}: {mixed.failure}"
    plan, problem = attempt.optimized.plan, attempt.optimized.problem
    predicted = problem.predicted_us(problem.low_unchanged) / plan.predicted_us
    return (
        f"{where}: {fp32.name} {duration(fp32.step_us.median)}, "
        f"{mixed.name} {duration(mixed.step_us.median)}: "
        f"{mixed.speedup.median:.2f}x, 95 % interval {mixed.speedup.low:.2f} to {mixed.speedup.high:.2f} "
        f"({mixed.verdict.value}); predicted {predicted:.2f}x."
    )
