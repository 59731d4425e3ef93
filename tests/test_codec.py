"""Values come back from files as they were; everything else is refused with its path."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Self

import pytest

from campo_onnx.errors import ProfileError, UsageError
from campo_onnx.files import write_text
from campo_onnx.files.codec import DecodeError, from_json, from_plain, from_toml, to_json, to_plain
from campo_onnx.files.document_format import Format


class Colour(Enum):
    RED = "red"


class Degrees:
    """A type that msgspec does not know."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Degrees) and other.value == self.value

    __hash__ = None

    def to_plain(self) -> str:
        return f"{self.value} deg"

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        number, _, unit = str(plain).partition(" ")
        if unit != "deg":
            raise ValueError(f"{plain!r} is not an angle")
        return cls(float(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x_us: float
    angle: Degrees | None = None

    def __post_init__(self) -> None:
        if self.x_us < 0:
            raise ValueError("x_us is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    colour: Colour
    points: tuple[Point, ...]
    corner: tuple[int, Point] | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    named: Mapping[str, Point] = field(default_factory=dict)
    is_open: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", MappingProxyType(dict(self.shares)))
        if len(self.points) > 3:
            raise UsageError("a drawing has too many points", remedy="Take three.")


DRAWING = Drawing(
    colour=Colour.RED,
    points=(Point(x_us=0.1 + 0.2), Point(x_us=1.0, angle=Degrees(45.0))),
    corner=(3, Point(x_us=2.0)),
    shares={"a": 0.5},
    named={"top": Point(x_us=5.0)},
)
FORMAT = Format(
    holds=Drawing,
    noun="drawing",
    version=3,
    kind="a drawing",
    rows=("points",),
    older={2: lambda old: {**old, "colour": old["color"]} if "color" not in old else _renamed(old)},
    error=ProfileError,
    remedy="Draw it again.",
)


def _renamed(old: dict[str, object]) -> dict[str, object]:
    return {"colour" if key == "color" else key: value for key, value in old.items()}


def changed(**changes: object) -> str:
    return json.dumps(json.loads(FORMAT.encode(DRAWING)) | changes)


def refusal(text: str | bytes) -> str:
    with pytest.raises(ProfileError) as raised:
        FORMAT.decode(text, "d.json")
    return str(raised.value)


def test_round_trip(tmp_path: Path) -> None:
    text = FORMAT.encode(DRAWING)
    assert FORMAT.decode(text) == DRAWING
    assert FORMAT.encode(FORMAT.decode(text)) == text
    write_text(FORMAT.encode(DRAWING), tmp_path / "d.json")
    assert FORMAT.load(tmp_path / "d.json") == DRAWING
    assert from_plain(to_plain(DRAWING), Drawing) == DRAWING


def test_rows_are_lines_of_their_own() -> None:
    lines = FORMAT.encode(DRAWING).splitlines()
    assert lines[1:3] == [' "kind": "a drawing",', ' "format_version": 3,']
    assert lines[-5:] == [
        ' "points": [',
        f'  {{"x_us": {0.1 + 0.2}, "angle": null}},',
        '  {"x_us": 1.0, "angle": "45.0 deg"}',
        " ]",
        "}",
    ]
    assert '"points": []' in FORMAT.encode(Drawing(colour=Colour.RED, points=()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colr": "red"}, "colr: unknown field, did you mean 'colour'?"),
        ({"zzz": 1}, "zzz: unknown field, known: colour, points, corner, shares, named, is_open"),
        ({"points": [{"x_us": 1}, {"x_us": 1, "y": 2}]}, "points[1].y: unknown field, known: x_us, angle"),
        ({"corner": [1, {"x_us": 1, "y": 2}]}, "corner[1].y: unknown field"),
        ({"named": {"top": {"x": 1}}}, "named['top'].x: unknown field"),
        ({"points": [{"x_us": "1"}]}, "points[0].x_us: expected `float`, got `str`"),
        ({"points": [{"x_us": True}]}, "points[0].x_us: expected `float`, got `bool`"),
        ({"points": [{}]}, "points[0]: object missing required field `x_us`"),
        ({"points": [{"x_us": -1}]}, "points[0]: x_us is negative"),
        ({"points": [{"x_us": 1, "angle": "3 rad"}]}, "points[0].angle: '3 rad' is not an angle"),
        ({"points": {"x_us": 1}}, "points: expected `array`, got `object`"),
        ({"points": 3}, "points: expected `array`, got `int`"),
        ({"corner": [1.5, {"x_us": 1}]}, "corner[0]: expected `int`, got `float`"),
        ({"colour": "green"}, "colour: invalid enum value 'green'"),
        ({"is_open": 1}, "is_open: expected `bool`, got `int`"),
        ({"shares": {"a": "half"}}, "shares[...]: expected `float`, got `str`"),
        ({"points": [{"x_us": 1}] * 4}, "a drawing has too many points. Take three."),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    text = refusal(changed(**changes))
    assert text.startswith("d.json cannot be read: ")
    assert message in text
    assert text.endswith("Draw it again.")


def test_a_missing_field() -> None:
    document = json.loads(FORMAT.encode(DRAWING))
    del document["colour"]
    assert "missing required field `colour`" in refusal(json.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        "{}",
        '{"kind": "x"}',
        '{"kind": 3}',
        changed(kind="a plan"),
        changed(format_version="3"),
    ],
)
def test_something_else(text: str) -> None:
    assert "d.json is not a drawing of campo-onnx" in refusal(text)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe\x00", '{"a": NaN}', "\ud800", '{"a": 1e999}'])
def test_no_json(text: str | bytes) -> None:
    assert "d.json cannot be read: it is not JSON" in refusal(text)
    assert "malformed" not in refusal(text)


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"points": ' * 100_000], ids=["arrays", "objects"])
def test_deep_nesting_is_one_message(text: str) -> None:
    assert refusal(text) == "d.json cannot be read: it is nested too deeply. Draw it again."


def test_depth_that_json_bears_is_refused_for_its_type() -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    assert "points[0]: expected `object`, got `array`" in refusal(changed(points=[deep]))


def test_versions() -> None:
    older = json.loads(changed(format_version=2))
    older["color"] = older.pop("colour")
    assert FORMAT.decode(json.dumps(older)) == DRAWING
    del older["color"]
    assert "cannot be read" in refusal(json.dumps(older))
    assert refusal(changed(format_version=4)) == (
        "d.json was written by a newer campo-onnx: it has format version 4, and this one reads up to 3. "
        "Update campo-onnx."
    )
    assert "format version 1: this campo-onnx reads version 2 and later" in refusal(changed(format_version=1))
    assert "format_version is True" in refusal(changed(format_version=True))


def test_documents_say_their_kind_from_some_version_on() -> None:
    late = replace(FORMAT, kind_since=3)
    older, newest = json.loads(changed(format_version=2)), json.loads(changed())
    older["color"] = older.pop("colour")
    del older["kind"], newest["kind"]
    assert late.decode(json.dumps(older)) == DRAWING
    for form, document in ((FORMAT, older), (late, newest)):
        with pytest.raises(ProfileError, match="does not say its kind"):
            form.decode(json.dumps(document))
    with pytest.raises(ProfileError, match="is not a drawing"):
        late.decode(json.dumps(older | {"kind": "a plan"}))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the drawing .*none does not exist"):
        FORMAT.load(tmp_path / "none")
    small = Format(holds=Drawing, noun="drawing", kind="small", version=1, limit_bytes=10, error=ProfileError)
    (tmp_path / "large").write_bytes(b" " * 11)
    with pytest.raises(ProfileError, match=r"the drawing .* is too large"):
        small.load(tmp_path / "large")


def test_toml() -> None:
    assert from_toml("a = [1, 2]\n[b]\nc = true") == {"a": [1, 2], "b": {"c": True}}
    for bad in ("a", b"\xff", "a = 1\na = 2"):
        with pytest.raises(DecodeError, match="it is not TOML"):
            from_toml(bad)
    with pytest.raises(DecodeError, match="nested too deeply"):
        from_toml("a = " + "[" * 100_000)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_does_not_know_are_not_written(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": number})
    with pytest.raises(ValueError, match="not JSON compliant"):
        FORMAT.encode(Drawing(colour=Colour.RED, points=(Point(x_us=abs(number)),)))


def test_what_no_file_holds() -> None:
    with pytest.raises(NotImplementedError, match="object cannot be written to a file"):
        to_plain({"a": object()})
    with pytest.raises(NotImplementedError, match="Path cannot be read from a file"):
        from_plain("a", Path)
    assert from_json("[1]") == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".".join(["a"] * 200_000) + " = 1", "more than 262,144 bytes"),
        (".".join(["a"] * 10_000) + " = 1", "line 1 has more than 256 dots"),
        ("x = 1\n[" + ".".join(['"a"'] * 10_000) + "]", "line 2 has more than 256 dots"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_toml_that_takes_for_ever(text, message):
    with pytest.raises(DecodeError, match=message):
        from_toml(text)
    assert from_toml('ops = ["' + "a.b" * 1000 + '"]')


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**400])
def test_numbers_beyond_64_bits(number):
    for read, text in (
        (from_json, '{"a": [0, %d]}'),
        (from_toml, "a = [0, %d]"),
        (from_json, b'{"a": [0, %d]}'),
    ):
        with pytest.raises(DecodeError, match=r"a\[1\]: the number is beyond 64 bits"):
            read(text % number)
    with pytest.raises(DecodeError, match="beyond 64 bits"):
        from_toml("a = 0x1_0000_0000_0000_0000")
    assert from_json(f"[{(1 << 63) - 1}, {-(1 << 63)}, 1e300]") == [(1 << 63) - 1, -(1 << 63), 1e300]
