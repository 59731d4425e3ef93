"""Op lists: what each operator's numerics allow, as readable data.

The four lists are those of TensorFlow's AMP, on which Campo builds (section 4.3 of the paper). The
presets are the columns of ``ops/presets.csv``; a user's file (``list_file.py``) or options change them,
but never the operators in :data:`SAFETY_DENY`.
"""

import csv
import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import Ops
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.lists.op_class import MAY_BE_LOW
from campo_onnx.optimize.lists.op_class import OpClass as OpClass
from campo_onnx.optimize.lists.patterns import PATTERN_RULES

TABLES = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR, OpClass.DENY, OpClass.UNLISTED)
"""The classes that a file has a table for."""

PATTERNS = tuple(PATTERN_RULES)
"""Names of the rules that see a framework's operator in the pieces an exporter made of it."""

SAFETY_DENY = Ops(lambda registry: registry.of_family(Family.LOSS, Family.UPDATE, Family.CONTROL_FLOW))
"""Losses, weight updates and control flow: no file and no option puts them on a list that goes low."""

_TABLE = files("campo_onnx.ops")

Tables = Mapping[OpClass, frozenset[OpKey]]
Where = Callable[[str], str]  # the place of a word that is wrong, for messages


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLists:
    """Disjoint lists of operators, and the rules that go with them.

    Raises UsageError when lists overlap, release an operator of `safety_deny` or name an unknown pattern
    rule.
    """

    name: str  # name of the preset or of the user's file; overrides show in it
    title: str
    allow: frozenset[OpKey]
    infer: frozenset[OpKey]
    clear: frozenset[OpKey]
    deny: frozenset[OpKey]
    unlisted: frozenset[OpKey] = frozenset()
    patterns: tuple[str, ...] = ()  # pattern rules in force, out of PATTERNS
    # Whether values that are not floating point (comparison results, masks, indices) carry unsafety on.
    taint_through_decisions: bool = True
    # Operators that are on none of `allow`, `infer` and `clear`; on no list, they are denied. None takes
    # SAFETY_DENY.
    safety_deny: frozenset[OpKey] | None = None

    def __post_init__(self) -> None:
        check(self.tables, self.patterns, self.denied_for_safety, lambda _: f"op lists {self.name}")

    @property
    def tables(self) -> Tables:
        """The five lists by class."""
        return MappingProxyType({op_class: getattr(self, op_class.value) for op_class in TABLES})

    @property
    def denied_for_safety(self) -> Collection[OpKey]:
        """Operators that no list may release."""
        return SAFETY_DENY if self.safety_deny is None else self.safety_deny

    def class_of(self, op: OpKey) -> OpClass:
        """Class of an operator.

        >>> preset("campo").class_of(OpKey("", "Conv"))
        <OpClass.ALLOW: 'allow'>
        >>> preset("campo").class_of(OpKey("my.domain", "Fancy"))
        <OpClass.UNKNOWN: 'unknown'>
        """
        for op_class, ops in self.tables.items():
            if op in ops:
                return op_class
        return OpClass.DENY if op in self.denied_for_safety else OpClass.UNKNOWN


def preset_names() -> tuple[str, ...]:
    """Names of the lists that come with the package, sorted."""
    return tuple(sorted(_presets()))


def preset(name: str) -> OpLists:
    """Return lists that come with the package."""
    names = preset_names()
    if name not in names:
        raise UsageError(f"unknown op lists {name!r}", remedy=did_you_mean(name, names))
    return _presets()[name]


@cache
def _presets() -> Mapping[str, OpLists]:
    """Read the table: a row an operator, a column a preset."""
    about = tomllib.loads(_TABLE.joinpath("presets.toml").read_text(encoding="utf-8"))
    table = _TABLE.joinpath("presets.csv").read_text(encoding="utf-8")
    rows = [(OpKey.parse(row["op"]), row) for row in csv.DictReader(table.splitlines())]
    presets = {}
    for name, facts in about.items():
        tables = {
            op_class.value: frozenset(op for op, row in rows if row[name] == op_class.value)
            for op_class in TABLES
        }
        presets[name] = OpLists(
            name=name,
            title=facts["title"],
            patterns=tuple(facts["patterns"]),
            taint_through_decisions=facts["taint_through_decisions"],
            **tables,
        )
    return MappingProxyType(presets)


def with_overrides(
    lists: OpLists,
    *,
    allow: Sequence[str] = (),
    infer: Sequence[str] = (),
    clear: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> OpLists:
    """Move operators from list to list.

    `allow`, `infer`, `clear` and `deny`: operators as users write them (``"Exp"``,
    ``"com.microsoft:ConvGrad"``), by the list they move to; those that `lists` does not know are added.
    """

    def where(_: str) -> str:
        return "op list options"

    overrides = {OpClass.ALLOW: allow, OpClass.INFER: infer, OpClass.CLEAR: clear, OpClass.DENY: deny}
    moves = {op_class: op_keys(labels, where) for op_class, labels in overrides.items()}
    check(moves, (), lists.denied_for_safety, where)
    if not any(moves.values()):
        return lists
    overridden = replace(lists, name=f"{lists.name} with overrides", title=f"{lists.title}, with overrides")
    return moved(overridden, moves)


def moved(lists: OpLists, moves: Tables) -> OpLists:
    """Put operators on other lists than they are on."""
    named = frozenset[OpKey]().union(*moves.values())
    tables: dict[str, Any] = {
        c.value: (ops - named) | moves.get(c, frozenset()) for c, ops in lists.tables.items()
    }
    return replace(lists, **tables)


def check(tables: Tables, patterns: Iterable[str], safety_deny: Collection[OpKey], where: Where) -> None:
    """Refuse lists that overlap, release an operator of `safety_deny` or name an unknown pattern rule."""
    class_of: dict[OpKey, OpClass] = {}
    for op_class, op in ((op_class, op) for op_class, ops in tables.items() for op in sorted(ops)):
        label, table = op.label, op_class.value
        if op in class_of:
            raise UsageError(
                f"{where(label)}: {label} is on two lists, {class_of[op].value} and {table}",
                remedy="Leave it on one of them.",
            )
        if op in safety_deny and op_class in MAY_BE_LOW:
            raise UsageError(
                f"{where(label)}: {label} cannot be on the list {table}",
                why="losses, weight updates and control flow stay FP32",
                remedy="Take it off that list.",
            )
        class_of[op] = op_class
    for pattern in patterns:
        if pattern not in PATTERNS:
            what = f"{where(pattern)}: unknown pattern rule {pattern!r}"
            raise UsageError(what, remedy=suggestion(pattern, PATTERNS))


_LABEL = re.compile(r"(?:[A-Za-z_][\w.-]*:)?[A-Za-z_]\w*", re.ASCII)


def op_keys(labels: Iterable[str], where: Where) -> frozenset[OpKey]:
    """Read operators as users write them; raises UsageError for what does not name one."""
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise UsageError(
                f"{where(label)}: {label!r} does not name an operator",
                remedy="Write Exp or, outside the standard domain, com.microsoft:ConvGrad.",
            )
    return frozenset(map(OpKey.parse, labels))


def suggestion(word: str, candidates: Sequence[str]) -> str:
    """The nearest of the known words, or all of them."""
    close = difflib.get_close_matches(word, candidates, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(candidates)}."
