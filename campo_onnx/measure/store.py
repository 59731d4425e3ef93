"""Every timing and counter ever read, kept for good: one SQLite file that processes share.

A measurement is on disk before the next one starts, so a kill loses at most the one in flight.
Timings are filed under everything that could change them: the machine with its software, what was
run, and how.
"""

import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from campo_onnx.codec import DecodeError, from_json, from_plain, to_plain
from campo_onnx.errors import ProfileError
from campo_onnx.files import cache_folder
from campo_onnx.runtime.machine import DEFAULT, Machine
from campo_onnx.runtime.timing import Timing

_MAGIC = b"SQLite format 3\0"
_OUR_TABLE = b"CREATE TABLE timings"  # stands in the first page of every store
_START_BYTES = 1 << 16
_SUFFIX = ".sqlite"
_APPLICATION_ID = 0x43414D50  # "CAMP": tells our files from other programs'
_VERSION = 1
_WAIT_S = 30.0
QUERY_LIMIT_S = 60.0
"""How long one statement may take; a million timings take a second."""

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
_FIND = (
    "SELECT median_us, spread_us, repeats FROM timings WHERE machine = ? AND signature = ? AND execution = ?"
)
_WHEN = "SELECT measured_at FROM timings WHERE machine = ? AND signature = ? AND execution = ?"
_ADD = "INSERT OR REPLACE INTO timings VALUES (?, ?, ?, ?, ?, ?, ?)"
_FIND_COUNTERS = "SELECT counters FROM counters WHERE machine = ? AND signature = ? AND execution = ?"
_ADD_COUNTERS = "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)"


class Execution(StrEnum):
    """How a step is executed."""

    STREAM = "stream"  # one kernel after another
    GRAPH = "graph"  # as a captured CUDA graph


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingKey:
    """What a timing is filed under.

    Parameters
    ----------
    machine
        Device, driver, CUDA, runtime, TF32 state and threads.
    signature
        Op, attributes, shapes and types: :attr:`campo_onnx.ops.signature.Signature.key`.
    execution
        How the node ran.
    """

    machine: Machine
    signature: str
    execution: Execution = Execution.STREAM

    def row(self) -> tuple[str, str, str]:
        """The key as text."""
        return _filed_under(self.machine), self.signature, self.execution.value


def _filed_under(machine: Machine) -> str:
    """Write a machine as text; ONNX Runtime is left out, so that timings of older releases are found."""
    plain = to_plain(machine)
    if plain["runtime"] == DEFAULT:
        del plain["runtime"]
    return json.dumps(plain, sort_keys=True)


def default_path() -> Path:
    """Where the store lies unless told otherwise: the user's cache folder."""
    return cache_folder() / f"timings{_SUFFIX}"


class Store:
    """The timings in one file.

    Parameters
    ----------
    path
        The file; it is created, with its folder, when it is missing. None keeps timings in memory.

    Attributes
    ----------
    path
        The file.
    notice
        What to tell the user about it: that a damaged file was set aside; else ``""``.

    Raises
    ------
    ProfileError
        If the file cannot be used at all: no permission, a full disk, not a store of ours, one of a
        newer version.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.notice = ""
        self._written: list[tuple[str, tuple[object, ...]]] = []
        with self._refusals():
            self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it may be opened again."""
        try:
            if self._written:
                with self._refusals():
                    self._find_again()
        finally:
            self._connection.close()

    @property
    def written(self) -> int:
        """How many timings and counters were filed by this process."""
        return len(self._written)

    def find(self, key: TimingKey) -> Timing | None:
        """Look up a timing."""
        with self._refusals():
            row = self._connection.execute(_FIND, key.row()).fetchone()
            return None if row is None else _timing_of(*row)

    def measured_at(self, key: TimingKey) -> str:
        """When a timing was last taken (ISO 8601, UTC); ``""`` where there is none."""
        with self._refusals():
            row = self._connection.execute(_WHEN, key.row()).fetchone()
            return "" if row is None else str(row[0])

    def add(self, key: TimingKey, timing: Timing) -> None:
        """File a timing; it is on disk when this returns, and replaces an earlier one."""
        self._write(_ADD, (*key.row(), timing.median_us, timing.spread_us, timing.repeats, now()))

    def find_counters(self, key: TimingKey) -> Mapping[str, float] | None:
        """Look up hardware counters; empty ones were looked for and could not be read."""
        with self._refusals():
            row = self._connection.execute(_FIND_COUNTERS, key.row()).fetchone()
            return None if row is None else _counters_of(row[0])

    def add_counters(self, key: TimingKey, counters: Mapping[str, float]) -> None:
        """File hardware counters; they are on disk when this returns."""
        self._write(_ADD_COUNTERS, (*key.row(), json.dumps(dict(counters)), now()))

    def timed_devices(self) -> Mapping[tuple[str, str], int]:
        """Number of timings by provider and device, whatever the software."""
        with self._refusals():
            rows = self._connection.execute("SELECT machine, count(*) FROM timings GROUP BY machine")
            found = [(from_plain(from_json(machine), Machine), int(count)) for machine, count in rows]
        totals: Counter[tuple[str, str]] = Counter()
        for machine, count in found:
            totals[machine.provider, machine.device] += count
        return dict(totals)

    def machines(self) -> Mapping[Machine, int]:
        """Number of timings by machine, those with most first."""
        with self._refusals():
            rows = self._connection.execute(
                "SELECT machine, count(*) FROM timings GROUP BY machine ORDER BY count(*) DESC, machine"
            )
            return {from_plain(from_json(machine), Machine): int(count) for machine, count in rows}

    def __len__(self) -> int:
        with self._refusals():
            (count,) = self._connection.execute("SELECT count(*) FROM timings").fetchone()
        return int(count)

    def _connect(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._set_aside_if_damaged(self.path)
        self._connection = _connect(self.path)
        self._identity = _identity(self.path)
        self._beside = tuple(map(_identity, _files_beside(self.path)))

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        with self._refusals():
            self._find_again()
            self._connection.execute(statement, row)
            if None in self._beside:
                self._beside = tuple(map(_identity, _files_beside(self.path)))
        self._written.append((statement, row))

    def _find_again(self) -> None:
        """Open the file anew if it was deleted or replaced; it gets what this process has filed."""
        if self._identity == _identity(self.path):
            return
        self._connection.close()
        # SQLite would take the log of the file that is gone for one of the file that is there now.
        for path, identity in zip(_files_beside(self.path), self._beside, strict=False):
            if identity is not None and _identity(path) == identity:
                path.unlink()
        self._connect()
        for statement, row in self._written:
            self._connection.execute(statement, row)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what the operating system and SQLite refuse into one error with a remedy."""
        try:
            yield
        except (sqlite3.Error, OSError, DecodeError, UnicodeDecodeError) as error:
            raise ProfileError(
                f"the measurement store {self.path} cannot be used",
                why=str(error),
                remedy="Free the disk or fix the permissions, or name another file with --store. "
                "What was measured before is kept.",
            ) from None

    def _set_aside_if_damaged(self, path: Path) -> None:
        damage = _damage(path)
        if not damage:
            return
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return  # another process was faster
        for extra in _files_beside(path):  # they belong to the damaged file
            extra.unlink(missing_ok=True)
        self.notice = f"{path} is damaged ({damage}). It was set aside as {aside.name}; timings start anew."


def _timing_of(median_us: object, spread_us: object, repeats: object) -> Timing:
    if isinstance(median_us, float) and isinstance(spread_us, float) and isinstance(repeats, int):
        try:
            return Timing(median_us=median_us, spread_us=spread_us, repeats=repeats)
        except ValueError as error:
            raise DecodeError(f"a timing in it is damaged ({error})") from None
    raise DecodeError("a timing in it is not a number")


def _counters_of(text: object) -> Mapping[str, float]:
    counters = from_plain(from_json(text if isinstance(text, str) else ""), dict[str, float])
    if not all(map(math.isfinite, counters.values())):
        raise DecodeError("a counter in it is not finite")
    return counters


def _damage(path: Path) -> str:
    """Say what is wrong with a store; ``""`` when nothing is, or there is none.

    Raises
    ------
    ProfileError
        If the file is sound or foreign but no store of ours: it is left alone.
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


def _files_beside(path: Path | None) -> tuple[Path, ...]:
    """Where SQLite keeps what is not yet in the file itself."""
    return () if path is None else tuple(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Which file lies at a path; None for none."""
    try:
        status = None if path is None else path.stat()
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def now() -> str:
    """The present moment as it is filed with a timing: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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


def _connect(path: Path | None) -> sqlite3.Connection:
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
