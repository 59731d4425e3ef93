"""Workers on this machine."""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Self

from campo_onnx.scale.work import ATTEMPTS, Outcome, Task, call, died


class LocalPool:
    """Processes of this machine, or with one worker, this process itself.

    Each worker is a pool of one process: when a process dies, the standard library gives up everything that
    its whole pool was doing.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = [_process() for _ in range(workers)] if workers > 1 else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.shutdown(wait=error is None, cancel_futures=True)

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Do tasks, and give each with its outcome as soon as there is one, in any order."""
        if not self._workers:
            yield from ((task, call(task)) for task in tasks)
            return
        waiting = iter(tasks)
        idle = list(range(len(self._workers)))
        running: dict[Future[Outcome], tuple[int, Task, int]] = {}
        while True:
            while idle and (task := next(waiting, None)) is not None:
                position = idle.pop()
                running[self._begin(position, task)] = (position, task, 1)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                position, task, attempt = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    if attempt < ATTEMPTS:
                        running[self._begin(position, task)] = (position, task, attempt + 1)
                        continue
                    outcome = died(task)
                else:
                    outcome = future.result()
                idle.append(position)
                yield task, outcome

    def _begin(self, position: int, task: Task) -> Future[Outcome]:
        try:
            return self._workers[position].submit(call, task)
        except BrokenProcessPool:  # its process has died
            self._workers[position] = _process()
            return self._workers[position].submit(call, task)


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))
