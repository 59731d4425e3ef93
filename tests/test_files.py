"""Files are written whole or not at all, read up to a limit, and go where the user's folders are."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from campo_onnx import files
from campo_onnx.errors import ProfileError, UsageError
from campo_onnx.files import (
    cache_folder,
    data_folder,
    make_folder,
    read_bytes,
    replacing,
    write_text,
    write_texts,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_and_replaced(tmp_path: Path) -> None:
    for text in ("first", "second\n", ""):
        write_text(text, tmp_path / "plan.json")
        assert (tmp_path / "plan.json").read_text() == text
    assert names_in(tmp_path) == ["plan.json"]


def test_files_beside_it_come_along_and_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (moved.append(Path(new).name), replace(old, new)))
    with replacing(tmp_path / "m.onnx") as path:
        path.write_text("model")
        path.with_name("m.onnx.data").write_text("weights")
    assert moved == ["m.onnx.data", "m.onnx"]
    assert names_in(tmp_path) == ["m.onnx", "m.onnx.data"]


@pytest.mark.parametrize("at", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), OSError(28, "disk full")])
def test_an_interruption_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: BaseException
) -> None:
    target = tmp_path / "plan.json"
    write_text("first", target)

    def interrupt(*_: object) -> None:
        raise error

    monkeypatch.setattr(files.os, at, interrupt)
    expected = UsageError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised:
        write_text("second", target)
    monkeypatch.undo()
    assert (target.read_text(), names_in(tmp_path)) == ("first", ["plan.json"])
    if isinstance(error, OSError):
        assert str(raised.value) == f"{target} cannot be written: disk full. No part of it was left behind."


def test_every_byte_is_on_the_disk_before_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("fsync"), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append("replace"), replace(old, new)))
    with replacing(tmp_path / "m") as path:
        path.write_text("a")
        path.with_name("m.data").write_text("b")
    assert order == ["fsync", "fsync", "replace", "replace"]


def test_errors_of_a_writer_of_its_own(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"the checkpoint cannot be written: no space\. Try again"),
        replacing(tmp_path / "c", title="the checkpoint", remedy="Try again.", also=(ZeroDivisionError,)),
    ):
        raise ZeroDivisionError("no space")
    with pytest.raises(KeyError), replacing(tmp_path / "c"):
        raise KeyError
    assert names_in(tmp_path) == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    for name, why in (("pipe", "not a regular file"), ("folder", "a folder"), ("link", "not a regular file")):
        with pytest.raises(UsageError, match=f"{name} is {why}"):
            write_text("text", tmp_path / name)
    assert names_in(tmp_path) == ["folder", "link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        write_text("text", tmp_path / "missing" / "plan.json")


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, title="the file", limit_bytes=5) == b"12345"
    with pytest.raises(ProfileError, match="the file is too large: it has more than 4 bytes"):
        read_bytes(path, title="the file", limit_bytes=4, too_large=ProfileError)
    with pytest.raises(UsageError, match="too large"):  # a device has no size to ask for
        read_bytes(Path("/dev/zero"), title="the file", limit_bytes=1000)


@pytest.mark.parametrize(
    ("name", "why"),
    [("none", "the file does not exist. Look elsewhere."), ("", "cannot be read: Is a dir"), ("a\0", "null")],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_bytes(tmp_path / name, title="the file", remedy="Look elsewhere.")


@pytest.mark.parametrize(
    ("folder", "variable", "below_home"),
    [(cache_folder, "XDG_CACHE_HOME", ".cache"), (data_folder, "XDG_DATA_HOME", ".local/share")],
)
def test_user_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: object, variable: str, below_home: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder() == tmp_path / "campo-onnx"
    for unusable in ("relative", ""):
        monkeypatch.setenv(variable, unusable)
        assert folder() == Path.home() / below_home / "campo-onnx"


def test_making_a_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b", remedy="")
    make_folder(tmp_path / "a" / "b", remedy="")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"b cannot be created: Not a directory\. Name another\."):
        make_folder(tmp_path / "file" / "b", remedy="Name another.")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    node = platform.node()
    dead = tmp_path / f".campo-onnx-{node}-{int(ended.stdout)}-abc"
    alive = tmp_path / f".campo-onnx-{node}-{os.getpid()}-abc"
    elsewhere = tmp_path / ".campo-onnx-another.machine-1-abc"
    for folder in (dead, alive, elsewhere):
        folder.mkdir()
    write_text("plan", tmp_path / "plan.json")
    assert [folder.exists() for folder in (dead, alive, elsewhere)] == [False, True, True]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        write_text("plan", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_texts_are_written_all_or_none(tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(UsageError, match="b cannot be written"):
        write_texts({tmp_path / "a": "after", tmp_path / "no" / "b": "b"})
    assert (tmp_path / "a").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    write_texts({tmp_path / "a": "after", tmp_path / "b": "b"})
    assert [(tmp_path / name).read_text() for name in "ab"] == ["after", "b"]
    write_texts({})
