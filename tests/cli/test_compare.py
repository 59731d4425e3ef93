"""``campo-onnx compare``, and what judging on data and choosing costs look like from outside."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.dfp16 import emulate_dfp16
from campo_onnx.emulation.numerics import relative_l2
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import machine

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
ROW_KEYS = {
    *("strategy", "lists", "low_nodes", "casts", "cast_us", "predicted_us", "lower_bound_us"),
    *("launches", "moved_bytes", "cast_moved_bytes", "peak_bytes"),
    *("tensor_core_share", "measured_us", "measured_speedup", "measured_bounds", "verdict", "drift"),
}


@pytest.fixture
def batch(tmp_path):
    feeds = synthesize(import_model(MLP).view, seed=0)
    path = tmp_path / "batch.npz"
    np.savez(path, **feeds)
    return path


def test_compare_prints_every_strategy(program, capsys):
    assert program("compare", MLP, "--device", "v100") == 0
    printed = capsys.readouterr().out
    for strategy in STRATEGIES:
        assert strategy in printed


def test_compare_as_json(program, capsys):
    assert program("compare", MLP, "--device", "v100", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format_version"], document["device"]) == (1, "v100")
    assert {row["strategy"] for row in document["strategies"]} == set(STRATEGIES)
    for row in document["strategies"]:
        assert row.keys() == ROW_KEYS
        assert row["measured_us"] is None
        assert row["predicted_us"] > 0
        assert row["drift"] == {}


def test_compare_warns_of_what_matches_nothing_and_fails_when_strict(program, capsys):
    words = ("compare", MLP, "--device", "v100", "--keep-fp32", "nosuchnode")
    assert program(*words) == 0
    assert "nosuchnode" in capsys.readouterr().err
    assert program(*words, "--strict", "--json") == 2
    assert "nosuchnode" in json.loads(capsys.readouterr().out)["error"]["message"]
    Path("mine.toml").write_text('title = "mine"\nextends = "campo"\n[deny]\nops = ["MatMull"]\n')
    assert program("compare", MLP, "--device", "v100", "--lists", "mine.toml", "--strict") == 2
    assert "MatMul" in capsys.readouterr().err


SMALL = """<ir_version: 8, opset_import: ["": 20]>
    g (float[N,64] x, float[64,64] w) => (float[N,64] y) { h = MatMul(x, w) y = MatMul(h, w) }"""


@pytest.fixture
def small(tmp_path):
    """Two products, at a size that is given on the command line."""
    onnx.save(onnx.parser.parse_model(SMALL), tmp_path / "m.onnx")
    return ("m.onnx", "--device", "cpu", "--dim", "N=16")


def test_compare_measures_at_the_size_given(program, small, capsys):
    words = ("compare", *small, "--costs", "datasheet", "--measure", "--steps", "6")
    assert program(*words, "--json") == 0
    rows = {(row["strategy"], row["lists"]): row for row in json.loads(capsys.readouterr().out)["strategies"]}
    assert all(row["measured_us"] > 0 for row in rows.values())
    assert rows["fp32", "campo"]["measured_speedup"] == 1.0
    same = rows["optimal", "campo"]  # on a CPU it changes nothing, so nothing else is measured for it
    assert (same["casts"], same["measured_us"]) == (0, rows["fp32", "campo"]["measured_us"])
    assert rows["tf-amp", "tf115"]["casts"]
    changed = rows["tf-amp", "tf115"]
    low, high = changed["measured_bounds"]
    assert 0 < low <= changed["measured_speedup"] <= high
    assert changed["verdict"] in ("faster", "slower", "no difference")
    assert (same["measured_bounds"], same["verdict"]) == (None, "baseline")
    assert program(*words) == 0
    printed = capsys.readouterr().out
    assert "x fp32, 95 %" in printed
    assert "baseline" in printed


def test_strategies_are_measured_only_where_the_device_is(program, capsys, monkeypatch):
    monkeypatch.setattr("campo_onnx.runtime.onnxruntime.providers.cuda_problem", lambda: "no GPU answers")
    assert program("compare", MLP, "--device", "v100", "--costs", "datasheet", "--measure") == 8
    assert "no GPU answers" in capsys.readouterr().err


def test_compare_shows_what_rounding_makes_of_a_plan(program, batch, capsys):
    words = ("compare", MLP, "--device", "h200", "--inputs", batch, "--drift", "dfp16", "--drift", "planned")
    errors = {}
    for low in ("fp16", "bf16"):
        assert program(*words, "--precision", low, "--json") == 0
        rows = {(r["strategy"], r["lists"]): r for r in json.loads(capsys.readouterr().out)["strategies"]}
        assert {form: d["error"] for form, d in rows["fp32", "campo"]["drift"].items()} == {
            "dfp16": 0,
            low: 0,
        }
        errors |= {form: d["error"] for form, d in rows["tf-amp", "tf115"]["drift"].items()}
    assert 2**-16 < errors["dfp16"] < errors["bf16"] < 0.1  # 15, 11 and 8 significant bits
    assert 2**-12 < errors["fp16"] < errors["bf16"] / 4
    options = Options(target=target("h200"), lists=oplists("tf115"), strategy="tf-amp", low=Precision.BF16)
    mixed, fp32 = optimize_model(MLP, options).model, onnx.load(MLP)
    here, feeds = machine("cpu"), dict(np.load(batch))
    expected, actual = (run(model, feeds, here) for model in (fp32, emulate_dfp16(mixed)))
    worst = max(relative_l2(actual[name], expected[name]) for name in expected)
    assert errors["dfp16"] == pytest.approx(worst)  # bit by bit, but for FP32's own sums
    assert program(*words) == 0
    assert "drift, dfp16" in capsys.readouterr().out


def test_drift_needs_a_finite_step(program, batch, capsys):
    feeds = dict(np.load(batch))
    np.savez("large.npz", **feeds | {"input0": np.full_like(feeds["input0"], 3e38)})
    words = ("compare", MLP, "--device", "h200")
    assert program(*words, "--drift", "dfp16", "--inputs", "large.npz") == 3
    assert "the FP32 step is not finite" in " ".join(capsys.readouterr().err.split())
    assert program(*words, "--inputs", "large.npz") == 2
    assert "--inputs is for --drift" in capsys.readouterr().err


def test_compare_draws(program, tmp_path, capsys):
    assert program("compare", MLP, "--device", "v100", "--plot", "where.svg") == 0
    assert ElementTree.parse(tmp_path / "where.svg").getroot().tag.endswith("svg")
    assert program("compare", MLP, "--device", "v100", "--plot", "where.svg") == 2
    assert "--force" in capsys.readouterr().err


def test_compare_refuses_a_result(program, capsys):
    assert program("optimize", MLP, "-o", "mixed.onnx", "--device", "v100") == 0
    assert program("compare", "mixed.onnx", "--device", "v100") == 2
    assert "FP32 file it was made from" in capsys.readouterr().err


def test_costs_that_are_measured_say_so(program, small, capsys):
    words = ("optimize", *small, "-o", "mixed.onnx", "--costs", "measure", "--json")
    assert program(*words, "--strategy", "campo") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["source"] == "measure"
    # No product has an FP16 kernel on a CPU, so the paper's strategy has nothing to begin with.
    assert {d["precision"] for d in plan["decisions"] if d["op_class"] == "allow"} == {"fp32"}


def test_a_gpu_cannot_be_measured_where_there_is_none(program, capsys):
    assert program("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", "--costs", "measure") in (6, 8)
    assert "error:" in capsys.readouterr().err
    assert not Path("mixed.onnx").exists()


def test_a_model_of_costs_needs_a_calibration(program, capsys):
    assert program("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", "--costs", "model") == 2
    assert "campo-onnx calibrate" in capsys.readouterr().err


@pytest.mark.parametrize(("low", "budget"), [("fp16", 0.01), ("bf16", 0.08)])
def test_safety_on_data_tells_what_it_found(program, batch, capsys, low, budget):
    words = ("optimize", MLP, "-o", "mixed.onnx", "--device", "h200", "--safety", "data", "--inputs", batch)
    assert program(*words, "--precision", low, "--strategy", "tf-amp") == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "On the data:" in printed
    assert f"the budget is {budget}" in printed
    onnx.checker.check_model("mixed.onnx", full_check=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--safety", "data"), "needs a batch"),
        (("--inputs", "missing.npz"), "missing.npz does not exist"),
        (("--safety", "data", "--inputs", "batch.npz", "--budget", "0"), "budget is 0"),
        (("--safety", "data", "--inputs", "missing.npz"), "missing.npz"),
        (("--safety", "data", "--inputs", "nan.npz"), "NaN"),
        (("--safety", "data", "--inputs", "wrong.npz"), "input0"),
    ],
)
def test_bad_data_is_one_message(program, batch, capsys, words, message):
    feeds = dict(np.load(batch))
    np.savez("nan.npz", **feeds | {"input0": np.full_like(feeds["input0"], np.nan)})
    np.savez("wrong.npz", **feeds | {"input0": feeds["input0"][:, :3]})
    assert program("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", *words) == 2
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert "Traceback" not in printed
    assert not Path("mixed.onnx").exists()
