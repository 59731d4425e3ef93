"""docs/architecture.md is true: its rooms, its paths, and what it says that adding something touches."""

import re
from pathlib import Path

import pytest

from tests.test_layering import ROOMS, arrows, imports_by_module

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| an? [^|]+ \| [^|]+ \| `(\w+)`: ([^|]+) \|$", re.M)
EXAMPLES = {name: set(re.findall(r"`([^`]+)`", files)) for name, files in ROW.findall(PAGE)}

# Exporters and lowering write operators, which is not part of adding one.
WRITERS = tuple(ROOT / "campo_onnx" / room for room in ("builder", "lowering", "export", "training"))


def mentions(name: str) -> set[str]:
    """Files of the package that name something, by path within the package."""
    word = re.compile(rf"\b{name}\b")
    paths = [path for path in (ROOT / "campo_onnx").rglob("*") if path.suffix in (".py", ".csv", ".toml")]
    return {
        path.relative_to(ROOT / "campo_onnx").as_posix()
        for path in paths
        if not any(path.is_relative_to(room) for room in WRITERS)
        and (path.stem == name or word.search(path.read_text(encoding="utf-8")))
    }


def test_the_rooms_of_the_page_are_those_that_exist_in_the_order_that_is_enforced() -> None:
    table = PAGE.partition("\n## Rooms\n")[2].partition("\n\nA room imports")[0]
    named = [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"^\| (.+?) \| ", table, re.M)]
    rooms = [room for cell in named for room in re.findall(r"`([a-z_]+)(?:/|\.py)?`", f"{cell}")]
    assert [room.removeprefix("campo_onnx.") for room in ROOMS] == rooms


def test_rooms_and_floors_are_counted() -> None:
    pairs = arrows(imports_by_module())
    floors: dict[str, int] = {}
    for room in ROOMS:  # those that a room imports from come before it
        floors[room] = 1 + max((floors[below] for above, below in pairs if above == room), default=0)
    assert re.findall(r"(\d+) rooms on (\d+) floors", PAGE) == [(f"{len(ROOMS)}", f"{max(floors.values())}")]


def test_no_more_rooms_import_from_each_other_than_the_page_says() -> None:
    (most,) = re.findall(r"at most (\d+) pairs", PAGE)
    assert len(arrows(imports_by_module())) <= int(most)


def test_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`([\w/]+/[\w]+\.(?:py|csv|toml))`", PAGE))
    homes = (ROOT, ROOT / "campo_onnx")
    assert not [name for name in sorted(named) if not any((home / name).exists() for home in homes)]


def test_the_table_has_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_named_where_the_page_says_and_nowhere_else(name: str) -> None:
    assert mentions(name) == EXAMPLES[name]
