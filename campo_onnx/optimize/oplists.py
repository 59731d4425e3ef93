"""Op lists: what each operator's numerics allow, as readable data.

The four lists are those of TensorFlow's AMP, on which Campo builds (section 4.3 of the paper). The
presets are the files in ``lists/``; a user's file or options change them, but never the operators
in :data:`SAFETY_DENY`.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from campo_onnx.errors import UsageError
from campo_onnx.ir.view import OpKey


class OpClass(Enum):
    """What the lists say about an operator, in TensorFlow's sense."""

    ALLOW = "allow"
    """Numerically safe in low precision and much faster there: goes low wherever that pays."""
    INFER = "infer"
    """Safe unless an unsafe value reaches it: goes low between low operators."""
    CLEAR = "clear"
    """Has no numerical effect of its own: takes the precision around it."""
    DENY = "deny"
    """Unsafe in low precision: stays FP32 and makes what it computes unsafe."""
    UNLISTED = "unlisted"
    """Known, and on none of the four lists: stays FP32; unsafety neither starts here nor passes on."""
    UNKNOWN = "unknown"
    """Never heard of: stays FP32, and a report names it."""


TABLES = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR, OpClass.DENY, OpClass.UNLISTED)
"""The classes that a file has a table for."""

PATTERNS = ("bias-gradient", "normalization", "softmax", "gelu", "random")
"""Names of the rules that see a framework's operator in the pieces an exporter made of it."""

_LOSSES = """
    SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss SparseSoftmaxCrossEntropy SparseSoftmaxCrossEntropyGrad
    com.microsoft:SoftmaxCrossEntropy com.microsoft:SoftmaxCrossEntropyGrad
    com.microsoft:SoftmaxCrossEntropyLossGrad com.microsoft:SoftmaxCrossEntropyLossInternal
    com.microsoft:SoftmaxCrossEntropyLossInternalGrad com.microsoft:NegativeLogLikelihoodLossInternal
    com.microsoft:NegativeLogLikelihoodLossInternal2
"""
_UPDATES = """
    ai.onnx.preview.training:Adam ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Momentum
    ai.onnx.preview.training:Gradient com.microsoft:InPlaceAccumulator com.microsoft:InPlaceAccumulatorV2
    com.microsoft:ZeroGradient com.microsoft:SGDOptimizer com.microsoft:SGDOptimizerV2
    com.microsoft:AdamOptimizer com.microsoft:AdamWOptimizer com.microsoft:LambOptimizer
    com.microsoft:InplaceClipGradNorm
"""
_CONTROL_FLOW = "If Loop Scan SequenceMap"

SAFETY_DENY = frozenset(OpKey.parse(op) for op in f"{_LOSSES} {_UPDATES} {_CONTROL_FLOW}".split())
"""Losses, weight updates and control flow: no file and no option puts them on a list that goes low."""

_Tables = Mapping[OpClass, frozenset[OpKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLists:
    """Disjoint lists of operators, and the rules that go with them.

    Parameters
    ----------
    name
        Name of the preset or of the user's file.
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
        fault = _fault(self.tables, self.safety_deny)
        if fault is not None:
            raise UsageError(f"op lists {self.name}: {fault.what}", why=fault.why, remedy=fault.remedy)
        for pattern in self.patterns:
            if pattern not in PATTERNS:
                raise UsageError(
                    f"op lists {self.name}: unknown pattern rule {pattern!r}",
                    remedy=_suggestion(pattern, PATTERNS),
                )

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
    found = (entry.name for entry in files(__package__).joinpath("lists").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def preset(name: str) -> OpLists:
    """Lists that come with the package.

    Raises
    ------
    UsageError
        When there is no preset of this name.
    """
    names = preset_names()
    if name not in names:
        raise UsageError(f"there are no op lists named {name!r}", remedy=_suggestion(name, names))
    text = files(__package__).joinpath("lists", f"{name}.toml").read_text(encoding="utf-8")
    return _parse(_ListFile(path=f"{name}.toml", text=text), name)


def load(path: str | Path) -> OpLists:
    """Read a user's file: complete lists, or changes to a preset it says it ``extends``.

    Raises
    ------
    UsageError
        When the file is unreadable or not what ``docs/op-lists.md`` describes.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"cannot read the op lists {path}",
            why=error.strerror or str(error),
            remedy=f"Name a readable file or one of the presets: {', '.join(preset_names())}.",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read the op lists {path}",
            why=f"byte {error.start} is not UTF-8",
            remedy="Save the file as UTF-8.",
        ) from error
    return _parse(_ListFile(path=str(path), text=text), path.stem)


def resolve(name_or_path: str) -> OpLists:
    """Lists by the name of a preset or, for anything that ends in ``.toml`` or exists, by path.

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
    """Lists with some operators moved.

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
    labels = {OpClass.ALLOW: allow, OpClass.INFER: infer, OpClass.CLEAR: clear, OpClass.DENY: deny}
    for label in (label for given in labels.values() for label in given):
        if not _LABEL.fullmatch(label):
            raise UsageError(f"{label!r} does not name an operator", remedy=_LABEL_REMEDY)
    moves = {op_class: frozenset(map(OpKey.parse, given)) for op_class, given in labels.items()}
    fault = _fault(moves, lists.safety_deny)
    if fault is not None:
        raise UsageError(f"op lists, as overridden: {fault.what}", why=fault.why, remedy=fault.remedy)
    if not any(moves.values()):
        return lists
    return _moved(lists, moves, title=f"{lists.title}, with overrides")


_LABEL = re.compile(r"(?:[A-Za-z_][\w.-]*:)?[A-Za-z_]\w*", re.ASCII)
_LABEL_REMEDY = "Write the operator's type, as in Exp, with its domain if that is not ONNX's own, as in com.microsoft:ConvGrad."


def _moved(lists: OpLists, moves: _Tables, *, title: str) -> OpLists:
    named = frozenset[OpKey]().union(*moves.values())
    tables = {
        op_class.value: (ops - named) | moves.get(op_class, frozenset())
        for op_class, ops in lists.tables.items()
    }
    return replace(lists, title=title, **tables)


class _Fault(NamedTuple):
    op: OpKey
    what: str
    why: str
    remedy: str


def _fault(tables: _Tables, safety_deny: frozenset[OpKey]) -> _Fault | None:
    found: dict[OpKey, OpClass] = {}
    for op_class, ops in tables.items():
        for op in sorted(ops):
            if op in found:
                what = f"{op.label} is on two lists, {found[op].value} and {op_class.value}"
                return _Fault(op, what, "", "Leave it on one of them.")
            if op in safety_deny and op_class in (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR):
                what = f"{op.label} cannot be on the list {op_class.value}"
                why = "losses, weight updates and control flow stay FP32"
                return _Fault(op, what, why, "Take it off that list.")
            found[op] = op_class
    return None


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known := tuple(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


_T = TypeVar("_T", str, bool, list[object], dict[str, object])
_TOP_KEYS = ("title", "source", "extends", *(op_class.value for op_class in TABLES), "rules")
_KIND = {str: "a string", bool: "true or false", list: "a list of strings", dict: "a table"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListFile:
    path: str
    text: str

    def error(self, what: str, *, at: str = "", why: str = "", remedy: str = "") -> UsageError:
        """Error that points at the last line on which the word `at` stands outside a comment."""
        word = re.compile(rf"(?<![\w.:]){re.escape(at)}(?![\w.:])")
        lines = [n for n, line in enumerate(self.text.splitlines(), 1) if word.search(line.partition("#")[0])]
        where = f"{self.path}:{lines[-1]}" if at and lines else self.path
        return UsageError(f"{where}: {what}", why=why, remedy=remedy)

    def read(self) -> dict[str, object]:
        try:
            data = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise self.error("this is not TOML", why=str(error)) from error
        self.expect_keys(data, _TOP_KEYS, "the file")
        return data

    def expect_keys(self, table: Mapping[str, object], known: Iterable[str], where: str) -> None:
        for key in table:
            if key not in (known := tuple(known)):
                raise self.error(f"unknown key {key!r} in {where}", at=key, remedy=_suggestion(key, known))

    def get(self, table: Mapping[str, object], key: str, default: _T) -> _T:
        value = table.get(key, default)
        if not isinstance(value, type(default)):
            raise self.error(f"{key!r} must be {_KIND[type(default)]}", at=key, why=f"it is {value!r}")
        return value

    def strings(self, table: Mapping[str, object], key: str) -> tuple[str, ...]:
        found = []
        for value in self.get(table, key, []):
            if not isinstance(value, str):
                raise self.error(f"{key!r} must be {_KIND[list]}", at=key, why=f"{value!r} is in it")
            found.append(value)
        return tuple(found)

    def ops(self, data: Mapping[str, object], name: str) -> frozenset[OpKey]:
        table = self.get(data, name, {})
        self.expect_keys(table, ("meaning", "ops"), f"[{name}]")
        self.get(table, "meaning", "")
        if "ops" not in table:
            raise self.error(f"[{name}] has no 'ops'", at=name, remedy="Add ops = [...], empty if need be.")
        labels = self.strings(table, "ops")
        for label in labels:
            if not _LABEL.fullmatch(label):
                raise self.error(f"{label!r} does not name an operator", at=label, remedy=_LABEL_REMEDY)
        return frozenset(map(OpKey.parse, labels))


def _parse(file: _ListFile, name: str) -> OpLists:
    data = file.read()
    base = _base(file, data, name)
    title = file.get(data, "title", f"{base.title}, changed by {name}")
    file.get(data, "source", "")
    moves = {op_class: file.ops(data, op_class.value) for op_class in TABLES if op_class.value in data}
    fault = _fault(moves, base.safety_deny)
    if fault is not None:
        raise file.error(fault.what, at=fault.op.label, why=fault.why, remedy=fault.remedy)
    rules = file.get(data, "rules", {})
    file.expect_keys(rules, ("patterns", "taint_through_decisions"), "[rules]")
    patterns = file.strings(rules, "patterns") if "patterns" in rules else base.patterns
    for pattern in patterns:
        if pattern not in PATTERNS:
            remedy = _suggestion(pattern, PATTERNS)
            raise file.error(f"unknown pattern rule {pattern!r}", at=pattern, remedy=remedy)
    decisions = file.get(rules, "taint_through_decisions", base.taint_through_decisions)
    moved = _moved(base, moves, title=title)
    return replace(moved, name=name, patterns=patterns, taint_through_decisions=decisions)


def _base(file: _ListFile, data: Mapping[str, object], name: str) -> OpLists:
    """Lists that a file starts from: the preset it extends, or empty ones."""
    if "extends" in data:
        extended = file.get(data, "extends", "")
        if extended not in preset_names():
            remedy = _suggestion(extended, preset_names())
            raise file.error(
                f"there are no op lists named {extended!r} to extend", at="extends", remedy=remedy
            )
        return preset(extended)
    for key in ("title", "allow", "infer", "clear", "deny"):
        if key not in data:
            remedy = 'Add it, or begin the file with extends = "campo" to change a preset.'
            raise file.error(f"{key!r} is missing", why="the file extends no preset", remedy=remedy)
    empty = frozenset[OpKey]()
    return OpLists(name=name, title="", allow=empty, infer=empty, clear=empty, deny=empty)
