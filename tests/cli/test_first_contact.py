"""What a newcomer meets: defaults, quiet and dry runs, the order of errors, and what to do next."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture
def optimize(program):
    """Run the command; returns the exit code."""
    return partial(program, "optimize")


def test_by_default_it_is_written_beside_the_model(optimize, tmp_path, capsys):
    shutil.copy(MLP, "step.onnx")
    assert optimize("step.onnx", "--device", "v100", "--dry-run") == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["step.onnx"]
    assert optimize("step.onnx", "--device", "v100", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "step.mixed.onnx").is_file()
    assert optimize("step.onnx", "--device", "v100", "-v", "--force") == 0
    assert "What is launched and moved a step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [  # the first thing that is wrong, in the order of the command line
        (("nosuch.onnx", "--strategy", "x", "--device", "y", "-o", "-"), "nosuch.onnx does not exist"),
        (("step.onnx", "--strategy", "x", "--device", "y", "-o", "-"), "unknown strategy 'x'"),
        (("step.onnx", "--lists", "camp", "--device", "y", "-o", "-"), "Did you mean 'campo'?"),
        (("step.onnx", "--device", "y", "-o", "-"), "unknown device 'y'"),
        (("step.onnx", "--device", "c.json", "-o", "-"), "the calibration c.json does not exist"),
        (("step.onnx", "--device", "v100", "-o", "-"), "the output - would be standard output"),
        (("step.onnx", "--device", "v100", "-q", "-v"), "--quiet and --verbose contradict"),
        (("step.onnx", "--device", "cpu", "--execution", "graph"), "cannot capture CUDA graphs"),
        (("step.onnx", "--costs", "model", "--execution", "graph"), "cannot be combined with --costs model"),
    ],
)
def test_errors_come_in_the_order_a_user_expects(optimize, capsys, words, message):
    shutil.copy(MLP, "step.onnx")
    assert optimize(*words) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["step.onnx"]


def test_a_list_file_that_names_what_onnx_has_not(optimize, capsys):
    Path("l.toml").write_text('extends = "campo"\n[deny]\nops = ["MatMull"]\n')
    assert optimize(MLP, "-o", "m.onnx", "--device", "v100", "--lists", "l.toml") == 0
    assert "MatMull, which ONNX does not define. Did you mean 'MatMul'?" in capsys.readouterr().err
    assert optimize(MLP, "-o", "n.onnx", "--device", "v100", "--lists", "l.toml", "--strict") == 2


def test_unchanged_says_why_and_what_next(optimize, capsys):
    assert optimize(MLP, "--device", "h200", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "(unchanged)" in printed
    assert "The step is launch-bound at this size" in printed
    assert "The file has fixed sizes" in printed


@pytest.mark.parametrize(
    "command", ["optimize", "compare", "explain", "devices", "profile", "bench", "check"]
)
def test_help_shows_no_types_of_python(program, command, capsys):
    assert program(command, "--help") == 0
    printed = capsys.readouterr().out
    assert not re.findall(r"<(?:bool|path|str|int|float|list)\b.*?>", printed)


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        (("optimize", "--device"), "h", ["h100", "h200"]),
        (("optimize", "--strategy"), "t", ["torch-amp", "tf-amp"]),
        (("calibrate", "--ops"), "Gemm,MatM", ["Gemm,MatMul"]),
        (("explain", "plan.json"), "node_mm", None),
    ],
)
def test_values_are_completed(optimize, program, words, last, found, monkeypatch, capsys):
    if "plan.json" in words:
        assert optimize(MLP, "--device", "v100", "-o", "m.onnx", "--plan", "plan.json", "-q") == 0
        plan = json.loads(Path("plan.json").read_text())
        found = [d["node"] for d in plan["decisions"] if d["node"].startswith(last)]
        assert found
    monkeypatch.setenv("_CAMPO_ONNX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("campo-onnx", *words, last)))
    monkeypatch.setenv("COMP_CWORD", str(len(words) + 1))
    program()
    assert sorted(capsys.readouterr().out.split()) == sorted(found)
