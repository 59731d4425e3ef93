"""Code, help and documents use the field's words, not a dialect of ours."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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


@cache
def tree_of(path: Path) -> ast.Module:
    """A file, parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines or uses."""
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


ANY = re.compile(rf"\b({'|'.join(DIALECT)})\b", re.IGNORECASE)


def dialect_in(text: str) -> set[str]:
    return {word.lower() for word in ANY.findall(text)}


def dialect_at(texts: dict[Path, str]) -> list[str]:
    """Where words of ours stand, and what to say instead."""
    return [
        f"{path.relative_to(ROOT)}: {word}, say {DIALECT[word]}"
        for path, text in texts.items()
        for word in sorted(dialect_in(text))
    ]


def test_names_in_code() -> None:
    assert SOURCES
    names = {path: set(identifiers(tree_of(path))) for path in SOURCES}
    assert not dialect_at({path: " ; ".join(found).replace("_", " ") for path, found in names.items()})


RELATIVE = re.compile(r'^\s*"""(What|Which|How|Where)\b.*', re.MULTILINE)


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = {path: RELATIVE.search(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert not [f"{path.relative_to(ROOT)}: {match[0].strip()}" for path, match in found.items() if match]
    assert RELATIVE.search('    """What one training step did."""')


PARTICIPLES = {"found", "given", "known", "made", "kept", "asked"}


def bound(tree: ast.AST) -> set[str]:
    """Variables and parameters of functions."""
    stored = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda))
    parameters = (n.arg for f in functions for n in ast.walk(f.args) if isinstance(n, ast.arg))
    return {*stored, *parameters}


def participles(path: Path) -> set[str]:
    """Participles that a file calls variables by; fields of its classes are no variables."""
    functions = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef))
    return PARTICIPLES.intersection(name for function in functions for name in bound(function))


def test_variables_are_nouns(tmp_path: Path) -> None:
    assert not [f"{path.relative_to(ROOT)}: {name}" for path in SOURCES for name in participles(path)]
    (tmp_path / "a.py").write_text("def f(known, *, b=[made for made in ()]):\n    kept = 1")
    assert participles(tmp_path / "a.py") == {"known", "made", "kept"}


def test_documents_and_help() -> None:
    assert not dialect_at({page: page.read_text(encoding="utf-8") for page in PAGES})


def test_both_can_fail() -> None:
    assert dialect_in("The Maker of a tensor's twins") == {"maker", "twins"}
    assert dialect_at({ROOT / "a.md": "a stray"}) == ["a.md: stray, say node on another provider"]
    (name,) = set(identifiers(ast.parse("carry_out(1)")))
    assert dialect_in(name.replace("_", " ")) == {"carry out"}
