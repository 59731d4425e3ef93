"""Files: written whole or not at all, read up to a limit, and the folders of this user."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from campo_onnx.errors import CampoError, UsageError

MIB = 2**20

READ_LIMIT_BYTES = 256 * MIB
"""What a text file of ours may hold: far more than any has, far less than memory."""

_APP = "campo-onnx"


@contextmanager
def replacing(
    target: Path,
    *,
    title: str = "",
    remedy: str = "Nothing was left behind.",
    also: tuple[type[Exception], ...] = (),
) -> Iterator[Path]:
    """Let the caller write a file beside its final place, and move it there at the end.

    The path given to the caller has the name of `target` and lies in a folder of its own on the same
    file system. Whatever else is written into that folder is moved with it, before it. If the block
    or the move fails, the folder disappears and a file that was there before is as it was.

    Parameters
    ----------
    target
        Where the file goes.
    title
        What it is called in messages; ``""`` for its path.
    remedy
        What the message says at its end.
    also
        Errors that mean, like OSError, that the file could not be written.

    Raises
    ------
    UsageError
        If the file cannot be written, or its place is taken by something that is no file.
    """
    title = title or str(target)
    failures: tuple[type[Exception], ...] = (OSError, *also)
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"
        raise UsageError(f"{title} cannot be written", why=f"{target} is {what}", remedy="Name a file.")
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{_APP}-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder, target.name)
            written = sorted(Path(folder).iterdir(), key=lambda path: (path.name == target.name, path.name))
            for path in written:
                _flush(path)
            for path in written:
                os.replace(path, target.with_name(path.name))
    except failures as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{title} cannot be written", why=why or str(error), remedy=remedy) from error


def _flush(path: Path) -> None:
    """Bring a file's bytes to the disk, so that a crash after the move leaves no empty file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(text: str, target: Path) -> None:
    """Write a text file, whole or not at all.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    with replacing(target) as path:
        path.write_text(text, encoding="utf-8")


def read_bytes(
    path: Path,
    *,
    title: str,
    limit_bytes: int = READ_LIMIT_BYTES,
    remedy: str = "Check its path.",
    too_large: type[CampoError] = UsageError,
) -> bytes:
    """Read a file that is not larger than it can sensibly be.

    Parameters
    ----------
    path
        The file; a pipe will do.
    title
        What it is, for messages: ``"the calibration c.json"``.
    limit_bytes
        What it may hold.
    remedy
        What the message says about a file that does not exist.
    too_large
        Error for a file over the limit.

    Raises
    ------
    UsageError
        If the file does not exist or cannot be read.
    CampoError
        If it is over the limit.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise UsageError(f"{title} does not exist", remedy=remedy) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{title} cannot be read", why=why or str(error)) from None
    if len(data) > limit_bytes:
        raise too_large(
            f"{title} is too large",
            why=f"it has more than {limit_bytes:,} bytes, and no such file of campo-onnx has",
            remedy="Check that it is the file you mean.",
        )
    return data


def cache_folder() -> Path:
    """Where this user keeps what can be made again."""
    return platformdirs.user_cache_path(_APP, appauthor=False)


def data_folder() -> Path:
    """Where this user keeps what is worth keeping."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def make_folder(folder: Path, *, remedy: str) -> None:
    """Make a folder and those above it.

    Raises
    ------
    UsageError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {folder} cannot be made", why=error.strerror or str(error), remedy=remedy
        ) from None
