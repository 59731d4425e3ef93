"""Tensors that wait to be read: in memory while there is room, then in files."""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALL = 1 << 16  # not worth a file


class Waiting:
    """Tensors between the pieces of a run."""

    def __init__(self, held_bytes: int, folder: Path) -> None:
        self._held_bytes, self._folder = held_bytes, folder
        self._values: dict[str, NDArray[Any]] = {}
        self._readers: dict[str, Sequence[int]] = {}
        self._files: dict[str, tuple[Path, tuple[int, ...], np.dtype[Any]]] = {}
        self._written = 0

    @property
    def files_written(self) -> int:
        """Number of tensors that had to wait in a file so far."""
        return self._written

    def put(self, name: str, value: NDArray[Any], readers: Sequence[int]) -> None:
        """Keep a tensor; `readers` are the times at which it is read, in order."""
        self._values[name], self._readers[name] = value, readers

    def get(self, name: str) -> NDArray[Any]:
        """Give a tensor that is waiting."""
        if name not in self._values:
            path, shape, dtype = self._files.pop(name)
            value = np.fromfile(path, np.uint8).view(dtype).reshape(shape)
            path.unlink()
            self._values[name] = value
        return self._values[name]

    def drop(self, name: str) -> None:
        """Forget a tensor that nobody reads any more."""
        self._values.pop(name, None)
        self._readers.pop(name, None)

    def make_room(self, now: int) -> None:
        """Write to files, until the rest fits, what is read the latest."""
        sizes = {name: value.nbytes for name, value in self._values.items()}
        excess = sum(sizes.values()) - self._held_bytes
        movable = [name for name, size in sizes.items() if size >= _SMALL]
        movable.sort(key=lambda name: self._next_read(name, now), reverse=True)
        for name in movable:
            if excess <= 0:
                return
            value = self._values.pop(name)
            path = self._folder / f"{self._written}.bin"
            self._written += 1
            with path.open("wb") as file:
                value.tofile(file)
            self._files[name] = (path, value.shape, value.dtype)
            excess -= sizes[name]

    def _next_read(self, name: str, now: int) -> int:
        readers = self._readers[name]
        return readers[min(bisect_left(readers, now), len(readers) - 1)]
