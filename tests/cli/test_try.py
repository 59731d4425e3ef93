"""``campo-onnx try``: scripts of users, good and bad."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from campo_onnx.integrations.trial.script import split_target

GOOD = """
import torch
print("hello from the script")
from beside import WIDTH

def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 4)
    return model, torch.nn.functional.cross_entropy, (torch.randn(8, WIDTH), torch.randint(0, 4, (8,)))

def two():
    return 1, 2

def text():
    return "abc"

def broken():
    return {}["nothing"]

def leaves():
    raise SystemExit(3)

number = 4
"""
QUICK = ("--steps", 6, "--seconds", 1, "--threads", 1, "--runtime", "onnxruntime")


@pytest.fixture
def script(tmp_path, program) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 16\n", encoding="utf-8")
    path = tmp_path / "good_script.py"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_a_step_is_tried(script, program, capsys):
    pytest.importorskip("torch")
    assert program("try", "good_script.py:make", *QUICK, "--report", "r.html", "-o", "t.json") == 0
    printed = capsys.readouterr()
    for word in ("torch autocast", "ours, FP32", "gradients off by", "Predicted elsewhere", "h200", "Wrote"):
        assert word in printed.out
    assert "hello from the script" in printed.err
    assert "hello from the script" not in printed.out
    assert "good_script.py:make" in Path("r.html").read_text(encoding="utf-8")
    assert json.loads(Path("t.json").read_text(encoding="utf-8"))["kind"] == "campo-onnx trial"
    assert not list(script.parent.glob("*.onnx"))


def test_the_result_is_one_document(script, program, capsys):
    pytest.importorskip("torch")
    assert program("try", script, "--json") == 2
    assert "SCRIPT.py:FUNCTION" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert program("try", f"{script}:make", *QUICK, "--json") == 0
    assert json.loads(capsys.readouterr().out)["format_version"] == 1
    assert program("try", f"{script}:make", *QUICK, "--format", "csv") == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("name,step_us,speedup,verdict,gradient_error")
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("two", "two() of good_script.py returns 2 values, not 3"),
        ("text", "returns a value of type str, not 3 values"),
        ("broken", "good_script.py, line 18: KeyError: 'nothing'"),
        ("leaves", "good_script.py, line 21: SystemExit: 3"),
        ("mak", "does not define a function 'mak'. Did you mean 'make'?"),
        ("number", "does not define a function 'number'"),
    ],
)
def test_what_a_script_does_wrong_is_told(script, program, capsys, function, says):
    pytest.importorskip("torch")
    assert program("try", f"good_script.py:{function}", *QUICK) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [("def make(:\n", "line 1: SyntaxError"), ("import nothing_of_the_kind\n", "ModuleNotFoundError")],
)
def test_a_script_that_does_not_run(program, tmp_path, capsys, text, says):
    pytest.importorskip("torch")
    (tmp_path / "bad_script.py").write_text(text, encoding="utf-8")
    assert program("try", "bad_script.py:make") == 2
    assert says in capsys.readouterr().err


def test_bad_requests_end_before_the_script_runs(script, program, capsys):
    pytest.importorskip("torch")
    script.write_text("raise RuntimeError('it ran')\n", encoding="utf-8")
    Path("there.json").write_text("{}", encoding="utf-8")
    for words, says in (
        (("missing.py:make",), "does not exist"),
        (("make",), "'make' is not SCRIPT.py:FUNCTION"),
        (("good_script.py:a b",), "is not SCRIPT.py:FUNCTION"),
        ((f"{script}:make", "--runtime", "toaster"), "unknown runtime 'toaster'"),
        ((f"{script}:make", "--report", "r.txt"), "a report is an HTML file"),
        ((f"{script}:make", "-o", "there.json"), "exists"),
        ((f"{script}:make", "-o", script, "--force"), "the same file"),
        ((f"{script}:make", "--json", "--format", "csv"), "contradict"),
    ):
        assert program("try", *words) == 2
        error = capsys.readouterr().err
        assert says in error
        assert "it ran" not in error
    assert Path("there.json").read_text(encoding="utf-8") == "{}"


def test_without_torch_one_message_says_how_to_get_it(script, program, capsys, monkeypatch):
    monkeypatch.setattr("campo_onnx.integrations.trial.script.find_spec", lambda name: None)
    assert program("try", f"{script}:make") == 2
    assert "pip install 'campo-onnx[torch]'" in capsys.readouterr().err


def test_asking_for_help_loads_no_torch():
    modules = "campo_onnx.integrations.trial.script, campo_onnx_cli.main"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_folders_with_colons(tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "x.py").write_text("", encoding="utf-8")
    assert split_target(f"{folder}/x.py:make") == (folder / "x.py", "make")
