"""The measurement store: kept for good, shared, killed, damaged, refused."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx.errors import ProfileError
from campo_onnx.measure import database
from campo_onnx.measure.store import Execution, Store, TimingKey, default_path
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Timing

HERE = Machine(provider="cpu", device="a CPU", driver="", cuda="", ort="1.31.1", tf32=False, threads=2)
KEY = TimingKey(machine=HERE, signature="MatMul 4x4")
TIMING = Timing(median_us=12.5, spread_us=0.5, repeats=9)


def test_what_was_filed_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "t.sqlite"
    with Store(path) as store:
        assert store.find(KEY) is None
        store.add(KEY, TIMING)
    with Store(path) as store:
        assert store.find(KEY) == TIMING
        assert store.notice == ""
        assert len(store) == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, machine=replace(HERE, device="another CPU")),
        replace(KEY, machine=replace(HERE, driver="1")),
        replace(KEY, machine=replace(HERE, cuda="13")),
        replace(KEY, machine=replace(HERE, ort="2")),
        replace(KEY, machine=replace(HERE, tf32=True)),
        replace(KEY, machine=replace(HERE, threads=3)),
        replace(KEY, machine=replace(HERE, runtime="another")),
        replace(KEY, signature="MatMul 4x5"),
        replace(KEY, execution=Execution.GRAPH),
    ],
)
def test_everything_that_changes_a_time_is_in_the_key(other: TimingKey) -> None:
    assert KEY.execution is Execution.STREAM
    with Store() as store:
        store.add(KEY, TIMING)
        assert store.find(other) is None


def test_timings_of_releases_that_knew_one_runtime_are_found(tmp_path: Path) -> None:
    """They are filed under a machine without a runtime."""
    machine = (
        '{"cuda": "", "device": "a CPU", "driver": "", "ort": "1.31.1", "provider": "cpu", "tf32": false, '
        '"threads": 2}'
    )
    Store(path := tmp_path / "t.sqlite").close()
    with closing(sqlite3.connect(path)) as file, file:
        row = (machine, KEY.signature, "stream", 12.5, 0.5, 9, "2025-01-01T00:00:00")
        file.execute("INSERT INTO timings VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    with Store(path) as store:
        assert store.find(KEY) == TIMING
        assert store.machines() == {HERE: 1}


def test_a_later_timing_replaces_an_earlier_one() -> None:
    with Store() as store:
        store.add(KEY, TIMING)
        store.add(KEY, replace(TIMING, median_us=1.0))
        assert store.find(KEY) == replace(TIMING, median_us=1.0)
        assert len(store) == 1


def test_counters_are_filed_beside_timings(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        assert store.find_counters(KEY) is None
        store.add_counters(KEY, {"dram": 5.0})
        store.add_counters(replace(KEY, signature="Shape"), {})
    with Store(path) as store:
        assert store.find_counters(KEY) == {"dram": 5.0}
        assert store.find_counters(replace(KEY, signature="Shape")) == {}  # looked for, and not there
        assert store.find(KEY) is None


def test_stores_from_before_counters_are_used(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store.add(KEY, TIMING)
        store._connection.execute("DROP TABLE counters")
    with Store(path) as store:
        assert store.find(KEY) == TIMING
        assert store.find_counters(KEY) is None


def test_timings_by_device() -> None:
    with Store() as store:
        store.add(KEY, TIMING)
        store.add(replace(KEY, machine=replace(HERE, ort="2")), TIMING)
        store.add(replace(KEY, machine=replace(HERE, provider="cuda", device="NVIDIA H200")), TIMING)
        assert store.timed_devices() == {("cpu", "a CPU"): 2, ("cuda", "NVIDIA H200"): 1}


WRITER = """
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from campo_onnx.measure.store import Store, TimingKey
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import Timing
here = Machine(provider="cpu", device="a CPU", driver="", cuda="", ort="1.31.1", tf32=False, threads=2)
with Store(Path(sys.argv[1])) as store:
    for i in range(10**9):
        store.add(TimingKey(machine=here, signature=f"{sys.argv[2]}{i}"),
                  Timing(median_us=i, spread_us=0, repeats=1))
        print(i, flush=True)
"""


def writer(path: Path, name: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True
    )


def test_kill_loses_at_most_the_timing_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    process = writer(path, "a")
    assert process.stdout is not None
    for _ in range(50):
        reported = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rest = process.stdout.read().split("\n")
    process.stdout.close()
    reported = max([reported, *(int(line) for line in rest[:-1] if line)])
    with Store(path) as store:
        assert store.notice == ""
        for i in range(reported + 1):
            timing = store.find(TimingKey(machine=HERE, signature=f"a{i}"))
            assert timing is not None
            assert timing.median_us == i
        assert len(store) <= reported + 2


def damaged(path: Path, where: str) -> None:
    with Store(path) as store:
        for i in range(500):
            store.add(TimingKey(machine=HERE, signature=f"{i}" * 20), TIMING)
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    if where == "tail":
        content = content[: len(content) // 2]
    elif where == "middle":
        content[len(content) // 2 : len(content) // 2 + 8192] = os.urandom(8192)
    elif where == "names":
        content = content.replace(b"NOT NULL,", b"NOT NUL\xe9,", 1)
    else:
        content[:100] = os.urandom(100)
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("where", ["tail", "middle", "header", "names"])
def test_damage_is_set_aside_with_a_notice(tmp_path: Path, where: str) -> None:
    path = tmp_path / "t.sqlite"
    damaged(path, where)
    before = path.read_bytes()
    with Store(path) as store:
        assert "damaged" in store.notice
        assert len(store) == 0
        store.add(KEY, TIMING)
        assert store.find(KEY) == TIMING
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.name in store.notice
    assert aside.read_bytes() == before


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("model.onnx", "notes.sqlite"):
        other = tmp_path / name
        other.write_bytes(b"precious")
        with pytest.raises(ProfileError, match="not an SQLite file"):
            Store(other)
        assert other.read_bytes() == b"precious"
    database = tmp_path / "theirs.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(ProfileError, match="another program"):
        Store(database)


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ProfileError, match="newer campo-onnx"):
        Store(path)


def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(ProfileError, match="--store") as error:
        Store(blocked / "t.sqlite")
    assert error.value.exit_code == 5


def fill(store: Store) -> None:
    for i in range(1000):
        store.add(TimingKey(machine=HERE, signature=f"{i}" * 50), TIMING)


def test_a_full_disk_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store.add(KEY, TIMING)
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ProfileError, match=r"full.*--store"):
            fill(store)
    with Store(path) as store:
        assert store.find(KEY) == TIMING


def test_default_place_is_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "campo-onnx" / "timings.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path() == Path.home() / ".cache" / "campo-onnx" / "timings.sqlite"


@pytest.mark.parametrize(
    "cell",
    [
        "median_us = 'text'",
        "median_us = 9e999",
        "spread_us = -1.0",
        "repeats = x'ff'",
        "repeats = -1",
    ],
)
def test_a_timing_that_is_none(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store.add(KEY, TIMING)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"UPDATE timings SET {cell}")
        raw.commit()
    with Store(path) as store, pytest.raises(ProfileError, match="a timing in it is"):
        store.find(KEY)


def test_machines_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store.add(KEY, TIMING)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE timings SET machine = '[]'")
        raw.commit()
    with Store(path) as store, pytest.raises(ProfileError, match="cannot be used"):
        store.timed_devices()


FOREVER = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t)"


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE VIEW more AS {FOREVER} SELECT i FROM t",
        "CREATE TRIGGER gone AFTER INSERT ON timings BEGIN DELETE FROM timings; END",
    ],
)
def test_a_store_with_a_program_in_it_is_left_alone(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "t.sqlite"
    Store(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(statement)
        raw.commit()
    before = path.read_bytes()
    with pytest.raises(ProfileError, match="it has views or triggers"):
        Store(path)
    assert path.read_bytes() == before


def test_no_statement_takes_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "QUERY_LIMIT_S", 0.2)
    with Store(tmp_path / "t.sqlite") as store, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        store._connection.execute(f"{FOREVER} SELECT max(i) FROM t").fetchone()


def test_a_store_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="not a regular file"):
        Store(tmp_path)


def others(number: int) -> TimingKey:
    return TimingKey(machine=HERE, signature=f"Neg {number}")


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted there")
@pytest.mark.parametrize("how", ["deleted", "deleted with its folder", "replaced"])
def test_a_store_that_goes_while_it_is_used_is_opened_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "cache" / "t.sqlite"
    with Store(tmp_path / "other.sqlite") as other:
        other.add(others(0), TIMING)
    with Store(path) as store:
        store.add(others(1), TIMING)
        if how == "deleted":
            path.unlink()
        elif how == "replaced":
            os.replace(tmp_path / "other.sqlite", path)
        else:
            shutil.rmtree(path.parent)
        store.add(others(2), TIMING)
        assert store.written == 2
    with Store(path) as store:
        is_stored = [store.find(others(number)) is not None for number in range(3)]
    assert is_stored == [how == "replaced", True, True]


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted there")
def test_a_store_that_goes_after_the_last_timing_has_it_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        store.add(KEY, TIMING)
        path.unlink()
    with Store(path) as store:
        assert store.find(KEY) == TIMING


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be replaced there")
def test_a_store_that_is_replaced_by_something_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    store = Store(path)
    (tmp_path / "mine.txt").write_text("mine")
    os.replace(tmp_path / "mine.txt", path)
    with pytest.raises(ProfileError, match="not a measurement store"):
        store.add(KEY, TIMING)
    store.close()
    assert path.read_text() == "mine"


def test_a_locked_store_is_waited_for_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.sqlite"
    Store(path).close()
    monkeypatch.setattr(database, "_WAIT_S", 0.2)
    with Store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as greedy:
        greedy.execute("BEGIN IMMEDIATE")
        before = time.monotonic()
        with pytest.raises(ProfileError, match=r"locked.*--store"):
            store.add(KEY, TIMING)
        assert time.monotonic() - before > 0.15
        greedy.execute("ROLLBACK")
        store.add(KEY, TIMING)
        assert store.find(KEY) == TIMING


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks, to be another user")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, where another test loaded it
def test_a_store_that_is_read_only_is_an_error_and_stays(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are closed to other users
        folder = Path(name)
        path = folder / "t.sqlite"
        with Store(path) as store:
            store.add(KEY, TIMING)
        before = path.read_bytes()
        path.chmod(0o444)
        folder.chmod(0o555)
        child = os.fork()
        if not child:
            code = 70
            try:
                if os.geteuid() == 0:  # may write everything
                    os.setuid(65534)
                Store(path)
                code = 0
            except ProfileError as error:
                code = error.exit_code if "--store" in str(error) else 71
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        folder.chmod(0o755)
        assert path.read_bytes() == before
        assert [file.name for file in folder.iterdir()] == ["t.sqlite"]


def test_where_timings_only_save_time_work_goes_on_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "t.sqlite"  # no folder can be made there
    with pytest.raises(ProfileError, match="cannot be used"):
        Store(path)
    with Store(path, saves_time=True) as store:
        assert store.notice.startswith("Timings are not kept for later runs: the measurement store")
        store.add(KEY, TIMING)
        assert store.find(KEY) == TIMING
        assert store.path is None


def test_a_file_that_takes_no_more_is_left_where_it_only_saves_time(tmp_path):
    with Store(tmp_path / "t.sqlite", saves_time=True) as store:
        store.add(KEY, TIMING)
        store._connection.execute("PRAGMA query_only = 1")  # as on a full disk: reads go on
        other = replace(KEY, signature="MatMul 8x8")
        store.add(other, TIMING)
        assert (store.find(KEY), store.find(other)) == (TIMING, TIMING)
        assert store.path is None
    with Store(tmp_path / "t.sqlite") as kept:
        assert kept.find(KEY) == TIMING
