"""Files and documents of ours: their kind and version, what is refused, and what older versions become."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.files import READ_LIMIT_BYTES, read_bytes
from campo_onnx.files.codec import DecodeError, Document, from_json, from_plain, to_json, to_plain

T = TypeVar("T")


_HEAD = ("kind", "format_version")


def headed(kind: str, version: int, fields: Document) -> Document:
    """Put before the fields of a document what every document of this package begins with.

    >>> headed("campo-onnx comparison", 1, {"strategies": []})
    {'kind': 'campo-onnx comparison', 'format_version': 1, 'strategies': []}
    """
    return {"kind": kind, "format_version": version} | fields


def to_report(kind: str, version: int, fields: Mapping[str, Any]) -> str:
    """Write a result that only other programs read: headed, and null where a number is not finite.

    >>> from math import inf
    >>> print(to_report("campo-onnx frontier", 1, {"error": inf}), end="")
    {
     "kind": "campo-onnx frontier",
     "format_version": 1,
     "error": null
    }
    """
    finite = json.loads(json.dumps(to_plain(dict(fields))), parse_constant=lambda name: None)
    return to_json(headed(kind, version, finite))


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """A kind of file: what it holds, and which versions of it are read."""

    holds: type[T]  # the dataclass
    noun: str  # what the file is called: `"calibration"`
    # version that is written, as `format_version`; raised when a program that reads the old one would misread
    # the new one
    version: int
    kind: str  # what the document says it is, as `kind`: `"campo-onnx plan"`
    kind_since: int = 1  # first version that says it
    rows: tuple[str, ...] = ()  # fields that get one element a line
    # by older version that is still read, what turns its document into one of the next version
    older: Mapping[int, Callable[[Document], Document]] = field(default_factory=dict)
    # raised for a file that is something else, damaged, or of a newer version
    error: type[CampoError] = UsageError
    remedy: str = ""  # how to get a new one
    limit_bytes: int = READ_LIMIT_BYTES

    def document(self, value: T) -> Document:
        """The value as plain values, with kind and version."""
        return headed(self.kind, self.version, to_plain(value))

    def encode(self, value: T) -> str:
        """The value as JSON."""
        return to_json(self.document(value), self.rows)

    def decode(self, text: str | bytes, title: str = "") -> T:
        """Read :meth:`encode` back.

        Raises `error` if it is something else, damaged, or of a newer version.
        """
        title = title or f"the {self.noun}"
        try:
            document = from_json(text)
        except DecodeError as error:
            raise self._unreadable(title, error) from None
        return self.from_document(document, title)

    def from_document(self, document: Any, title: str) -> T:
        """Turn plain values, with kind and version, into a value; raises as :meth:`decode` does."""
        if not isinstance(document, dict) or document.get("kind", self.kind) != self.kind:
            raise self.error(f"{title} is not a {self.noun} of campo-onnx", remedy=self.remedy)
        facts = {key: value for key, value in document.items() if key not in _HEAD}
        version = self._checked_version(document, title)
        if "kind" not in document and version >= self.kind_since:
            why = "it does not say its kind"
            raise self.error(f"{title} is not a {self.noun} of campo-onnx", why=why, remedy=self.remedy)
        try:
            for number in range(version, self.version):
                facts = self.older[number](facts)
            return from_plain(facts, self.holds)
        except CampoError as error:  # a value refused itself
            raise self.error(f"{title} cannot be read", why=str(error), remedy=self.remedy) from None
        except (DecodeError, KeyError, TypeError) as error:
            raise self._unreadable(title, error) from None

    def load(self, path: Path) -> T:
        """Read a file.

        Raises UsageError if it does not exist or cannot be read, and `error` if it is too large,
        something else, damaged, or of a newer version.
        """
        data = read_bytes(
            path, title=f"the {self.noun} {path}", limit_bytes=self.limit_bytes, too_large=self.error
        )
        return self.decode(data, str(path))

    def _checked_version(self, document: Document, title: str) -> int:
        version = document.get("format_version")
        if type(version) is not int:
            why = "it has no format_version" if version is None else f"its format_version is {version!r}"
            raise self.error(f"{title} is not a {self.noun} of campo-onnx", why=why, remedy=self.remedy)
        if version > self.version:
            raise self.error(
                f"{title} was written by a newer campo-onnx",
                why=f"it has format version {version}, and this one reads up to {self.version}",
                remedy="Update campo-onnx.",
            )
        if any(number not in self.older for number in range(version, self.version)):
            raise self.error(
                f"{title} has format version {version}",
                why=f"this campo-onnx reads version {min(self.older, default=self.version)} and later",
                remedy=self.remedy,
            )
        return version

    def _unreadable(self, title: str, error: Exception) -> CampoError:
        return self.error(f"{title} cannot be read", why=str(error), remedy=self.remedy)
