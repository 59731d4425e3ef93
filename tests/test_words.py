"""Code, help and documents use the field's words, not a dialect of ours."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIALECT = {  # and what the field says
    "maker": "producer",
    "makers": "producers",
    "twin": "low version",
    "twins": "low versions",
    "stray": "node on another provider",
    "strays": "nodes on another provider",
    "contender": "graph",
    "contenders": "graphs",
    "lineup": "loaded graphs",
    "judge": "check, compare or predict",
    "judged": "checked, compared or predicted",
    "judgement": "result",
    "carry out": "execute or apply",
    "carried out": "executed or applied",
}
SOURCES = sorted(path for folder in ("campo_onnx", "cli") for path in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines or uses."""
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def dialect_in(text: str) -> set[str]:
    return {word for word in DIALECT if re.search(rf"\b{word}\b", text, re.IGNORECASE)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_in_code(path: Path) -> None:
    names = " ; ".join(identifiers(ast.parse(path.read_text(encoding="utf-8"))))
    found = dialect_in(names.replace("_", " "))
    assert not found, {word: f"say {DIALECT[word]}" for word in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_documents_and_help(page: Path) -> None:
    found = dialect_in(page.read_text(encoding="utf-8"))
    assert not found, {word: f"say {DIALECT[word]}" for word in found}


def test_both_can_fail() -> None:
    assert dialect_in("The maker of a tensor") == {"maker"}
    (name,) = set(identifiers(ast.parse("carry_out(1)")))
    assert dialect_in(name.replace("_", " ")) == {"carry out"}
