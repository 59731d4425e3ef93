"""Tasks are done once, each result is kept at once, and a worker that dies costs the task it was at."""

import math
import os
from types import MappingProxyType

import pytest

from campo_onnx.errors import UsageError
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.pools import pool_for
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run

MODULE = """
import os, signal
from pathlib import Path

def noted(folder, name, deadly=False):
    first = not (Path(folder) / name).exists()
    with (Path(folder) / name).open("a") as file:
        file.write("begun\\n")
    if deadly and first:
        os.kill(os.getpid(), signal.SIGKILL)
    return name
"""


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """A function that writes down that it was called, and if asked kills its process the first time."""
    (tmp_path / "noting.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import noting

    return noting.noted


def task(key, function=math.sqrt, *arguments):
    return Task(key=key, function=function, arguments=arguments)


def test_the_same_work_is_done_once(tmp_path):
    tasks = [task("a", math.sqrt, 4.0), task("b", math.sqrt, 9.0), task("a", math.sqrt, 16.0)]
    with Results(tmp_path / "rows.jsonl") as results, LocalPool() as pool:
        seen = []
        first = run(tasks, pool, results, lambda *progress: seen.append(progress))
    assert [(key, outcome.value) for key, outcome in first.items()] == [("a", 2.0), ("b", 3.0)]
    assert seen == [(0, 2), (1, 2), (2, 2)]
    tasks = [task("b", os.abort), task("c", math.sqrt, 25.0)]
    with Results(tmp_path / "rows.jsonl") as results, LocalPool() as pool:
        assert {key: outcome.value for key, outcome in run(tasks, pool, results).items()} == {
            "b": 3.0,
            "c": 5.0,
        }


def test_a_task_that_fails_is_told_and_not_kept(tmp_path):
    tasks = [task("a", math.sqrt, -1.0), task("b", math.sqrt, 4.0)]
    with Results(tmp_path / "rows.jsonl") as results, LocalPool() as pool:
        outcomes = run(tasks, pool, results)
        assert outcomes["a"].failure.startswith("ValueError: ")
        assert dict(results) == {"b": 2.0}


def test_a_worker_that_is_killed_costs_the_task_it_was_at(tmp_path, noted):
    names = [f"task{i}" for i in range(6)]
    tasks = [task(name, noted, str(tmp_path), name, name == "task2") for name in names]
    tasks.append(task("deadly", os.abort))
    with Results() as results, LocalPool(2) as pool:
        outcomes = run(tasks, pool, results)
    assert outcomes.pop("deadly").failure == "3 workers died while they were at 'deadly'"
    assert {key: outcome.value for key, outcome in outcomes.items()} == {name: name for name in names}
    begun = {name: len((tmp_path / name).read_text().splitlines()) for name in names}
    assert begun == {name: 2 if name == "task2" else 1 for name in names}
    with LocalPool(2) as pool:  # read-only mappings, which our values hold, travel
        ((_, outcome),) = pool.outcomes([task("a", dict, MappingProxyType({"a": 1}))])
    assert outcome.value == {"a": 1}


def test_workers_must_be_asked_for_sensibly():
    with pytest.raises(UsageError, match="0 workers were asked for"):
        pool_for(0)
    with pytest.raises(UsageError, match="both --workers and --cluster ADDRESS are given"):
        pool_for(2, "auto")
