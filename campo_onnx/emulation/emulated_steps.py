"""Emulated steps on batches, each computed once: results are kept in a file, so that killed work resumes."""

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from campo_onnx.emulation.drift import Reference
from campo_onnx.errors import UsageError
from campo_onnx.files import Closing, cache_folder
from campo_onnx.scale.results import Results
from campo_onnx.version import source_digest

_FOLDER = "emulated-steps"


class EmulatedSteps(Closing):
    """The FP32 step on some batches, and other steps compared with it.

    A result is filed under the bytes of its graph, which hold the signature of every node, in a file for the
    batches and this version of the package.
    """

    def __init__(self, references: Sequence[Reference], folder: Path | None = None) -> None:
        self.references = tuple(references)
        self._results = Results()
        if folder is not None:
            try:
                self._results = Results(folder / f"{_digest_of(self.references)}.jsonl")
            except UsageError:  # another process writes it, or nobody may: what is kept only saves time
                self._results = Results()

    def close(self) -> None:
        """Close the file of results."""
        self._results.close()

    def squared_error(self, model: onnx.ModelProto) -> float:
        """Run a step on every batch, and average its squared errors."""

        def measured() -> list[float | None]:
            squares = (r.squared_error_of(r.run(model)) for r in self.references)
            return [_written(sum(squares) / len(self.references))]

        return _read(self.once(hashlib.sha256(model.SerializeToString()).hexdigest(), measured)[0])

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Compute a value, unless it is kept."""
        if key not in self._results:
            value = compute()
            try:
                self._results.add(key, value)
            except UsageError:  # a full disk, perhaps: from now on they are in memory
                self._results = self._results.in_memory()
                self._results.add(key, value)
        return self._results[key]


def kept_in_cache(references: Sequence[Reference]) -> EmulatedSteps:
    """Keep results in this user's cache."""
    return EmulatedSteps(references, cache_folder() / _FOLDER)


def _written(error: float) -> float | None:
    """Infinity is no number in JSON."""
    return error if math.isfinite(error) else None


def _read(error: float | None) -> float:
    return math.inf if error is None else error


def _digest_of(references: Sequence[Reference]) -> str:
    digest = hashlib.sha256(source_digest().encode())
    for reference in references:
        digest.update(reference.model.SerializeToString())
        for name, value in sorted(reference.feeds.items()):
            digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:32]
