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
FOLDERS = ("campo_onnx", "cli", "benchmarks", "tests", "scripts", "examples", "docs")
ALL_CODE = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
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
    assert not dialect_at({path: " ; ".join(words).replace("_", " ") for path, words in names.items()})


RELATIVE = re.compile(r'^\s*"""(What|Which|How|Where)\b.*', re.MULTILINE)
WHAT = re.compile(r'^\s*"""What\b.*', re.MULTILINE)


def docstrings_like(pattern: re.Pattern[str], paths: list[Path]) -> dict[Path, str]:
    """By file, the first docstring that matches; those below constants, too."""
    matches = {path: pattern.search(path.read_text(encoding="utf-8")) for path in paths}
    return {path: match[0].strip() for path, match in matches.items() if match}


def test_docstrings_begin_with_a_noun_or_a_verb(tmp_path: Path) -> None:
    assert not docstrings_like(RELATIVE, SOURCES)
    assert not docstrings_like(WHAT, ALL_CODE)
    path = tmp_path / "a.py"
    path.write_text('def f():\n    """What one training step did."""')
    for pattern in (RELATIVE, WHAT):
        assert docstrings_like(pattern, [path]) == {path: '"""What one training step did."""'}


PARTICIPLES = ("found", "given", "known", "made")
FURTHER = ("kept", "asked")  # in the program alone


def bound(tree: ast.AST) -> set[str]:
    """Names of variables, parameters and inner functions. Fields of classes do not count."""
    nodes = [*ast.walk(tree)]
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    fields = {s.target for c in classes for s in c.body if isinstance(s, ast.AnnAssign)}
    stored = {n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    inner = {n.name for f in functions for n in ast.walk(f) if isinstance(n, ast.FunctionDef) and n is not f}
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in stored - fields} | inner | parameters


def participles(paths: list[Path], words: tuple[str, ...] = PARTICIPLES) -> dict[Path, set[str]]:
    """By file, the participles that it calls variables by."""
    may_bind = re.compile(rf"\b({'|'.join(words)})\b(?!\.| (?!in\b)\w)")  # not as prose has them
    candidates = [path for path in paths if may_bind.search(path.read_text(encoding="utf-8"))]
    names = {path: bound(tree_of(path)).intersection(words) for path in candidates}
    return {path: bad for path, bad in names.items() if bad}


def test_variables_are_nouns(tmp_path: Path) -> None:
    assert not participles(ALL_CODE)
    assert not participles(SOURCES, FURTHER)
    path = tmp_path / "a.py"
    path.write_text("class C:\n    found: int\n\ndef f(known, *, b=[made for made in ()]):\n    kept = 1\n")
    assert participles([path]) == {path: {"known", "made"}}
    assert participles([path], FURTHER) == {path: {"kept"}}


def test_documents_and_help() -> None:
    assert not dialect_at({page: page.read_text(encoding="utf-8") for page in PAGES})


def test_both_can_fail() -> None:
    assert dialect_in("The Maker of a tensor's twins") == {"maker", "twins"}
    assert dialect_at({ROOT / "a.md": "a stray"}) == ["a.md: stray, say node on another provider"]
    (name,) = set(identifiers(ast.parse("carry_out(1)")))
    assert dialect_in(name.replace("_", " ")) == {"carry out"}
