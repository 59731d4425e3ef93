"""Tasks, wherever they run: a task is a value with a key, and is done once."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from campo_onnx.errors import is_out_of_memory
from campo_onnx.scale.results import Results

ATTEMPTS = 3
"""Attempts at a task whose worker dies: a task that kills its worker would do so for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work."""

    key: str  # what its result is kept under. Everything that decides the result is in it.
    # A function at the top of a module, which workers import; it returns what JSON can hold.
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()  # its arguments; they are pickled
    # What Ray must set aside for it besides one CPU, such as `{"accelerator_type:V100": 0.001}`. Without a
    # meaning on one machine.
    resources: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a task."""

    value: Any = None
    # Why there is no value: the error of its function, or that its workers died; else `""`. A failed task is
    # not kept, so that the next run does it again.
    failure: str = ""
    is_memory: bool = False  # whether it failed for lack of memory
    traceback: str = ""  # where its function failed; `""` for workers that died
    cpu_s: float = 0.0


class Pool(Protocol):
    """Workers. Opened and closed by ``with``."""

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Do tasks, and give each with its outcome as soon as there is one, in any order.

        A worker that dies costs the task it was at, which is begun again, up to :data:`ATTEMPTS` times.
        """


def call(task: Task) -> Outcome:
    """Do a task in this process."""
    began = time.process_time()
    try:
        value = task.function(*task.arguments)
    except Exception as error:  # of one task in thousands: the others go on, and this one is told
        return Outcome(
            failure=f"{type(error).__name__}: {error}",
            is_memory=is_out_of_memory(error),
            traceback=traceback.format_exc(),
        )
    return Outcome(value=value, cpu_s=time.process_time() - began)


def died(task: Task) -> Outcome:
    """Say that a task is given up."""
    return Outcome(failure=f"{ATTEMPTS} workers died while they were at {task.key!r}")


def run(
    tasks: Sequence[Task],
    pool: Pool,
    results: Results,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, Outcome]:
    """Do the tasks that have no result yet, and keep each result as it comes.

    Outcomes are by key, in the order of `tasks`; those found have no CPU time.

    `tasks`: the tasks; of several with the same key the first is done.

    Raises CampoError if a result cannot be written. Those before it are kept.
    """
    wanted = {task.key: task for task in reversed(tasks)}
    outcomes = {key: Outcome(value=results[key]) for key in wanted if key in results}
    missing = [task for task in tasks if wanted[task.key] is task and task.key not in outcomes]
    advance(len(outcomes), len(wanted))
    for task, outcome in pool.outcomes(missing):
        if not outcome.failure:
            results.add(task.key, outcome.value, cpu_s=outcome.cpu_s)
        outcomes[task.key] = outcome
        advance(len(outcomes), len(wanted))
    return {task.key: outcomes[task.key] for task in tasks}
