"""Compiled graphs in the user's cache folder: thousands of nodes take seconds to compile."""

import os
from contextlib import suppress
from pathlib import Path

from campo_onnx import files

LIMIT_BYTES = 2 << 30
"""All compiled graphs together; beyond it the oldest go."""


def blob_folder() -> Path | None:
    """Folder for compiled graphs, with room in it; None where none can be made."""
    folder = files.cache_folder() / "openvino"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    make_room(folder, LIMIT_BYTES)
    return folder


def make_room(folder: Path, limit_bytes: int) -> None:
    """Remove the files that were written first until the rest fits."""
    ages = []
    for path in folder.glob("*.blob"):
        with suppress(OSError):  # another process removed it
            status = path.stat()
            ages.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in ages)
    for _, size, path in sorted(ages):
        if total <= limit_bytes:
            break
        with suppress(OSError):
            path.unlink()
        total -= size
