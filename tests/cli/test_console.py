"""Text that strangers wrote is shown, never obeyed: by terminals, by tables, by GitHub."""

import json
import os
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import onnx
import pytest

from cli.render import console

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
NASTY = "n\n::error::x\r::stop-commands::y\x1b[2J\u202e[red]z[/red]##[error]\u2028\x85"


def assert_harmless(text):
    raw = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert raw <= {"\n"}
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
    assert "##[" not in text


@pytest.mark.parametrize(
    "show", [console.print_line, console.print_note, console.print_warning, console.print_error]
)
@pytest.mark.parametrize("text", [NASTY, "::error::first", "x" * 109 + " ::error::wrapped", "\ud800"])
def test_messages_are_harmless(show, text, capsys):
    show(text)
    printed = capsys.readouterr()
    assert_harmless(printed.out + printed.err)
    assert printed.out + printed.err


def test_a_bug_is_harmless(capsys):
    console.print_bug(ValueError(NASTY), "X")
    assert_harmless(capsys.readouterr().err)


def test_what_is_harmless_stays_as_it_is(capsys):
    text = "aten::mm über /model/層 [4, 8] 100 % :smile:"
    console.print_line(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_no_renderer_escapes_on_its_own():
    for path in Path(console.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert ("rich.markup" in text) == (path.name == "console.py"), path


@pytest.fixture
def nasty_model(tmp_path):
    model = onnx.load(MLP)
    for number, node in enumerate(model.graph.node):
        node.name = f"{NASTY} {number}"
    model.graph.node.add(
        op_type=NASTY, domain=NASTY, name="custom", input=[model.graph.output[0].name], output=["o"]
    )
    model.opset_import.add(domain=NASTY, version=1)
    path = tmp_path / f"{NASTY.replace('/', '')}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("github", [False, True])
def test_every_command_is_harmless(nasty_model, program, monkeypatch, capsys, github):
    if github:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    out, plan = f"{NASTY.replace('/', '')}.mixed.onnx", "plan.json"
    assert program("optimize", nasty_model, "-o", out, "--device", "v100", "--plan", plan) == 0
    assert program("compare", nasty_model, "--device", "v100") == 0
    assert program("explain", plan) == 0
    assert program("explain", plan, f"{NASTY} 3") == 0
    assert program("explain", plan, "--json") == 0
    assert program("optimize", nasty_model, "-o", out, "--device", "v100") == 2
    printed = capsys.readouterr()
    assert_harmless(printed.out + printed.err)


def test_a_check_annotates_and_nothing_else(nasty_model, program, monkeypatch, capsys):
    assert program("optimize", nasty_model, "-o", "mixed.onnx", "--device", "v100") == 0
    broken = onnx.load("mixed.onnx")
    broken.graph.node[0].name = NASTY
    broken.graph.output.add().CopyFrom(broken.graph.output[0])
    broken.graph.output[-1].name = broken.graph.node[0].output[0]
    onnx.save(broken, "mixed.onnx")
    capsys.readouterr()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert program("check", "mixed.onnx", "--against", nasty_model, "--device", "v100") == 9
    lines = capsys.readouterr().out.split("\n")
    starts = tuple(f"::{level} file=mixed.onnx,title=campo-onnx " for level in ("error", "warning"))
    ours = [line for line in lines if line.startswith(starts)]
    assert ours
    assert_harmless("\n".join(line for line in lines if line not in ours))
    for line in ours:
        assert_harmless(line[1:])


def test_a_document_is_the_same_document(capsys):
    console.print_json(json.dumps({"name": NASTY}))
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"name": NASTY}
    assert_harmless(printed)


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices there")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("devices >/dev/full", 2, "error: the result cannot be printed: No space left on device.\n"),
        ("--help >/dev/full", 2, "error: the result cannot be printed: No space left on device.\n"),
        ("devices >&-", 0, ""),
        ("devices 2>&- >/dev/full", 2, ""),
        ("devices 2>/dev/full", 0, ""),
        ("no-such-command 2>/dev/full", 2, ""),
        (
            "explain no-such-plan --json >/dev/full",
            2,
            "error: no-such-plan does not exist. Check its path.\n",
        ),
    ],
)
def test_streams_that_are_full_or_closed(words, code, message):
    command = f"{sys.executable} -m campo_onnx {words}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
@pytest.mark.parametrize("word", ["devices", "--help"])
def test_a_closed_pipe_ends_quietly(word):
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "campo_onnx", word]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_ctrl_c_before_the_program_is_there():
    """While its modules are imported, here the first of them."""
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "from cli.start import run\n"
        "sys.meta_path.insert(0, Finder())\n"
        "run()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
