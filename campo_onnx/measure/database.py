"""The file of a store: how it is opened, and what is refused or set aside instead of being read."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from campo_onnx.errors import ProfileError

_MAGIC = b"SQLite format 3\0"
_OUR_TABLE = b"CREATE TABLE timings"  # stands in the first page of every store
_START_BYTES = 1 << 16
_APPLICATION_ID = 0x43414D50  # "CAMP": tells our files from other programs'
_VERSION = 1
_WAIT_S = 30.0
QUERY_LIMIT_S = 60.0
"""Longest time of one statement; a million timings take a second."""

_STEPS = 100_000  # of SQLite's machine, between two looks at the clock
_TIMINGS = """
CREATE TABLE IF NOT EXISTS timings (
    machine TEXT NOT NULL,
    signature TEXT NOT NULL,
    execution TEXT NOT NULL,
    median_us REAL NOT NULL,
    spread_us REAL NOT NULL,
    repeats INTEGER NOT NULL,
    measured_at TEXT NOT NULL,
    PRIMARY KEY (machine, signature, execution)
) WITHOUT ROWID
"""
_COUNTERS = """
CREATE TABLE IF NOT EXISTS counters (
    machine TEXT NOT NULL,
    signature TEXT NOT NULL,
    execution TEXT NOT NULL,
    counters TEXT NOT NULL,
    measured_at TEXT NOT NULL,
    PRIMARY KEY (machine, signature, execution)
) WITHOUT ROWID
"""
_ACTIVE = "SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')"


def damage(path: Path) -> str:
    """Say what is wrong with a store; ``""`` when nothing is, or there is none.

    Raises ProfileError if the file is sound or foreign but no store of ours: it is left alone.
    """
    if not path.exists():
        return ""
    if not path.is_file():
        raise _foreign(path, "it is not a regular file")
    if path.stat().st_size == 0:
        return ""
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    if not start.startswith(_MAGIC):
        if _OUR_TABLE not in start:  # whatever it is called, it never was a store
            raise _foreign(path, "it is not an SQLite file")
        return "its header is gone"
    try:
        with closing(_open(path)) as connection:
            connection.execute("BEGIN")  # one look: another process may be making the store
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (active,) = connection.execute(_ACTIVE).fetchone()
    except sqlite3.OperationalError:
        raise  # locked or unreadable: not damage
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # a message that cites bytes of the file
        return str(error)
    if verdict != "ok":
        return str(verdict).splitlines()[-1]
    if tables and application != _APPLICATION_ID:
        raise _foreign(path, "it is a database of another program")
    if active:
        raise _foreign(path, "it has views or triggers, and none of ours has")
    if version > _VERSION:
        raise _foreign(path, f"a newer campo-onnx wrote it (format {version})")
    return ""


def files_beside(path: Path | None) -> tuple[Path, ...]:
    """SQLite's files for what is not yet in the database file."""
    return () if path is None else tuple(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))


def identity(path: Path | None) -> tuple[int, int] | None:
    """Identity of the file at a path; None where there is none."""
    try:
        status = None if path is None else path.stat()
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def _foreign(path: Path, why: str) -> ProfileError:
    return ProfileError(
        f"{path} is not a measurement store of this version", why=why, remedy="Name another file."
    )


def _open(path: Path) -> sqlite3.Connection:
    # Autocommit: every statement is a transaction of its own.
    connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    _bound_time(connection)
    return connection


def _bound_time(connection: sqlite3.Connection) -> None:
    """Let no statement take longer than :data:`QUERY_LIMIT_S`, whatever the file holds."""
    began = 0.0

    def starts(_: str) -> None:
        nonlocal began
        began = time.monotonic()

    def is_late() -> bool:
        return time.monotonic() - began > QUERY_LIMIT_S

    connection.set_trace_callback(starts)
    connection.set_progress_handler(is_late, _STEPS)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Choose the journal; SQLite itself does not wait here for others who make the same store."""
    end_s = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end_s:
                raise
            time.sleep(0.01)
        else:
            return


def connect(path: Path | None) -> sqlite3.Connection:
    """Open a store, and make its tables where there are none; None for one in memory."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
    else:
        connection = _open(path)
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut the last rows
    is_new = connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,)
    if is_new:  # at once: a kill in between would leave tables without the number that says whose they are
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute(_TIMINGS)
    connection.execute(_COUNTERS)
    if is_new:
        connection.execute("COMMIT")
    return connection
