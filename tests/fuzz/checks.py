"""Violations to look for: a bug of ours, a hang, a file lost or left behind, a stranger's words obeyed."""

import hashlib
import re
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import onnx

from tests.fuzz.cases import OUTPUTS, Case
from tests.fuzz.sandbox import Outcome

DOCUMENTED = frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9})
_STORE = re.compile(
    r"(store|new|cache/campo-onnx/timings)\.sqlite(-wal|-shm|-journal|\.damaged-\d+(-wal|-shm)?)?"
)
# ONNX Runtime's, in a process that begins anew; emulated steps and choices of a runtime, kept one by one.
_CACHED = ("cache/Microsoft/", "cache/campo-onnx/emulated-steps/", "cache/campo-onnx/plans/")
_VERDICTS = "results.jsonl"  # those on one graph stay when another one is refused


def digests(folder: Path) -> dict[str, str]:
    """Digest of every file of a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def violations(case: Case, outcome: Outcome, before: dict[str, str], folder: Path) -> list[str]:
    """Say what is wrong with an outcome.

    Parameters
    ----------
    case
        What was run.
    outcome
        What came of it.
    before
        What the files held.
    folder
        Where they are.
    """
    problems = []
    if outcome.code is None:
        problems.append("hang")
    elif outcome.code not in DOCUMENTED:
        problems.append(f"exit code {outcome.code}")
    if "bug:" in outcome.err or "Traceback" in outcome.err:
        problems.append("a bug of ours")
    errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
    if outcome.code in DOCUMENTED - {0} and len(errors) != 1 and "bench" not in case.command:
        problems.append(f"{len(errors)} messages")
    problems += _of_files(case, outcome, before, folder)
    problems += _of_print(case, outcome)
    writes = case.words[0] in ("optimize", "apply", "keep") and "--dry-run" not in case.words
    if outcome.code == 0 and writes:
        source = case.words[1 if case.words[0] == "optimize" else 2]
        problems += _of_model(folder / source, folder / "out.onnx")
    return problems


def _of_files(case: Case, outcome: Outcome, before: dict[str, str], folder: Path) -> list[str]:
    after = digests(folder)
    problems = [f"{name} is lost" for name in before if name not in after and not _STORE.fullmatch(name)]
    problems += [
        f"{name} was changed"
        for name in before
        if after.get(name, before[name]) != before[name]
        and not _STORE.fullmatch(name)
        and not (name == _VERDICTS and (case.file != _VERDICTS or outcome.code in (0, 9)))
    ]
    new = [name for name in after if name not in before and not _STORE.fullmatch(name)]
    new = [name for name in new if not name.startswith(_CACHED)]
    # A check that fails has a report, and so has a benchmark of graphs that do not run.
    kept = OUTPUTS if outcome.code in (0, 9) else _OF_FAILURES
    problems += [f"{name} is left" for name in new if not kept.fullmatch(name)]
    page = folder / "out.html"
    return problems + (_of_page(page.read_text(encoding="utf-8")) if page.exists() else [])


_OF_FAILURES = re.compile(r"out\.(xml|json|html)|new\.jsonl")


class _Elements(HTMLParser):
    """Elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.wrong += [f"<{tag} {name}>" for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        raw = {c for c in data if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"}
        self.wrong += [f"{sorted(raw)!r} raw"] if raw else []


def _of_page(text: str) -> list[str]:
    """Whether what strangers wrote became a part of a page, other than its text."""
    elements = _Elements()
    elements.feed(text)
    elements.close()
    strange = elements.tags.keys() & {"iframe", "object", "embed", "base", "form"}
    if elements.tags["script"] > 2 or elements.tags["style"] != 1 or not text.rstrip().endswith("</html>"):
        strange |= {"a script or a style that is not ours"}
    return [f"the page holds {what}" for what in (*sorted(strange), *elements.wrong[:3])]


def _of_print(case: Case, outcome: Outcome) -> list[str]:
    problems = []
    for text in (outcome.out, outcome.err):
        raw = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"}
        if raw:
            problems.append(f"prints {sorted(raw)!r} raw")
    lines = [line for line in (outcome.out + outcome.err).splitlines() if line.lstrip().startswith("::")]
    ours = re.compile(r"::(error|warning) file=[^,:]*,title=campo-onnx [\w %]+::.*")
    wanted = "--github" in case.command
    problems += [
        f"prints the command {line[:40]!r}" for line in lines if not (wanted and ours.fullmatch(line))
    ]
    if "##[" in outcome.out + outcome.err:
        problems.append("prints ##[")
    return problems


def _of_model(source: Path, written: Path) -> list[str]:
    if not written.is_file():
        return ["no output"]
    first, second = (onnx.load(path, load_external_data=False) for path in (source, written))

    def interface(model: onnx.ModelProto) -> list[tuple[str, int]]:
        values = (*model.graph.input, *model.graph.output)
        return [(value.name, value.type.tensor_type.elem_type) for value in values]

    return [] if interface(first) == interface(second) else ["another interface"]
