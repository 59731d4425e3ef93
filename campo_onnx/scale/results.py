"""Results by key in one file: a JSON line each, appended, and never written over."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.files import Closing, make_folder, refuse_special
from campo_onnx.files.codec import DecodeError, fingerprint, from_json

if sys.platform != "win32":
    import fcntl

_BEGINS = b'{"key": "'
_REMEDY = "Free the disk or fix the permissions, and run the same command again: {kept} results are kept."


class Results(Mapping[str, Any], Closing):
    """The results in one file.

    A line is written in one go by the one process that has the file open. A kill can leave half of the last
    line behind, and a full disk likewise: it is cut off when the next result is written, not before.
    Each line carries a digest, so that a result that somebody edited is not believed.

    `path`: the file; made, with its folder, where there is none. None keeps results in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._values: dict[str, Any] = {}
        self._file: int | None = None
        if path is None:
            return
        refuse_special(path)
        make_folder(path.parent, remedy="Name another file.")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._lock()
            self._size, self._has_newline = self._read(path)
        except OSError as error:
            self.close()
            raise UsageError(
                f"the results {path} cannot be used",
                why=error.strerror or str(error),
                remedy="Name another file.",
            ) from None
        except UsageError:
            self.close()
            raise

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: str, value: Any, *, cpu_s: float = 0.0) -> None:
        """Keep a result; it is in the file when this returns. The first one under a key stays.

        Raises UsageError if it cannot be written; nothing of it is left in the file then.
        """
        if key in self._values:
            return
        if self._file is not None:
            row = {"key": key, "cpu_s": round(cpu_s, 3), "value": value, "digest": fingerprint([key, value])}
            self._append(f"{json.dumps(row, allow_nan=False)}\n".encode())
        self._values[key] = value

    def in_memory(self) -> "Results":
        """Close the file, and go on with what is known, in no file."""
        self.close()
        others = Results()
        others._values.update(self._values)
        return others

    def close(self) -> None:
        """Close the file, which another process may then open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        assert self._file is not None  # add() has asked
        left = line if self._has_newline else b"\n" + line
        size = self._size + len(left)
        try:
            os.ftruncate(self._file, self._size)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise UsageError(
                f"the results {self.path} cannot be written",
                why=error.strerror or str(error),
                remedy=_REMEDY.format(kept=len(self._values)),
            ) from None
        self._size, self._has_newline = size, True

    def _lock(self) -> None:
        """Keep other processes out: two would do the same work twice."""
        if sys.platform == "win32" or self._file is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the results {self.path} are in use",
                why="another process is writing them",
                remedy="Wait for its end, or name another file.",
            ) from None

    def _read(self, path: Path) -> tuple[int, bool]:
        """Read the lines that are whole; give the bytes they take, and whether a newline ends the last."""
        size = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                has_newline = line.endswith(b"\n")
                if not has_newline and _is_cut(line):
                    break
                self._take(line, f"{path}, line {number}")
                size += len(line)
                if not has_newline:
                    return size, False
        return size, True

    def _take(self, line: bytes, title: str) -> None:
        try:
            row = from_json(line)
        except DecodeError as error:
            row, why = None, str(error)
        else:
            why = "a key or a value is missing"
        if not isinstance(row, dict) or not isinstance(row.get("key"), str) or "value" not in row:
            raise UsageError(
                f"{title} is not a result of campo-onnx", why=why, remedy="Name another file, or remove it."
            )
        if "digest" not in row:  # of an earlier version: worked out again
            return
        if row["digest"] != fingerprint([row["key"], row["value"]]):
            raise UsageError(
                f"{title} was changed since it was written",
                why="its digest does not fit it",
                remedy="Remove the line to have it worked out again, or name another file.",
            )
        self._values.setdefault(row["key"], row["value"])


def _is_cut(line: bytes) -> bool:
    """Whether a kill, or a full disk, left only the beginning of one of our lines."""
    if line[: len(_BEGINS)] != _BEGINS[: len(line)]:
        return False
    try:
        from_json(line)
    except DecodeError:
        return True
    return False
