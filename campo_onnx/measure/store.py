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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from campo_onnx.errors import ProfileError
from campo_onnx.files import Closing, cache_folder
from campo_onnx.files.codec import DecodeError, from_json, from_plain, to_plain
from campo_onnx.measure.database import connect, damage, files_beside, identity
from campo_onnx.runtime.machine import DEFAULT, Machine
from campo_onnx.runtime.timing import Timing

_SUFFIX = ".sqlite"
_FIND = (
    "SELECT median_us, spread_us, repeats FROM timings WHERE machine = ? AND signature = ? AND execution = ?"
)
_WHEN = "SELECT measured_at FROM timings WHERE machine = ? AND signature = ? AND execution = ?"
_ADD = "INSERT OR REPLACE INTO timings VALUES (?, ?, ?, ?, ?, ?, ?)"
_FIND_COUNTERS = "SELECT counters FROM counters WHERE machine = ? AND signature = ? AND execution = ?"
_ADD_COUNTERS = "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)"


class Execution(StrEnum):
    """Execution mode of a step."""

    STREAM = "stream"  # one kernel after another
    GRAPH = "graph"  # as a captured CUDA graph


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingKey:
    """Key of a timing."""

    machine: Machine  # device, driver, CUDA, runtime, TF32 state and threads
    signature: str  # op, attributes, shapes and types: `Signature.key`
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
    """The default path of the store, in the user's cache folder."""
    return cache_folder() / f"timings{_SUFFIX}"


class Store(Closing):
    """The timings in one file.

    `path`: the file; it is created, with its folder, when it is missing. None keeps timings in memory.
    `saves_time`: whether timings are kept for nothing but later runs. Where the file cannot be used, or takes
    no more, they are then in memory, and work goes on.

    Its `notice` tells the user that a damaged file was set aside; else it is ``""``. Raises ProfileError if
    the file cannot be used at all: no permission, a full disk, not a store of ours, one of a newer version.
    """

    def __init__(self, path: Path | None = None, *, saves_time: bool = False) -> None:
        self.path = path
        self.notice = ""
        self._written: list[tuple[str, tuple[object, ...]]] = []
        self._saves_time = saves_time
        self._connection = connect(None)
        with self._or_in_memory(), self._refusals():
            self._connect()

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
        """Number of timings and counters that this process filed."""
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
            machines = [(from_plain(from_json(machine), Machine), int(count)) for machine, count in rows]
        totals: Counter[tuple[str, str]] = Counter()
        for machine, count in machines:
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
        self._connection.close()
        self._connection = connect(self.path)
        self._identity = identity(self.path)
        self._beside = tuple(map(identity, files_beside(self.path)))

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        with self._or_in_memory((statement, row)), self._refusals():
            self._find_again()
            self._connection.execute(statement, row)
            if None in self._beside:
                self._beside = tuple(map(identity, files_beside(self.path)))
        self._written.append((statement, row))

    def _find_again(self) -> None:
        """Open the file anew if it was deleted or replaced; it gets what this process has filed."""
        if self._identity == identity(self.path):
            return
        self._connection.close()
        # SQLite would take the log of the file that is gone for one of the file that is there now.
        for path, before in zip(files_beside(self.path), self._beside, strict=False):
            if before is not None and identity(path) == before:
                path.unlink()
        self._connect()
        for statement, row in self._written:
            self._connection.execute(statement, row)

    @contextmanager
    def _or_in_memory(self, *refused: tuple[str, tuple[object, ...]]) -> Iterator[None]:
        """Go on in memory, with what was filed and what was refused, where the file only saves time."""
        try:
            yield
        except ProfileError as error:
            if not self._saves_time or self.path is None:
                raise
            self.notice = f"Timings are not kept for later runs: {error.what}, {error.why}."
            self.path = None
            self._connect()
            for statement, row in (*self._written, *refused):
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
        if not (why := damage(path)):
            return
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return  # another process was faster
        for extra in files_beside(path):  # they belong to the damaged file
            extra.unlink(missing_ok=True)
        self.notice = f"{path} is damaged ({why}). It was set aside as {aside.name}; timings start anew."


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


def now() -> str:
    """The present moment as it is filed with a timing: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
