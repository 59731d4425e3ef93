"""Files: written whole or not at all, read up to a limit, and the folders of this user."""

import errno
import glob
import os
import platform
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import platformdirs

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.files.signals import uninterrupted

MIB = 2**20

READ_LIMIT_BYTES = 256 * MIB
"""Largest text file of ours: far more than any has, far less than memory."""

_APP = "campo-onnx"
_SCRATCH = f".{_APP}-"
_TEMPORARY = f"{_APP}-"
_DISK = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))


class Closing(ABC):
    """Base of classes that are closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""


@contextmanager
def replacing(
    target: Path,
    *,
    title: str = "",
    remedy: str = "No part of it was left behind.",
    also: tuple[type[Exception], ...] = (),
    follows_links: bool = True,
) -> Iterator[Path]:
    """Let the caller write a file beside its final place, and move it there at the end.

    See :func:`replacing_all`, of which this is the case of one file.
    """
    with replacing_all([target], title=title, remedy=remedy, also=also, follows_links=follows_links) as (
        path,
    ):
        yield path


@contextmanager
def replacing_all(
    targets: Sequence[Path],
    *,
    title: str = "",
    remedy: str = "No part of it was left behind.",
    also: tuple[type[Exception], ...] = (),
    follows_links: bool = True,
) -> Iterator[tuple[Path, ...]]:
    """Let the caller write files beside their final places, and move all of them there at the end.

    A path given to the caller has the name of its target and lies in a folder of its own on the same
    file system. Whatever else is written into that folder is moved with it, before it. Nothing is moved
    before everything is on the disk. If the block fails, the folders disappear and files that were there
    before are as they were. A target that is a link stays one unless `follows_links` is false: what it points
    to is replaced.

    `title`: what they are called in messages; ``""`` for the path of the one it is about.
    `also`: errors that mean, like OSError, that a file could not be written.
    `follows_links`: whether a target that is a link stands for the file it points to. Otherwise the link is
    replaced: for folders of ours, in which nobody else has a reason to put one.
    """
    current = targets[0]
    failures: tuple[type[Exception], ...] = (OSError, *also)
    try:
        with ExitStack() as stack:
            places = []
            for target in targets:
                current = target
                places.append(_place_for(target, title or str(target), stack, follows_links))
            yield tuple(folder / final.name for folder, final in places)
            moves = [move for folder, final in places for move in _moves(folder, final)]
            _refuse_two_of_a_name(moves)
            for written, final in moves:
                current = final
                _flush(written)

            def move() -> None:
                nonlocal current
                for written, final in moves:
                    current = final
                    os.replace(written, final)

            uninterrupted(move)
    except failures as error:
        raise UsageError(f"{title or current} cannot be written", why=cause(error), remedy=remedy) from error


def _place_for(target: Path, title: str, stack: ExitStack, follows_links: bool) -> tuple[Path, Path]:
    """Return a folder to write into and where its contents go; the folder disappears with `stack`."""
    final = target.resolve() if follows_links else target.parent.resolve() / target.name
    if final.exists() and not final.is_file():
        what = "a folder" if final.is_dir() else "not a regular file"
        raise UsageError(f"{title} cannot be written", why=f"{target} is {what}", remedy="Name a file.")
    _remove_leftovers(final.parent)
    folder = tempfile.TemporaryDirectory(
        prefix=f"{_SCRATCH}{platform.node()}-{os.getpid()}-", dir=final.parent, ignore_cleanup_errors=True
    )
    return Path(stack.enter_context(folder)), final


def _moves(folder: Path, final: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what to move where; the file itself comes last, so that what it refers to is there."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == final.name, path.name)):
        yield path, final.with_name(path.name)


def _refuse_two_of_a_name(moves: Sequence[tuple[Path, Path]]) -> None:
    finals = [final for _, final in moves]
    for final in finals:
        if finals.count(final) > 1:
            raise UsageError(
                f"two outputs would be written to {final}", remedy="Give each a name of its own."
            )


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that disappears at the end, and with it those that killed processes left behind.

    Raises UsageError if there is no place for one, or a file in it cannot be written or read.
    """
    place = None
    try:
        place = Path(tempfile.gettempdir())
        _remove_leftovers(place, _TEMPORARY)
        with tempfile.TemporaryDirectory(
            prefix=f"{_TEMPORARY}{platform.node()}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except OSError as error:
        if place is not None and not _is_about(error, place):
            raise
        raise UsageError(
            "a temporary file cannot be written or read",
            why=error.strerror or str(error),
            remedy="Free the disk, or let TMPDIR name a folder on another one.",
        ) from error


def _is_about(error: OSError, folder: Path) -> bool:
    """Say whether an error is about files in a folder: a full disk is told without a name."""
    if isinstance(error.filename, str | bytes):
        return Path(os.fsdecode(error.filename)).is_relative_to(folder)
    return error.errno in _DISK


def _remove_leftovers(folder: Path, prefix: str = _SCRATCH) -> None:
    """Remove what processes of this machine left behind that were killed while they wrote."""
    for path in folder.glob(f"{prefix}{glob.escape(platform.node())}-*-*"):
        process = path.name.removeprefix(f"{prefix}{platform.node()}-").partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    if os.name == "nt":
        return True  # asking would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _flush(path: Path) -> None:
    """Bring a file's bytes to the disk, so that a crash after the move leaves no empty file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(text: str, target: Path, *, follows_links: bool = True) -> None:
    """Write a text file, whole or not at all; see :func:`replacing_all`."""
    write_texts({target: text}, follows_links=follows_links)


def write_texts(texts: Mapping[Path, str], *, follows_links: bool = True) -> None:
    """Write text files, all of them or none; see :func:`replacing_all`."""
    if texts:
        with replacing_all([*texts], follows_links=follows_links) as paths:
            for path, text in zip(paths, texts.values(), strict=True):
                path.write_text(text, encoding="utf-8")


def cause(error: Exception) -> str:
    """Say why a file cannot be read or written, without its path; a null character is a ValueError."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def reading(title: str, remedy: str) -> Iterator[None]:
    """Say of a file that is read in here that it does not exist, or why it cannot be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{title} does not exist", remedy=remedy) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{title} cannot be read", why=cause(error)) from None


def read_bytes(
    path: Path,
    *,
    title: str,
    limit_bytes: int = READ_LIMIT_BYTES,
    remedy: str = "Check its path.",
    too_large: type[CampoError] = UsageError,
) -> bytes:
    """Read a file that is not larger than it can sensibly be.

    `path`: the file; a pipe will do.
    `title`: what it is, for messages: ``"the calibration c.json"``.
    """
    with reading(title, remedy), path.open("rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise too_large(
            f"{title} is too large",
            why=f"it has more than {limit_bytes:,} bytes, and no such file of campo-onnx has",
            remedy="Check that it is the file you mean.",
        )
    return data


def check_file(path: Path, *, title: str, remedy: str) -> None:
    """Find out before any work whether there is a regular file.

    `title`: what it is, for messages: ``"the calibration c.json"``.
    """
    with reading(title, remedy):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"{title} is {what}", remedy="Name a regular file.")


def refuse_special(path: Path) -> None:
    """Refuse to read a pipe, which may wait, or a device, which may give for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path} is not a regular file", remedy="Name a regular file.")


def cache_folder() -> Path:
    """The user's cache folder: files that can be made again."""
    return platformdirs.user_cache_path(_APP, appauthor=False)


def data_folder() -> Path:
    """The user's data folder: files worth keeping."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def make_folder(folder: Path, *, remedy: str) -> None:
    """Make a folder and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {folder} cannot be created", why=error.strerror or str(error), remedy=remedy
        ) from None
