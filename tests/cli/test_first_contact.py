"""First runs of a newcomer: defaults, quiet and dry runs, the order of errors, and what to do next."""

import json
import re
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks" / "data"


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
    assert "What stayed FP32" not in printed
    assert len(printed.splitlines()) <= 6  # the kind, two lines, what would help, and what was written
    assert optimize(MLP, "--device", "h200", "--dry-run", "--verbose") == 0
    assert "What stayed FP32" in capsys.readouterr().out


def test_the_first_help_fits_a_screen(program, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert program("-h") == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40


@pytest.mark.parametrize(
    "command", ["optimize", "compare", "explain", "devices", "profile", "bench", "check"]
)
def test_help_shows_no_types_of_python(program, command, capsys):
    assert program(command, "--help") == 0
    printed = capsys.readouterr().out
    assert not re.findall(r"<(?:bool|path|str|int|float|list)\b.*?>", printed)


@pytest.mark.parametrize(
    ("words", "last", "completions"),
    [
        (("optimize", "--device"), "h", ["h100", "h200"]),
        (("optimize", "--strategy"), "t", ["torch-amp", "tf-amp"]),
        (("calibrate", "--ops"), "Gemm,MatM", ["Gemm,MatMul"]),
        (("explain", "plan.json"), "node_mm", None),
    ],
)
def test_values_are_completed(optimize, program, words, last, completions, monkeypatch, capsys):
    if "plan.json" in words:
        assert optimize(MLP, "--device", "v100", "-o", "m.onnx", "--plan", "plan.json", "-q") == 0
        plan = json.loads(Path("plan.json").read_text())
        completions = [d["node"] for d in plan["decisions"] if d["node"].startswith(last)]
        assert completions
    monkeypatch.setenv("_CAMPO_ONNX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("campo-onnx", *words, last)))
    monkeypatch.setenv("COMP_CWORD", str(len(words) + 1))
    program()
    assert sorted(capsys.readouterr().out.split()) == sorted(completions)


def test_phases_tell_how_many_nodes_there_are(program, monkeypatch):
    """Of a large graph each phase takes a while: somebody who waits sees which it is, and of how much."""
    phases = []

    @contextmanager
    def told(what):
        phases.append(what)
        yield

    for module in ("preparation", "optimize"):
        monkeypatch.setattr(f"campo_onnx_cli.{module}.working", told)
    assert program("optimize", MLP, "-o", "o.onnx", "--device", "v100", "--strategy", "tf-amp") == 0
    of_nodes = "mlp.onnx, 71 nodes, for v100"
    assert phases[:4] == [
        "reading mlp.onnx",
        f"lowering {of_nodes}",
        f"finding what stays FP32 in {of_nodes}",
        f"planning {of_nodes}",
    ]
    assert re.fullmatch(r"trying \d+ low nodes on data", phases[4])
    assert phases[-1] == "writing o.onnx"


# --- the first line says what the file is ---


def test_the_first_line_says_what_the_file_is(program, capsys):
    words = ("-o", "out.onnx", "--device", "h100", "--force")
    for model, title in (
        (BENCHMARKS / "mlp_eval.onnx", "Inference graph in FP32. It returns no gradients"),
        (BENCHMARKS / "mlp_step.onnx", "Whole training step in FP32, with a loss scale.\n"),
        (MLP, "Gradient graph in FP32, without a loss scale.\n"),
    ):
        assert program("optimize", model, *words) == 0
        assert capsys.readouterr().out.startswith(title)
        assert program("compare", model, "--device", "h100") == 0
        assert capsys.readouterr().out.startswith(title)
        assert program("optimize", model, *words, "--report", "r.html") == 0
        assert f'<p class="line">{title.strip()}' in Path("r.html").read_text()
        capsys.readouterr()
    assert program("optimize", MLP, *words, "--strategy", "tf-amp") == 0
    printed = capsys.readouterr()
    assert "Export the step with loss_scale=True" in printed.err
    assert re.search(r"--precision bf16 \(\d\.\d\dx predicted, where fp16 has \d\.\d\dx\)\.", printed.err)
    assert program("optimize", MLP, *words, "--strategy", "tf-amp", "--device", "v100") == 0
    assert "unless told otherwise." in capsys.readouterr().err  # a V100 computes in no BF16
    shutil.copy("out.onnx", "mixed.onnx")
    assert program("optimize", "mixed.onnx", *words) == 0
    title = "Gradient graph mixed already, without a loss scale, a result of campo-onnx."
    assert capsys.readouterr().out.startswith(title)
