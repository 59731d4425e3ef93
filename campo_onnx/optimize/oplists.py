"""Op lists: what each operator's numerics allow, as readable data.

The four lists are those of TensorFlow's AMP, on which Campo builds (section 4.3 of the paper). The
presets are the columns of ``ops/presets.csv``; a user's file or options change them, but never the
operators in :data:`SAFETY_DENY`.
"""

import csv
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.codec import TOML_LIMIT_BYTES, DecodeError, from_toml
from campo_onnx.errors import UsageError
from campo_onnx.files import read_bytes
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import REGISTRY
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.op_class import OpClass as OpClass
from campo_onnx.optimize.patterns import PATTERN_RULES

TABLES = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR, OpClass.DENY, OpClass.UNLISTED)
"""The classes that a file has a table for."""

PATTERNS = tuple(PATTERN_RULES)
"""Names of the rules that see a framework's operator in the pieces an exporter made of it."""

SAFETY_DENY = REGISTRY.of_family(Family.LOSS, Family.UPDATE, Family.CONTROL_FLOW)
"""Losses, weight updates and control flow: no file and no option puts them on a list that goes low."""

_TABLE = files("campo_onnx.ops")

_Tables = Mapping[OpClass, frozenset[OpKey]]
_Where = Callable[[str], str]  # the place of a word that is wrong, for messages


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLists:
    """Disjoint lists of operators, and the rules that go with them.

    Parameters
    ----------
    name
        Name of the preset or of the user's file; overrides show in it.
    title
        One line for people.
    allow, infer, clear, deny, unlisted
        Operators by :class:`OpClass`.
    patterns
        Pattern rules in force, out of :data:`PATTERNS`.
    taint_through_decisions
        Whether values that are not floating point (comparison results, masks, indices) carry
        unsafety on.
    safety_deny
        Operators that are on none of `allow`, `infer` and `clear`; on no list, they are denied.

    Raises
    ------
    UsageError
        When lists overlap, release an operator of `safety_deny` or name an unknown pattern rule.
    """

    name: str
    title: str
    allow: frozenset[OpKey]
    infer: frozenset[OpKey]
    clear: frozenset[OpKey]
    deny: frozenset[OpKey]
    unlisted: frozenset[OpKey] = frozenset()
    patterns: tuple[str, ...] = ()
    taint_through_decisions: bool = True
    safety_deny: frozenset[OpKey] = SAFETY_DENY

    def __post_init__(self) -> None:
        _check(self.tables, self.patterns, self.safety_deny, lambda _: f"op lists {self.name}")

    @property
    def tables(self) -> _Tables:
        """The five lists by class."""
        return MappingProxyType({op_class: getattr(self, op_class.value) for op_class in TABLES})

    def class_of(self, op: OpKey) -> OpClass:
        """Class of an operator.

        Examples
        --------
        >>> preset("campo").class_of(OpKey("", "Conv"))
        <OpClass.ALLOW: 'allow'>
        >>> preset("campo").class_of(OpKey("my.domain", "Fancy"))
        <OpClass.UNKNOWN: 'unknown'>
        """
        for op_class, ops in self.tables.items():
            if op in ops:
                return op_class
        return OpClass.DENY if op in self.safety_deny else OpClass.UNKNOWN


def preset_names() -> tuple[str, ...]:
    """Names of the lists that come with the package, sorted."""
    return tuple(sorted(_presets()))


def preset(name: str) -> OpLists:
    """Return lists that come with the package.

    Raises
    ------
    UsageError
        When there is no preset of this name.
    """
    names = preset_names()
    if name not in names:
        raise UsageError(f"unknown op lists {name!r}", remedy=_suggestion(name, names))
    return _presets()[name]


@cache
def _presets() -> Mapping[str, OpLists]:
    """Read the table: a row an operator, a column a preset."""
    about = tomllib.loads(_TABLE.joinpath("presets.toml").read_text(encoding="utf-8"))
    table = _TABLE.joinpath("presets.csv").read_text(encoding="utf-8")
    rows = [(OpKey.parse(row["op"]), row) for row in csv.DictReader(table.splitlines())]
    found = {}
    for name, facts in about.items():
        tables = {
            op_class.value: frozenset(op for op, row in rows if row[name] == op_class.value)
            for op_class in TABLES
        }
        found[name] = OpLists(
            name=name,
            title=facts["title"],
            patterns=tuple(facts["patterns"]),
            taint_through_decisions=facts["taint_through_decisions"],
            **tables,
        )
    return MappingProxyType(found)


def load(path: str | Path) -> OpLists:
    """Read a user's file: complete lists, or changes to a preset it says it ``extends``.

    Raises
    ------
    UsageError
        When the file is unreadable or not what ``docs/op-lists.md`` describes.
    """
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
    return _parse(_ListFile(path=str(path), text=text), path.name)


def resolve(name_or_path: str) -> OpLists:
    """Return the preset of this name or, for anything that ends in ``.toml`` or exists, load the file.

    Raises
    ------
    UsageError
        When it is neither, or the file is bad.
    """
    path = Path(name_or_path)
    if name_or_path not in preset_names() and (path.suffix == ".toml" or path.exists()):
        return load(path)
    return preset(name_or_path)


def with_overrides(
    lists: OpLists,
    *,
    allow: Sequence[str] = (),
    infer: Sequence[str] = (),
    clear: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> OpLists:
    """Move operators from list to list.

    Parameters
    ----------
    lists
        What to change.
    allow, infer, clear, deny
        Operators as users write them (``"Exp"``, ``"com.microsoft:ConvGrad"``), by the list they
        move to; those that `lists` does not know are added.

    Raises
    ------
    UsageError
        When a name is malformed, is given for two lists, or is in :data:`SAFETY_DENY` and would
        be released.
    """

    def where(_: str) -> str:
        return "op list options"

    given = {OpClass.ALLOW: allow, OpClass.INFER: infer, OpClass.CLEAR: clear, OpClass.DENY: deny}
    moves = {op_class: _op_keys(labels, where) for op_class, labels in given.items()}
    _check(moves, (), lists.safety_deny, where)
    if not any(moves.values()):
        return lists
    overridden = replace(lists, name=f"{lists.name} with overrides", title=f"{lists.title}, with overrides")
    return _moved(overridden, moves)


def _moved(lists: OpLists, moves: _Tables) -> OpLists:
    named = frozenset[OpKey]().union(*moves.values())
    tables = {c: (ops - named) | moves.get(c, frozenset()) for c, ops in lists.tables.items()}
    return replace(
        lists,
        allow=tables[OpClass.ALLOW],
        infer=tables[OpClass.INFER],
        clear=tables[OpClass.CLEAR],
        deny=tables[OpClass.DENY],
        unlisted=tables[OpClass.UNLISTED],
    )


def _check(tables: _Tables, patterns: Iterable[str], safety_deny: frozenset[OpKey], where: _Where) -> None:
    found: dict[OpKey, OpClass] = {}
    for op_class, op in ((op_class, op) for op_class, ops in tables.items() for op in sorted(ops)):
        label, table = op.label, op_class.value
        if op in found:
            raise UsageError(
                f"{where(label)}: {label} is on two lists, {found[op].value} and {table}",
                remedy="Leave it on one of them.",
            )
        if op in safety_deny and op_class in (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR):
            raise UsageError(
                f"{where(label)}: {label} cannot be on the list {table}",
                why="losses, weight updates and control flow stay FP32",
                remedy="Take it off that list.",
            )
        found[op] = op_class
    for pattern in patterns:
        if pattern not in PATTERNS:
            what = f"{where(pattern)}: unknown pattern rule {pattern!r}"
            raise UsageError(what, remedy=_suggestion(pattern, PATTERNS))


_LABEL = re.compile(r"(?:[A-Za-z_][\w.-]*:)?[A-Za-z_]\w*", re.ASCII)


def _op_keys(labels: Iterable[str], where: _Where) -> frozenset[OpKey]:
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise UsageError(
                f"{where(label)}: {label!r} does not name an operator",
                remedy="Write Exp or, outside the standard domain, com.microsoft:ConvGrad.",
            )
    return frozenset(map(OpKey.parse, labels))


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


_T = TypeVar("_T", str, bool, list[object], dict[str, object])
_KIND = {str: "a string", bool: "true or false", list: "a list of strings", dict: "a table"}
_TOP_KEYS = ("title", "source", "extends", *(op_class.value for op_class in TABLES), "rules")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListFile:
    path: str
    text: str

    def where(self, word: str) -> str:
        """Path and last line on which `word` stands outside a comment; the path alone if none does."""
        whole = re.compile(rf"(?<![\w.:]){re.escape(word)}(?![\w.:])")
        numbered = enumerate(self.text.splitlines(), start=1)
        lines = [number for number, line in numbered if whole.search(line.partition("#")[0])]
        return f"{self.path}:{lines[-1]}" if lines else self.path

    def read(self) -> Mapping[str, object]:
        try:
            data: Mapping[str, object] = from_toml(self.text)
        except DecodeError as error:
            raise UsageError(f"{self.path}: this is not TOML", why=str(error)) from error
        self.expect_keys(data, _TOP_KEYS, "the file")
        return data

    def expect_keys(self, table: Mapping[str, object], known: Sequence[str], inside: str) -> None:
        for key in table:
            if key not in known:
                what = f"{self.where(key)}: unknown key {key!r} in {inside}"
                raise UsageError(what, remedy=_suggestion(key, known))

    def get(self, table: Mapping[str, object], key: str, default: _T) -> _T:
        value = table.get(key, default)
        if not isinstance(value, type(default)):
            what = f"{self.where(key)}: {key!r} must be {_KIND[type(default)]}"
            raise UsageError(what, why=f"it is {value!r}")
        return value

    def strings(self, table: Mapping[str, object], key: str) -> tuple[str, ...]:
        values = self.get(table, key, [])
        strings = tuple(value for value in values if isinstance(value, str))
        if len(strings) < len(values):
            raise UsageError(f"{self.where(key)}: {key!r} must be {_KIND[list]}", why=f"it is {values!r}")
        return strings

    def ops(self, data: Mapping[str, object], name: str) -> frozenset[OpKey]:
        table = self.get(data, name, {})
        self.expect_keys(table, ("meaning", "ops"), f"[{name}]")
        self.get(table, "meaning", "")
        if "ops" not in table:
            raise UsageError(f"{self.where(name)}: [{name}] has no 'ops'", remedy="Add it; it may be empty.")
        return _op_keys(self.strings(table, "ops"), self.where)


def _parse(file: _ListFile, name: str) -> OpLists:
    data = file.read()
    base = _base(file, data, name)
    title = file.get(data, "title", f"{base.title}, changed by {name}")
    file.get(data, "source", "")
    moves = {op_class: file.ops(data, op_class.value) for op_class in TABLES if op_class.value in data}
    rules = file.get(data, "rules", {})
    file.expect_keys(rules, ("patterns", "taint_through_decisions"), "[rules]")
    patterns = file.strings(rules, "patterns") if "patterns" in rules else base.patterns
    decisions = file.get(rules, "taint_through_decisions", base.taint_through_decisions)
    _check(moves, patterns, base.safety_deny, file.where)
    changed = replace(base, name=name, title=title, patterns=patterns, taint_through_decisions=decisions)
    return _moved(changed, moves)


def _base(file: _ListFile, data: Mapping[str, object], name: str) -> OpLists:
    """Return the lists that a file starts from: the preset it extends, or empty ones."""
    if "extends" in data:
        extended = file.get(data, "extends", "")
        if extended not in preset_names():
            what = f"{file.where('extends')}: unknown op lists {extended!r} to extend"
            raise UsageError(what, remedy=_suggestion(extended, preset_names()))
        return preset(extended)
    for key in ("title", "allow", "infer", "clear", "deny"):
        if key not in data:
            raise UsageError(
                f"{file.path}: {key!r} is missing",
                why="the file extends no preset",
                remedy='Add it, or begin the file with extends = "campo" to change a preset.',
            )
    empty = frozenset[OpKey]()
    return OpLists(name=name, title="", allow=empty, infer=empty, clear=empty, deny=empty)
