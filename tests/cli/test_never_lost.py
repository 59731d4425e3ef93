"""Outputs that would destroy what a command keeps, reads or prints; files and folders that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import DIMS

DATA = Path(__file__).parent.parent / "data"
MLP = DATA / "mlp.onnx"
LONG = "x" * 5000


@pytest.fixture
def folder(program, tmp_path):
    """A step, its plan, and what was made of it."""
    (tmp_path / "step.onnx").write_bytes(MLP.read_bytes())
    assert (
        program("optimize", "step.onnx", "-o", "mixed.onnx", "--device", "v100", "--plan", "plan.json") == 0
    )
    return tmp_path


CHECK = ("check", "mixed.onnx", "--against", "step.onnx", "--device", "v100", "--min-speedup", "0")


@pytest.mark.parametrize("is_there", [True, False])
def test_kept_verdicts_are_no_report(folder, program, capsys, is_there):
    if is_there:
        assert program(*CHECK, "--results", "kept.jsonl") == 0
    before = Path("kept.jsonl").read_bytes() if is_there else None
    assert program(*CHECK, "--results", "kept.jsonl", "--junit", "./kept.jsonl", "--force") == 2
    assert "--junit and --results are the same file" in capsys.readouterr().err
    assert (Path("kept.jsonl").read_bytes() if Path("kept.jsonl").exists() else None) == before


def test_junit_replaces_reports_of_its_own_and_nothing_else(folder, program, capsys):
    theirs = '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="pytest tests"></testsuites>\n'
    for name, text in (("app.py", "print()\n"), ("theirs.xml", theirs), ("empty.xml", "")):
        Path(name).write_text(text)
        assert program(*CHECK, "--junit", name) == 2
        assert f"the output {name} exists" in capsys.readouterr().err
        assert Path(name).read_text() == text
    assert program(*CHECK, "--junit", "theirs.xml", "--force") == 0
    assert program(*CHECK, "--junit", "theirs.xml") == 0


@pytest.mark.parametrize(
    "command",
    [
        "profile step.onnx -o x.sqlite --store x.sqlite --device cpu --steps 1",
        "calibrate -o x.json --store x.json --device cpu --quick --ops Relu --shapes 9",
        "optimize step.onnx -o o.onnx --plan x.json --store x.json --device v100",
        "optimize step.onnx -o o.onnx --report x.html --store x.html --device v100",
        "compare step.onnx --report x.html --store x.html --device v100",
        "bench step.onnx --device cpu --steps 6 -o x.svg --plot x.svg",
        "explain plan.json --report plan.html",
    ],
)
def test_one_file_for_two_things(folder, program, capsys, command):
    """Neither is there yet: the second would replace the first."""
    if "explain" in command:
        os.symlink("plan.json", "plan.html")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert program(*command.split(), "--force") == 2
    assert "are the same file" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


RUN = "from importlib.metadata import entry_points as e; e(name='campo-onnx')['campo-onnx'].load()()"


@pytest.mark.skipif(sys.platform == "win32", reason="has no /dev/stdout")
@pytest.mark.parametrize("output", ["/dev/stdout", "printed.txt"])
def test_the_file_that_is_printed_to_is_no_output(folder, output):
    words = ("optimize", "step.onnx", "-o", output, "--force", "--device", "v100")
    with (folder / "printed.txt").open("w") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *words],
            cwd=folder,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert f"the output {output} is where standard output goes" in done.stderr
    assert (folder / "printed.txt").read_text() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="cannot remove the folder it works in")
def test_a_working_folder_that_was_removed(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r})\n{RUN}"
    for words in (("check", MLP, "--against", MLP), ("optimize", MLP, "--device", "v100"), ("devices",)):
        gone.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *map(str, words)],
            cwd=gone,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: the current folder cannot be used: No such file or directory.")


# --- names that no file has, and files that are none ---


NAMES = [
    "optimize {}",
    "optimize step.onnx -o {}",
    "optimize step.onnx --plan {}",
    "optimize step.onnx --report {}.html",
    "optimize step.onnx --lists {}",
    "optimize step.onnx --lists {}.toml",
    "optimize step.onnx --device {}.json",
    "optimize step.onnx --device v100 --inputs {}.npz",
    "optimize step.onnx --device v100 --costs model --profile {}",
    "optimize step.onnx --device cpu --costs measure --store {}",
    "compare {}",
    "compare step.onnx --device v100 --plot {}.svg",
    "compare step.onnx --device v100 --drift planned --inputs {}",
    "explain {}",
    "profile {} -o x.parquet",
    "profile step.onnx -o {}",
    "bench {}",
    "bench step.onnx --device cpu --inputs {}",
    "calibrate --from-store {}",
    "calibrate -o {}",
    "check {} --against step.onnx",
    "check mixed.onnx --against {}",
    "check mixed.onnx --against step.onnx --baseline {}",
    "check mixed.onnx --against step.onnx --inputs {}",
    "check mixed.onnx --against step.onnx --junit {}",
    "check mixed.onnx --against step.onnx --results {}",
    "check --policy {}",
    "demo --folder {}",
]


@pytest.mark.parametrize("command", NAMES)
def test_a_name_that_is_too_long(folder, program, capsys, command):
    assert program(*command.format(LONG).split()) in (2, 5)
    assert capsys.readouterr().err.count("error:") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('mixed = "a\\u0000b"', "mixed holds a null character"),
        ('inputs = ["a\\u0000b"]', "inputs holds a null character"),
        ('baseline = "a\\u0000b"', "baseline holds a null character"),
        (f'mixed = "{LONG}"', "File name too long"),
        (f'lists = "{LONG}"', "unknown op lists"),
        (f'lists = "{LONG}.toml"', "File name too long"),
        ('lists = "a\\u0000b"', "lists holds a null character"),
    ],
)
def test_names_in_a_policy(folder, program, capsys, line, message):
    rest = [key for key in ('mixed = "mixed.onnx"', 'against = "step.onnx"') if key[:5] != line[:5]]
    Path("policy.toml").write_text("\n".join(["[[graph]]", line, *rest]))
    assert program("check", "--policy", "policy.toml") == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("error:") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="has no pipes with names")
@pytest.mark.parametrize(
    "command",
    [
        "optimize step.onnx --device pipe.json",
        "calibrate --from-store pipe.json",
        "devices --store pipe.json",
    ],
)
def test_a_pipe_is_called_one(folder, program, capsys, command):
    os.mkfifo("pipe.json")
    assert program(*command.split()) == 2
    assert "pipe.json is not a regular file" in capsys.readouterr().err


# --- graphs of ONNX Runtime's training, damaged where ONNX has no schema to check them by ---


def damaged(model):
    """Attributes of operators without a schema, each once, as a list or a text."""
    import onnx
    from onnx import helper

    seen = set()
    for number, node in enumerate(model.graph.node):
        for place, attribute in enumerate(node.attribute):
            if node.domain != "com.microsoft" or (node.op_type, attribute.name) in seen:
                continue
            seen.add((node.op_type, attribute.name))
            value = helper.get_attribute_value(attribute)
            wrong = ["x"] if isinstance(value, list) else [value]
            broken = onnx.ModelProto()
            broken.CopyFrom(model)
            broken.graph.node[number].attribute[place].CopyFrom(helper.make_attribute(attribute.name, wrong))
            yield attribute.name, broken


@pytest.mark.parametrize("name", ["bert_optimized_training", "cnn_optimized_training"])
def test_an_attribute_of_the_wrong_type(tmp_path, name):
    import onnx

    from campo_onnx.errors import ModelError
    from campo_onnx.ir.importer import import_model

    tried = 0
    for what, broken in damaged(onnx.load(DATA / f"{name}.onnx")):
        with pytest.raises(ModelError, match=rf"attribute '{what}' of node .* is of type \w+, and must be"):
            import_model(broken, DIMS[name])
        tried += 1
    assert tried > 3


def test_a_bug_in_a_check_shows_its_traceback(folder, program, capsys, monkeypatch):
    def bug(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("campo_onnx.checking.batch.check", bug)
    assert program(*CHECK) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bug: mixed.onnx could not be checked: ZeroDivisionError: division by zero.")
    assert "Traceback" not in printed
    monkeypatch.setenv("CAMPO_ONNX_TRACEBACK", "1")
    assert program(*CHECK, "--json") == 1
    printed = capsys.readouterr()
    assert 'in bug\n    raise ZeroDivisionError("division by zero")' in printed.err
    assert json.loads(printed.out)["graphs"][0]["error"]["kind"] == "InternalError"
