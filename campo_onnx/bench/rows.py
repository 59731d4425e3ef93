"""From timed rounds to one row for each step: its time, its speed-up, and what that says."""

from collections.abc import Iterator, Mapping, Sequence

from campo_onnx.bench.failure import Failure
from campo_onnx.bench.result import BenchRow, Outcome
from campo_onnx.bench.rounds import RUNS, Rounds, merged
from campo_onnx.bench.statistics import (
    interval_over_runs,
    median_interval,
    paired_speedup,
    resolvable,
    verdict,
)


def rows_of(
    names: Sequence[str],
    runs: Sequence[Rounds],
    *,
    failures: Mapping[str, Failure],
    tolerance: float,
    batch: int | None,
) -> Iterator[BenchRow]:
    """Compare steps that ran in the same rounds."""
    rounds, per_run = merged(runs), [run.count for run in runs]
    failures = {**failures, **rounds.failures}
    first = names[0]
    baseline_us = () if first in failures else rounds.samples_us[first]
    if baseline_us:
        tolerance = resolvable(tolerance, median_interval(baseline_us).median)
    for name in names:
        samples_us = rounds.samples_us.get(name, ())
        step_us = interval_over_runs(samples_us, per_run) if samples_us else None
        failure = failures.get(name, Failure(text="", exit_code=0))
        is_compared = name != first and not failure.text
        speedup = paired_speedup(baseline_us, samples_us, per_run) if is_compared else None
        if failure.text:
            outcome = Outcome.FAILED
        elif name == first:
            outcome = Outcome.BASELINE
        else:
            is_enough = speedup is not None and sum(map(bool, per_run)) >= RUNS
            outcome = verdict(speedup, tolerance) if speedup and is_enough else Outcome.NOT_COMPARED
        yield BenchRow(
            name=name,
            step_us=step_us,
            speedup=speedup,
            verdict=outcome,
            samples_per_s=batch / step_us.median * 1e6 if batch and step_us else None,
            failure=failure.text,
            failure_code=failure.exit_code,
        )
