"""The progress display, on a terminal that is none."""

import io
import re
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from rich.console import Console

from campo_onnx.training import progress
from campo_onnx.training.session import StepResult


class Clock:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def terminal(clock: Clock, **options: bool) -> Console:
    return Console(file=io.StringIO(), width=160, get_time=clock, **({"force_terminal": True} | options))


def result(step: int, **changes: object) -> StepResult:
    fields = {"metrics": {"loss": np.float32(2.5)}, "skipped": False, "loss_scale": 2.0**16, "samples": 32}
    return StepResult(step=step, duration_s=0.1, **(fields | changes))


def shown(results: Iterable[StepResult], *, total: int | None = None, seconds_per_step: float = 0.5) -> str:
    """Run a loop, each step of which takes so long, and give the last line on the terminal."""
    clock = Clock()
    console = terminal(clock)
    for _ in progress(results, total=total, console=console):
        clock.now_s += seconds_per_step
    assert isinstance(console.file, io.StringIO)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).split("\r")
    return [line for line in lines if line.strip()][-1]


def test_results_pass_through_one_by_one() -> None:
    steps = []

    def results() -> Iterator[StepResult]:
        for step in (1, 2):
            steps.append(step)
            yield result(step)

    passing = progress(results(), console=terminal(Clock()))
    assert next(passing).step == 1
    assert steps == [1]
    assert [each.step for each in passing] == [2]


def test_figures() -> None:
    results = [result(n, skipped=n < 3, metrics={"loss": np.float32(3 / n)}) for n in range(1, 9)]
    line = shown(results, total=8)
    for figure in ("training", "8/8", "loss 0.375", "scale 2^16", "2 skipped"):
        assert figure in line


def test_samples_per_second_count_the_time_between_steps() -> None:
    assert "64.0 samples/s" in shown([result(n) for n in range(1, 9)], seconds_per_step=0.5)
    assert "1,280.0 samples/s" in shown([result(n) for n in range(1, 9)], seconds_per_step=0.025)


def test_the_remaining_time() -> None:
    stopped = shown((result(n) for n in range(1, 5)), total=604, seconds_per_step=0.5)
    assert "4/604" in stopped
    assert "0:05:00" in stopped


def test_what_a_graph_does_not_have_is_not_shown() -> None:
    line = shown([result(1, loss_scale=None, metrics={}), result(2, loss_scale=None, metrics={})])
    assert not any(word in line for word in ("loss", "scale", "skipped"))


def test_a_scale_that_is_no_power_of_two() -> None:
    assert "scale 1000" in shown([result(1, loss_scale=1000.0)])


def test_a_title_is_no_markup() -> None:
    clock = Clock()
    console = terminal(clock)
    list(progress([result(1)], title="[red]run[/red]", console=console))
    assert "[red]run[/red]" in console.file.getvalue()


def test_nothing_is_printed_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal(Clock(), force_terminal=False)
    assert len(list(progress([result(1), result(2)], total=2, console=console))) == 2
    assert console.file.getvalue() == ""
    assert len(list(progress([result(1), result(2)], total=2))) == 2
    assert capsys.readouterr() == ("", "")


def test_the_display_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    list(progress([result(1)]))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loss 2.5" in captured.err


def test_leaving_the_loop_ends_the_display() -> None:
    console = terminal(Clock())
    for _ in progress([result(1), result(2)], console=console):
        break
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_failing_step_comes_through() -> None:
    def results() -> Iterator[StepResult]:
        yield result(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(progress(results(), console=terminal(Clock())))
