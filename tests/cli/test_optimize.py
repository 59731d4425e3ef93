"""``campo-onnx optimize`` from the outside: results, messages, exit codes, and nothing left behind."""

import json
import signal
import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from campo_onnx import Plan
from campo_onnx.optimize import eligibility

DATA = Path(__file__).parent.parent / "data"
MLP = DATA / "mlp.onnx"
PLAN_KEYS = {
    "decisions_digest": str,
    "kind": str,
    "format_version": int,
    "strategy": str,
    "lists": str,
    "device": str,
    "source": str,
    "low": str,
    "fp32_us": float,
    "predicted_us": float,
    "lower_bound_us": (float, type(None)),
    "unassigned_us": float,
    "captured": bool,
    "runtime": str,
    "digest": str,
    "casts": list,
    "reused": list,
    "dropped": list,
    "constants": list,
    "pads": list,
    "ranges": dict,
    "decisions": list,
    "rules": (dict, type(None)),
}
CAST_KEYS = {"tensor", "src", "dst", "producer", "consumers", "cast_us"}
DECISION_KEYS = {
    "node",
    "op_type",
    "op_class",
    "precision",
    "decided_by",
    "facts",
    "fp32_us",
    "gain_us",
    "cast_us",
    "other_cast_us",
    "low_inputs",
    "low_outputs",
    "attribute",
    "follows",
    "module",
    "kind",
    "source",
}
OPTIONS = (
    "--output",
    "--dim",
    "--device",
    "--strategy",
    "--precision",
    "--lists",
    "--allow",
    "--infer",
    "--clear",
    "--deny",
    "--keep-fp32",
    "--plan",
    "--json",
    "--force",
)


@pytest.fixture
def optimize(program):
    return partial(program, "optimize")


# --- what it does ---


def test_it_writes_a_valid_mixed_model_and_says_what_it_did(optimize, tmp_path, capsys):
    assert optimize(MLP, "-o", "out.onnx", "--device", "v100", "--strategy", "tf-amp") == 0
    printed = capsys.readouterr()
    assert "Wrote out.onnx" in printed.out
    assert "v100 (estimate from public figures), strategy tf-amp, lists tf115, fp16" in printed.out
    assert printed.err.startswith("warning: 18 nodes of the backward pass run in fp16")
    assert "does not scale its loss" in printed.err
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    assert "Cast" in {node.op_type for node in onnx.load("out.onnx").graph.node}
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


@pytest.mark.parametrize("strategy", ["optimal", "campo", "tf-amp", "fp32"])
def test_the_json_document_has_the_documented_keys(optimize, capsys, strategy):
    assert optimize(MLP, "-o", "out.onnx", "--device", "v100", "--strategy", strategy, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan.keys() == PLAN_KEYS.keys()
    for key, kind in PLAN_KEYS.items():
        assert isinstance(plan[key], kind), key
    assert (plan["format_version"], plan["strategy"], plan["device"]) == (7, strategy, "v100")
    assert plan["source"] == "datasheet"
    assert plan["pads"] == []
    assert all(cast.keys() == CAST_KEYS for cast in plan["casts"])
    assert all(decision.keys() == DECISION_KEYS for decision in plan["decisions"])
    assert len(plan["decisions"]) == len(onnx.load(MLP).graph.node)
    assert bool(plan["casts"]) == (strategy == "tf-amp")


def test_the_plan_file_is_the_json_document(optimize, tmp_path, capsys):
    assert optimize(MLP, "-o", "out.onnx", "--device", "v100", "--plan", "plan.json", "--json") == 0
    assert (tmp_path / "plan.json").read_text() == capsys.readouterr().out


def test_twice_is_once_to_the_byte(optimize, tmp_path, capsys):
    words = ("--device", "v100", "--strategy", "tf-amp")
    assert optimize(MLP, "-o", "once.onnx", *words) == 0
    capsys.readouterr()
    assert optimize("once.onnx", "-o", "twice.onnx", "--device", "h200") == 0
    printed = capsys.readouterr()
    assert "is already optimized (strategy tf-amp, v100, fp16; predicted then: " in printed.err
    assert "and stays as it is" in printed.err
    assert printed.out.splitlines() == [
        "Gradient graph mixed already, without a loss scale, a result of campo-onnx.",
        "Wrote twice.onnx",
    ]
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_in_place_with_force(optimize, tmp_path):
    (tmp_path / "m.onnx").write_bytes(MLP.read_bytes())
    assert optimize("m.onnx", "-o", "m.onnx", "--device", "v100", "--strategy", "tf-amp", "--force") == 0
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert (tmp_path / "m.onnx").read_bytes() != MLP.read_bytes()


def test_symbolic_dimensions_are_bound(optimize, capsys):
    model = DATA / "cnn_artifacts_training_model.onnx"
    assert optimize(model, "-o", "out.onnx", "--dim", "B=4", "--device", "v100") == 0
    dims = onnx.load("out.onnx").graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param == "B"


def test_operators_can_be_put_on_another_list(optimize, capsys):
    def low_ops(*words):
        assert (
            optimize(
                MLP, "-o", "out.onnx", "--device", "v100", "--strategy", "tf-amp", "--json", "--force", *words
            )
            == 0
        )
        return {
            d["op_type"] for d in json.loads(capsys.readouterr().out)["decisions"] if d["precision"] == "fp16"
        }

    assert {"MatMul", "Gemm"} <= low_ops()
    assert "MatMul" not in low_ops("--deny", "MatMul")
    assert "Gemm" not in low_ops("--keep-fp32", "Ge.*")


def test_without_a_gpu_auto_says_what_it_plans_for(optimize, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert optimize(MLP, "-o", "out.onnx") == 0
    assert "No GPU here, planning for h200; choose with --device: " in capsys.readouterr().err


def test_help_mentions_every_option(optimize, capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    assert optimize("--help") == 0
    printed = capsys.readouterr().out
    for option in OPTIONS:
        assert option in printed


# --- bugs and kills ---


def test_a_bug_is_code_1_and_a_short_message(optimize, tmp_path, monkeypatch, capsys):
    def bug(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("campo_onnx.planning.pipeline.rewrite", bug)
    assert optimize(MLP, "-o", "out.onnx", "--device", "v100") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bug: ZeroDivisionError: division by zero")
    assert "CAMPO_ONNX_TRACEBACK=1" in printed
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


def test_a_bug_with_traceback_on_request(monkeypatch, tmp_path):
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    monkeypatch.setenv("CAMPO_ONNX_TRACEBACK", "1")
    monkeypatch.setattr("campo_onnx.planning.pipeline.rewrite", lambda *_: 1 / 0)
    monkeypatch.setattr(
        "sys.argv", ["campo-onnx", "optimize", str(MLP), "-o", str(tmp_path / "o"), "--device", "v100"]
    )
    with pytest.raises(ZeroDivisionError):
        script.load()()


LOAD = """from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="campo-onnx")
script.load()()
"""


def program(*words, first=""):
    return [sys.executable, "-c", first + LOAD, *map(str, words)]


def test_the_whole_process(tmp_path):
    words = ("optimize", MLP, "-o", tmp_path / "out.onnx", "--device", "v100", "--json")
    answer = subprocess.run(program(*words), capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["device"] == "v100"
    answer = subprocess.run(program(*words), capture_output=True, text=True)
    assert answer.returncode == 2
    assert json.loads(answer.stdout)["error"]["message"] in answer.stderr
    assert answer.stderr.startswith("error: ")


def test_a_kill_leaves_nothing_behind(tmp_path):
    target = tmp_path / "out.onnx"
    target.write_text("precious")
    slow = (  # it is killed where the draft is written, and not looked through yet
        "import os, signal, time\nfrom pathlib import Path\nfrom campo_onnx.ir import exporter\n"
        "def killed(*_):\n"
        f"    print(len(os.listdir({str(tmp_path)!r})), flush=True)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(600)\n"
        "exporter.check_written = killed\n"
    )
    words = program("optimize", MLP, "-o", target, "--device", "v100", "--force", first=slow)
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert answer.stdout == "2\n", "the draft lies beside the old file when it is killed"
    assert answer.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    assert target.read_text() == "precious"


@pytest.mark.parametrize("option", ["--deny", "--keep-fp32"])
def test_an_override_that_matches_nothing_is_a_warning_and_with_strict_an_error(program, capsys, option):
    mlp = Path(__file__).parent.parent / "data" / "mlp.onnx"
    words = ("optimize", mlp, "-o", "mixed.onnx", "--device", "v100", option, "MatMull")
    assert program(*words, "--strict") == 2
    assert not Path("mixed.onnx").exists()
    assert program(*words) == 0
    assert Path("mixed.onnx").exists()
    for line in capsys.readouterr().err.splitlines():
        assert f"{option} MatMull matches no node of the graph. Did you mean 'MatMul'?" in line


@pytest.mark.parametrize(("device", "is_warned"), [("v100", True), ("cpu", False)])
def test_batch_normalization_that_cuda_refuses_is_named_at_planning(
    program, capsys, tmp_path, device, is_warned
):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 20]>
        step (float[4,3,8,8] x, float[3] s, float[3] b, float[3] m, float[3] v)
            => (float[4,3,8,8] y, float[3] m2, float[3] v2) {
            [norm] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
        }
    """)
    onnx.save(model, tmp_path / "norm.onnx")
    words = ("optimize", tmp_path / "norm.onnx", "-o", tmp_path / "mixed.onnx", "--device", device)
    assert program(*words, "--costs", "datasheet") == 0
    said = capsys.readouterr().err
    assert ("training_mode=1" in said) == is_warned
    assert ("campo_onnx.export.torch" in said) == is_warned


# --- ranges ---

MASKED = """<ir_version: 10, opset_import: ["": 20]> g
(float[8,128,128] q, float[8,128,128] k, float[1,128,128] mask) => (float[8,128,128] y) {
  [scores] s = MatMul(q, k) [masked] m = Add(s, mask) [softmax] p = Softmax(m) [out] y = MatMul(p, k)
}"""


@pytest.fixture
def masked(tmp_path):
    onnx.save(onnx.parser.parse_model(MASKED), tmp_path / "masked.onnx")
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=(8, 128, 128)).astype(np.float32) for name in ("q", "k")}
    np.savez(tmp_path / "batch.npz", mask=np.full((1, 128, 128), -100.0, np.float32), **feeds)
    return "masked.onnx", "-o", "out.onnx", "--device", "v100", "--strategy", "fine-grained", "--json"


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ((), "fp32"),
        (("--range", "mask=-10000:0"), "fp16"),
        (("--range", "mask=-1e9:0"), "fp32"),
        (("--inputs", "batch.npz"), "fp16"),
        (("--inputs", "batch.npz", "--range", "mask=-1e9:0"), "fp32"),
    ],
)
def test_a_mask_of_known_size_goes_low(optimize, masked, capsys, words, precision):
    assert optimize(*masked, *words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {d["node"]: d["precision"] for d in plan["decisions"]}["softmax"] == precision
    assert ("mask" in plan["ranges"]) is bool(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mask", "is not NAME=LOW:HIGH"),
        ("mask=1", "is not NAME=LOW:HIGH"),
        ("mask=a:b", "is not NAME=LOW:HIGH"),
        ("mask=nan:0", "is not NAME=LOW:HIGH"),
        ("mask=1:0", "the range 1:0 is empty"),
        ("s=0:1", "'s', which is not an input"),
    ],
)
def test_a_bad_range_is_one_message(optimize, masked, capsys, text, expected):
    assert optimize(*masked, "--range", text) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not Path("out.onnx").exists()


AUDIO = """<ir_version: 10, opset_import: ["": 20]> g
(float[64, 256] x, float[256, 256] w) => (float[64, 256] y) {
  [k] k = Constant<value_float = 32768.0>() [mul] h = Mul(x, k) [dot] y = MatMul(h, w) }"""


@pytest.mark.parametrize("mode", ["on", "off"])
def test_the_plan_is_tried_on_data_unless_it_is_switched_off(optimize, capsys, mode, monkeypatch):
    monkeypatch.setattr(eligibility, "value_verdicts", lambda *_: {})  # rules that forbid it before
    onnx.save(parser.parse_model(AUDIO), "audio.onnx")
    settings = ("--device", "v100", "--strategy", "torch-amp", "--plan", "plan.json", "--report", "page.html")
    assert optimize("audio.onnx", *settings, "--probe", mode) == 0
    plan = Plan.from_json(Path("plan.json").read_text())
    told, page = capsys.readouterr().err, Path("page.html").read_text()
    assert ("dot" in plan.low_nodes) == (mode == "off")
    assert ("The plan was tried on data (ordinary values" in told) == (mode == "on")
    assert ("The plan was tried on data (ordinary values" in page) == (mode == "on")
    assert ("not finite on ordinary values" in page) == (mode == "on")


ROUTER = """<ir_version: 10, opset_import: ["": 20]> g
(float[64, 256] x, float[256, 256] w) => (float[64, 256] y, int64[64, 1] i) {
  h = MatMul(x, w) y = Relu(h) [route] i = ArgMax<axis = 1>(SCORES) }"""


@pytest.mark.parametrize(("scores", "mode"), [("h", "off"), ("x", "off"), ("h", "on")])
def test_an_order_of_rounded_values_that_was_not_tried_is_told(optimize, capsys, scores, mode):
    onnx.save(parser.parse_model(ROUTER.replace("SCORES", scores)), "router.onnx")
    assert optimize("router.onnx", "--device", "v100", "--strategy", "torch-amp", "--probe", mode) == 0
    told = "'route' (ArgMax) may order values otherwise" in capsys.readouterr().err
    assert told == (scores == "h" and mode == "off")
