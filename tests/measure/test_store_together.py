"""A store that several write, or make, at the same time."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from campo_onnx.measure import database
from campo_onnx.measure.store import Store, TimingKey
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Timing

HERE = Machine(provider="cpu", device="a CPU", driver="", cuda="", ort="1.31.1", tf32=False, threads=2)
TIMING = Timing(median_us=12.5, spread_us=0.5, repeats=9)


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"

    def write(name: str) -> None:
        with Store(path) as store:
            for i in range(25):
                store.add(TimingKey(machine=HERE, signature=f"{name}{i}"), TIMING)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    with Store(path) as store:
        assert len(store) == 100


def test_a_store_that_is_made_while_it_is_looked_at_is_none_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "t.sqlite", database._open

    class Slow(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            cursor = super().execute(statement, *values)
            if statement == "PRAGMA application_id":
                monkeypatch.setattr(database, "_open", opened)
                Store(path).close()  # another process is faster
            return cursor

    with closing(sqlite3.connect(path)) as begun:
        begun.execute("PRAGMA journal_mode = WAL")
    monkeypatch.setattr(
        database, "_open", lambda path: sqlite3.connect(path, isolation_level=None, factory=Slow)
    )
    with Store(path) as store:
        assert len(store) == 0
