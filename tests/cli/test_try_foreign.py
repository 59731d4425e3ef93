"""``campo-onnx try`` runs code of others: whatever it raises, prints, closes or changes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

QUICK = ("--steps", 6, "--seconds", 1, "--threads", 1, "--runtime", "onnxruntime")
PARTS = """
import os, sys, torch
from pathlib import Path
def parts():
    return torch.nn.Linear(8, 4), torch.nn.functional.mse_loss, (torch.randn(8, 8), torch.randn(8, 4))
make = parts
"""
MODULE = """
class Mine(BaseException): pass
class Interrupt(KeyboardInterrupt): pass
class Silent(Exception):
    def __str__(self): raise RuntimeError("in __str__")
class Long(list):
    def __len__(self): raise RuntimeError("in __len__")
class Module(torch.nn.Linear):
    runs = 0
    def forward(self, x):
        Module.runs += 1
        if Module.runs > {number}: {statement}
        return super().forward(x)
def make(): return Module(8, 4), *parts()[1:]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "of_others.py"
    path.write_text(PARTS + text, encoding="utf-8")
    return path


@pytest.mark.parametrize("number", [0, 9], ids=["first", "tenth"])
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("sys.exit(0)", "line 18: SystemExit: 0"),
        ("raise Mine('gone')", "line 18: Mine: gone"),
        ("raise Interrupt", "line 18: Interrupt"),
        ("raise GeneratorExit", "line 18: GeneratorExit"),
        ("raise Silent", "line 18: Silent"),
        ("open('missing.txt')", "line 18: FileNotFoundError: "),
    ],
)
def test_what_forward_raises_is_told_as_its_own(program, tmp_path, capsys, number, statement, says):
    written(tmp_path, MODULE.format(number=number, statement=statement))
    assert program("try", "of_others.py:make", *QUICK, "-o", "t.json") == 2
    error = capsys.readouterr().err
    assert f"error: of_others.py, {says}" in error
    assert error.count("error: ") == 1
    assert not Path("t.json").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def make(): raise GeneratorExit", "of_others.py, line 7: GeneratorExit"),
        ("class Mine(BaseException): pass\ndef make(): raise Mine('gone')", "line 8: Mine: gone"),
        ("class Interrupt(KeyboardInterrupt): pass\ndef make(): raise Interrupt", "line 8: Interrupt"),
        ("sys.argv = ['x']; sys.stderr = None; sys.exit(0)", "line 7: SystemExit: 0"),
        (MODULE.format(number=0, statement="pass") + "def make(): return Long([1, 2, 3])", "in __len__"),
        ("def loss(*_): exit()\ndef make(): return parts()[0], loss, parts()[2]", "line 7: SystemExit"),
        (
            "class Module(torch.nn.Linear):\n    def __deepcopy__(self, memo): raise RuntimeError('no')\n"
            "def make(): return Module(8, 4), *parts()[1:]",
            "the module cannot be copied: RuntimeError: no",
        ),
    ],
)
def test_what_other_parts_raise_is_told_as_theirs(program, tmp_path, capsys, monkeypatch, text, says):
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # put back what the script replaces
    written(tmp_path, text)
    assert program("try", "of_others.py:make", *QUICK, "--json") == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert json.loads(printed.out)["error"]["exit_code"] == 2


def test_termination_is_not_an_error_of_the_script(program, tmp_path):
    written(tmp_path, f"import signal\nsignal.raise_signal({int(signal.SIGTERM)})")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert program("try", "of_others.py:make", *QUICK) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_files_go_where_the_command_was_given(program, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "t.json").write_text("mine", encoding="utf-8")
    written(tmp_path, "def make():\n    os.chdir('other')\n    return parts()")
    assert program("try", "of_others.py:make", *QUICK, "-o", "t.json", "--report", "r.html") == 0
    assert "Wrote t.json and r.html" in capsys.readouterr().out
    assert (other / "t.json").read_text(encoding="utf-8") == "mine"
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["kind"] == "campo-onnx trial"
    assert (tmp_path / "r.html").exists()


def test_a_file_that_the_script_writes_is_not_replaced(program, tmp_path, capsys):
    written(tmp_path, "def make():\n    Path('t.json').write_text('mine')\n    return parts()")
    assert program("try", "of_others.py:make", *QUICK, "-o", "t.json") == 2
    assert "t.json" in capsys.readouterr().err
    assert (tmp_path / "t.json").read_text(encoding="utf-8") == "mine"


TALKATIVE = """
import atexit, subprocess, threading, time
atexit.register(print, "at exit")
sys.argv = ["mine"]
def talk():
    while True:
        print("thread")
        time.sleep(0.001)
class Module(torch.nn.Linear):
    def forward(self, x):
        print("forward")
        return super().forward(x)
def make():
    threading.Thread(target=talk, daemon=True).start()
    subprocess.run([sys.executable, "-c", "print('child')"])
    os.write(1, b"descriptor\\n")
    return Module(8, 4), *parts()[1:]
"""


@pytest.mark.parametrize(
    "last", ["", "sys.stdout = None", "sys.stdout = open(os.devnull, 'w')", "os.close(1)"]
)
def test_stdout_has_the_document_alone(tmp_path, last):
    written(
        tmp_path,
        TALKATIVE.replace("    return Module(", f"    {last}\n    return Module(") if last else TALKATIVE,
    )
    command = [sys.executable, "-m", "campo_onnx", "try", "of_others.py:make", *map(str, QUICK), "--json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["kind"] == "campo-onnx trial"
    if not last:
        assert all(word in ran.stderr for word in ("at exit", "thread", "forward", "child", "descriptor"))
