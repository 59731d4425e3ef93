"""Files in which users write op lists: complete ones, or changes to a preset (``docs/op-lists.md``)."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from campo_onnx.errors import UsageError
from campo_onnx.files import read_bytes
from campo_onnx.files.codec import TOML_LIMIT_BYTES, DecodeError, from_plain, from_toml
from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.lists.oplists import (
    TABLES,
    OpLists,
    Where,
    check,
    moved,
    op_keys,
    preset,
    preset_names,
    suggestion,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    ops: tuple[str, ...]
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    patterns: tuple[str, ...] | None = None
    taint_through_decisions: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListFile:
    """The content of a list file; a table is named as its class is."""

    title: str | None = None
    source: str = ""
    extends: str | None = None
    allow: _Table | None = None
    infer: _Table | None = None
    clear: _Table | None = None
    deny: _Table | None = None
    unlisted: _Table | None = None
    rules: _Rules = field(default_factory=_Rules)


def resolve(name_or_path: str) -> OpLists:
    """Return the preset of this name or, for anything that ends in ``.toml`` or exists, load the file."""
    path = Path(name_or_path)
    if name_or_path not in preset_names() and (path.suffix == ".toml" or os.path.lexists(path)):
        return load(path)
    return preset(name_or_path)


def load(path: str | Path) -> OpLists:
    """Read a user's file: complete lists, or changes to a preset it says it ``extends``."""
    path = Path(path)
    data = read_bytes(
        path,
        title=f"the op lists {path}",
        limit_bytes=TOML_LIMIT_BYTES,
        remedy=f"Name a readable file or one of the presets: {', '.join(preset_names())}.",
    )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read the op lists {path}",
            why=f"byte {error.start} is not UTF-8",
            remedy="Save the file as UTF-8.",
        ) from error
    try:
        plain = from_toml(text)
    except DecodeError as error:
        raise UsageError(f"the op lists {path} cannot be read", why=str(error)) from None
    try:
        file = from_plain(plain, _ListFile)
    except DecodeError as error:
        where = _at(path, _line_of_key(text, error.path))
        raise UsageError(f"{where}: the op lists cannot be read", why=str(error)) from None
    return _lists(file, path.name, lambda word: _at(path, _line_of_word(text, word)))


def _lists(file: _ListFile, name: str, where: Where) -> OpLists:
    base = _base(file, name, where)
    tables = {op_class: getattr(file, op_class.value) for op_class in TABLES}
    moves = {op_class: op_keys(table.ops, where) for op_class, table in tables.items() if table is not None}
    patterns, decisions = file.rules.patterns, file.rules.taint_through_decisions
    check(moves, patterns or (), base.denied_for_safety, where)
    changed = replace(
        base,
        name=name,
        title=f"{base.title}, changed by {name}" if file.title is None else file.title,
        patterns=base.patterns if patterns is None else patterns,
        taint_through_decisions=base.taint_through_decisions if decisions is None else decisions,
    )
    return moved(changed, moves)


def _base(file: _ListFile, name: str, where: Where) -> OpLists:
    """Return the lists that a file starts from: the preset it extends, or empty ones."""
    if file.extends is not None:
        if file.extends not in preset_names():
            raise UsageError(
                f"{where('extends')}: unknown op lists {file.extends!r} to extend",
                remedy=suggestion(file.extends, preset_names()),
            )
        return preset(file.extends)
    for key in ("title", "allow", "infer", "clear", "deny"):
        if getattr(file, key) is None:
            raise UsageError(
                f"{where('')}: {key!r} is missing",
                why="the file extends no preset",
                remedy='Add it, or begin the file with extends = "campo" to change a preset.',
            )
    empty = frozenset[OpKey]()
    return OpLists(name=name, title="", allow=empty, infer=empty, clear=empty, deny=empty)


def _at(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}:{line}"


def _line_of_word(text: str, word: str) -> int | None:
    """Last line on which a word stands outside a comment."""
    whole = re.compile(rf"(?<![\w.:]){re.escape(word)}(?![\w.:])")
    lines = [n for n, line in _numbered(text) if word and whole.search(line)]
    return lines[-1] if lines else None


def _line_of_key(text: str, path: str) -> int | None:
    """Line of the key that a path begins with (``deny.ops[1]``), or of the table that it is in."""
    table, _, key = re.sub(r"\[.*", "", path).partition(".")
    inside, line_number = "", None
    for number, line in _numbered(text):
        if header := re.fullmatch(r"\[\s*([^][]*?)\s*\]", line.strip()):
            inside = header[1]
            line_number = number if inside == table else line_number
        name = line.partition("=")[0].strip()
        if (inside, name) == (table, key):
            return number
        if (inside, name) == ("", table):
            line_number = number
    return line_number


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments."""
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, line.partition("#")[0]
