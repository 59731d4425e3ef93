"""One codec for every file of ours: frozen dataclasses to JSON or TOML and back, strictly.

What a file may hold follows from the types of the dataclass it is read into. Unknown fields are refused
and wrong types are named with their path, because a misspelt field that is passed over in silence is a
setting that somebody believes in. Values check themselves (``__post_init__``).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec
from msgspec import inspect

T = TypeVar("T")

TOML_LIMIT_BYTES = 1 << 18
"""Largest TOML file: people write those."""

_MOST_DOTS = 256
_NUMBERS = 1 << 63
# Toml has hexadecimal and binary numbers, and underscores in all.
_LONG_NUMBER = re.compile(r"[0-9a-fA-F_]{16}")
_LONG_NUMBER_IN_BYTES = re.compile(_LONG_NUMBER.pattern.encode())
_QUOTED = re.compile(rb"\"[^\"]*\"|'[^']*'")

Document = dict[str, Any]
"""A JSON object as plain values."""


@runtime_checkable
class Plain(Protocol):
    """A type that msgspec does not know, and that knows how to be written and read itself."""

    def to_plain(self) -> Any:
        """The value as strings, numbers, lists and dicts."""

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Read :meth:`to_plain` back; a ValueError says what is wrong."""


class DecodeError(ValueError):
    """A document does not have the expected form; the message says where and why.

    `path`: ``deny.ops[1]``; ``""`` for the whole.
    """

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path


def to_plain(value: Any) -> Any:
    """Turn a value into strings, numbers, lists and dicts: dataclasses by field, enums by value.

    >>> from types import MappingProxyType
    >>> to_plain({"sizes": (1, 2), "shares": MappingProxyType({"a": 0.5})})
    {'sizes': (1, 2), 'shares': {'a': 0.5}}
    """
    return msgspec.to_builtins(value, enc_hook=_plain)


def fingerprint(value: Any) -> str:
    """Digest of a value, the same in every process: sets and mappings count in sorted order.

    >>> fingerprint({"a": frozenset({"x", "y"}), "b": 1}) == fingerprint({"b": 1, "a": frozenset({"y", "x"})})
    True
    >>> fingerprint({"a": 1}) == fingerprint({"a": 2})
    False
    """
    plain = msgspec.to_builtins(value, enc_hook=_plain, order="deterministic")
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()


def from_plain(plain: Any, kind: type[T]) -> T:
    """Turn plain values into a type.

    >>> from_plain([1, "2"], tuple[int, ...])
    Traceback (most recent call last):
    campo_onnx.files.codec.DecodeError: [1]: expected `int`, got `str`
    """
    expected: inspect.Type = _known(kind)  # type: ignore[arg-type]  # a class is hashable
    _refuse_unknown(plain, expected, "")
    try:
        return msgspec.convert(plain, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from None


def from_json(text: str | bytes) -> Any:
    """Read JSON as plain values."""
    try:
        return _with_usual_numbers(msgspec.json.decode(text), text)
    except RecursionError:
        raise DecodeError("it is nested too deeply") from None
    except DecodeError:
        raise
    except ValueError as error:  # of msgspec, or a surrogate in the text
        why = str(error).removeprefix("JSON is malformed: ")
        raise DecodeError(f"it is not JSON ({why})") from None


def from_toml(text: str | bytes) -> Any:
    """Read TOML as plain values."""
    _refuse_long_keys(text)
    try:
        return _with_usual_numbers(msgspec.toml.decode(text), text)
    except RecursionError:
        raise DecodeError("it is nested too deeply") from None
    except DecodeError:
        raise
    except ValueError as error:  # of msgspec, or bytes that are not UTF-8
        raise DecodeError(f"it is not TOML: {error}") from None


def _with_usual_numbers(plain: T, text: str | bytes) -> T:
    """Refuse integers beyond 64 bits: neither arrays nor floats hold them, and arithmetic on them fails."""
    digits = _LONG_NUMBER if isinstance(text, str) else _LONG_NUMBER_IN_BYTES
    if digits.search(text):  # type: ignore[arg-type]  # each fits its text
        _refuse_long_numbers(plain, "")
    return plain


def _refuse_long_numbers(plain: Any, path: str) -> None:
    if isinstance(plain, int) and not -_NUMBERS <= plain < _NUMBERS:
        raise DecodeError("the number is beyond 64 bits", path)
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            _refuse_long_numbers(value, f"{path}.{key}".removeprefix("."))
    elif isinstance(plain, list):
        for index, value in enumerate(plain):
            _refuse_long_numbers(value, f"{path}[{index}]")


def _refuse_long_keys(text: str | bytes) -> None:
    """Refuse what would take the parser hours: its time grows with the square of the parts of a key."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if len(data) > TOML_LIMIT_BYTES:
        raise DecodeError(f"it has more than {TOML_LIMIT_BYTES:,} bytes")
    for number, line in enumerate(data.splitlines(), start=1):
        if line.count(b".") > _MOST_DOTS and _QUOTED.sub(b"", line).count(b".") > _MOST_DOTS:
            raise DecodeError(f"line {number} has more than {_MOST_DOTS} dots outside strings")


def to_json(document: Mapping[str, Any], rows: tuple[str, ...] = ()) -> str:
    """Write an object as JSON that can be read and compared by people.

    `document`: the object; values may be of any type that :func:`to_plain` takes.
    `rows`: keys of arrays that get one element a line; they come last.

    Raises ValueError if a number is not finite: JSON has no word for it.

    >>> print(to_json({"points": [{"x": 1}, {"x": 2}], "unit": "us"}, rows=("points",)))
    {
     "unit": "us",
     "points": [
      {"x": 1},
      {"x": 2}
     ]
    }
    <BLANKLINE>
    """
    plain = to_plain(dict(document))
    parts = [
        f" {json.dumps(key)}: {json.dumps(value, indent=1, allow_nan=False)}".replace("\n", "\n ")
        for key, value in plain.items()
        if key not in rows
    ]
    for key in rows:
        lines = ",\n  ".join(json.dumps(row, allow_nan=False) for row in plain[key])
        parts.append(f" {json.dumps(key)}: [" + (f"\n  {lines}\n ]" if lines else "]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # read-only ones
        return dict(value)
    if isinstance(value, Plain):
        return value.to_plain()
    raise NotImplementedError(f"{type(value).__name__} cannot be written to a file")


def _read(kind: type[Any], plain: Any) -> Any:
    if isinstance(plain, kind):
        return plain
    if issubclass(kind, Plain):
        return kind.from_plain(plain)
    raise NotImplementedError(f"{kind.__name__} cannot be read from a file")


@cache
def _known(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _refuse_unknown(plain: Any, expected: inspect.Type, path: str) -> None:
    """Refuse fields that no dataclass has: msgspec passes over them.

    Values of the wrong type are left to msgspec, which names them.
    """
    if isinstance(expected, inspect.UnionType):
        # A union holds at most one type that is written as an object, else msgspec refuses it.
        for one in expected.types:
            _refuse_unknown(plain, one, path)
    elif isinstance(plain, Mapping):
        _refuse_unknown_keys(plain, expected, path)
    elif isinstance(plain, list | tuple):
        match expected:
            case inspect.TupleType(item_types=items):
                kinds = items
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                kinds = (item,) * len(plain)
            case _:
                return
        for index, (value, one) in enumerate(zip(plain, kinds, strict=False)):
            _refuse_unknown(value, one, f"{path}[{index}]")


def _refuse_unknown_keys(plain: Mapping[Any, Any], expected: inspect.Type, path: str) -> None:
    match expected:
        case inspect.DictType(value_type=value_type):
            for key, value in plain.items():
                _refuse_unknown(value, value_type, f"{path}[{key!r}]")
        case inspect.DataclassType(fields=fields):
            types = {part.encode_name: part.type for part in fields}
            for key, value in plain.items():
                here = f"{path}.{key}".removeprefix(".")
                if key not in types:
                    near = get_close_matches(str(key), types, n=1)
                    guess = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(types)}"
                    raise DecodeError(f"unknown field, {guess}", here)
                _refuse_unknown(value, types[key], here)


def _located(message: str) -> DecodeError:
    """Put the path first: of "Expected `int`, got `str` - at `$.a[0]`" make "a[0]: expected ..."."""
    what, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$").removeprefix(".")
    return DecodeError(f"{what[:1].lower()}{what[1:]}" if path else what, path)
