"""README.md and docs/ tell the truth: code runs or compiles, commands parse, files and links exist.

- A Python block that defines or imports all it uses is run, in a folder where ``step.onnx`` is the graph
  in ``examples/``. One that uses names of the reader's own is compiled, and its imports are checked.
- A block that is complete but cannot run here has the line ``<!-- not run: WHY -->`` above it.
- Commands are lines that start with ``$`` or ``make`` in any other block, and code in a sentence that
  starts with ``campo-onnx``.
"""

import ast
import builtins
import importlib
import inspect
import itertools
import re
import runpy
import shlex
import shutil
import subprocess
import symtable
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer

from campo_onnx.calibrate.calibration import Calibration, OpEntry, Scores
from campo_onnx.calibrate.in_step import InStep
from campo_onnx.calibrate.op_model import OpModel, TimeModel
from campo_onnx.hardware.hardware import Efficiency, Hardware
from campo_onnx.runtime.machine import Machine
from campo_onnx.targets.cast_model import CastModel, Knee
from tests.cli.conftest import program as program

ROOT = Path(__file__).parent.parent
COMMANDS = ROOT / "docs" / "commands.md"
WALK = ROOT / "docs" / "first-ten-minutes.md"  # shows mistakes too; tests/test_first_minutes.py
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path not in (COMMANDS, WALK)),
]
FRAMEWORKS = {"torch", "jax", "onnxscript"}
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    why_not_run: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that a page shows; `complete` unless it stands in a sentence."""

    where: str
    words: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.words)}"


def blocks(*languages: str) -> list[Block]:
    all_blocks = [
        Block(
            page=page,
            line=text.count("\n", 0, match.start("text")),
            language=match["language"],
            text=match["text"],
            why_not_run=match["why"],
        )
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in BLOCK.finditer(text)
    ]
    return [block for block in all_blocks if not languages or block.language in languages]


def commands() -> Iterator[Command]:
    for block in blocks():
        if block.language not in ("python", "toml", "yaml"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith(("$ ", "make ")):
                    words = tuple(shlex.split(line.removeprefix("$ "), comments=True))
                    yield Command(where=str(block), words=words, complete=True)
    for page in PAGES:
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for code in re.findall(r"`(campo-onnx [^`]+)`", prose):
            yield Command(where=page.name, words=tuple(code.split()), complete=False)


@cache
def application() -> dict[str, typer.core.TyperCommand]:
    """Give every command by its name."""
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    package = script.module.partition(".")[0]  # whose first file imports nothing yet
    group = typer.main.get_command(importlib.import_module(f"{package}.main").app)
    return {name: group.get_command(None, name) for name in group.commands}


def free_names(code: str, title: str) -> set[str]:
    """Names that a block uses and neither defines nor imports."""
    pending, used, bound = [symtable.symtable(code, title, "exec")], set(), set()
    while pending:
        table = pending.pop()
        pending.extend(table.get_children())
        for symbol in table.get_symbols():
            if table.get_type() == "module" and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
            elif symbol.is_global() or table.get_type() == "module":
                used.add(symbol.get_name())
    return used - bound - set(dir(builtins))


def test_blocks_and_commands_are_found():
    assert len(blocks("python")) > 5
    assert len(blocks("toml")) > 2
    assert sum(command.words[0] == "campo-onnx" for command in commands()) > 20


def test_a_mark_says_why_a_block_is_not_run():
    page = "<!-- not run: it measures -->\n```python\na = 1\n```\n\n```python\nb = 2\n```\n"
    assert [match["why"] for match in BLOCK.finditer(page)] == ["it measures", None]


def test_a_block_says_what_it_lacks():
    assert free_names("import a\nb = a.c(d)\ndef e(f): return f + g\nprint(b)", "x") == {"d", "g"}


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks(block, tmp_path, monkeypatch):
    tree = ast.parse(block.text, str(block))
    check_calls(tree, ours_in(tree))
    if block.why_not_run or free_names(block.text, str(block)):
        return
    shutil.copy(ROOT / "examples" / "bert_layer.onnx", tmp_path / "step.onnx")
    monkeypatch.chdir(tmp_path)
    run(tree, str(block))


ANSWERS = re.compile(r"^\$ (?P<command>campo-onnx [^\n]+)\n(?P<shown>(?:(?!\$ )[^\n]+\n)+)", re.M)


@pytest.mark.parametrize(
    "block", [b for b in blocks("console") if ANSWERS.search(b.text) and not b.why_not_run], ids=str
)
def test_commands_answer_what_the_page_shows(block, program, capsys):
    shutil.copy(ROOT / "examples" / "bert_layer.onnx", "bert_layer.onnx")
    for match in ANSWERS.finditer(block.text):
        assert program(*shlex.split(match["command"])[1:]) == 0
        answer = capsys.readouterr().out.splitlines()
        assert set(match["shown"].splitlines()) - {"..."} <= set(answer)


def test_python_prints_what_the_page_shows(tmp_path):
    """A block of Python with a block of text right behind it: what it prints, lines broken anywhere."""
    pytest.importorskip("torch")
    shown = [
        (code, text)
        for code, text in itertools.pairwise(blocks())
        if (code.page, code.language, text.language) == (text.page, "python", "text")
    ]
    assert shown
    for code, text in shown:
        command = [sys.executable, "-c", code.text]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == text.text.split(), code


def test_the_tutorial_is_one_program(tmp_path, monkeypatch):
    pieces = [block.text for block in blocks("python") if block.page.name == "tutorial.md"]
    assert len(pieces) > 3
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run(ast.parse("\n".join(pieces)), "tutorial.md")
    assert (tmp_path / "tutorial.onnx").is_file()


def run(tree, title):
    try:
        exec(compile(tree, title, "exec"), {"__name__": "__main__"})
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in FRAMEWORKS:
            raise
        pytest.skip(f"{error.name} is not installed")


def ours_in(tree):
    """Imports of a block from this package, by the name they have there."""
    objects = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "campo_onnx":
            for alias in node.names:
                assert hasattr(module_of(node.module), alias.name), f"{node.module} has no {alias.name}"
                objects[alias.asname or alias.name] = getattr(module_of(node.module), alias.name)
    return objects


def check_calls(tree, ours):
    """Raise TypeError for a keyword that a function of ours does not take."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours:
            keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
            inspect.signature(ours[node.func.id]).bind_partial(**keywords)


def test_a_wrong_keyword_is_seen():
    tree = ast.parse("from campo_onnx import Options\nOptions(devise=gpu)")
    with pytest.raises(TypeError, match="devise"):
        check_calls(tree, ours_in(tree))


def module_of(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in FRAMEWORKS:
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_blocks(block):
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("command", [c for c in commands() if c.words[0] == "campo-onnx"], ids=str)
def test_commands_of_ours_parse(command):
    by_name = application()
    name, *arguments = command.words[1:]
    if name.startswith("-"):
        return
    assert name in by_name, f"no command is called {name}"
    options = {text for param in by_name[name].params for text in (*param.opts, *param.secondary_opts)}
    for word in arguments:
        if word.startswith("-"):
            assert word.partition("=")[0] in {*options, "-h", "--help"}, f"{name} has no option {word}"
    if command.complete:
        by_name[name].make_context(name, arguments)  # complains, and runs nothing


@pytest.mark.parametrize("command", [c for c in commands() if c.words[0] in ("make", "python")], ids=str)
def test_targets_and_scripts_exist(command):
    program_name, *arguments = command.words
    if program_name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert set(arguments) <= set(targets)
    else:
        assert (ROOT / arguments[0]).is_file()


def test_the_page_of_devices_names_every_key():
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    keys = set()
    for file in (ROOT / "campo_onnx" / "hardware" / "data").iterdir():
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        groups = table.values() if file.name == "assumptions.toml" else [table]
        keys |= {key for group in groups for key in group}
    for value in (
        Calibration,
        OpEntry,
        Scores,
        OpModel,
        TimeModel,
        CastModel,
        Knee,
        InStep,
        Machine,
        Hardware,
        Efficiency,
    ):
        keys |= {field.name for field in fields(value)}
    assert {key for key in keys if f"`{key}`" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_page_of_commands_is_up_to_date():
    written = COMMANDS.read_text(encoding="utf-8")
    make = runpy.run_path(str(ROOT / "docs" / "make_commands.py"))
    if make["stamp"]() in written:
        assert written == make["page"](), "python docs/make_commands.py writes it anew"
        return
    # Another Typer words the page differently; what it has to say is the same.
    for name, command in application().items():
        assert f"`campo-onnx {name}`" in written
        for param in command.params:
            assert all(option in written for option in param.opts if option.startswith("--")), param.opts
