"""Files that somebody else converted: planned both ways, from the command line."""

import json
import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

HALF_CONVERTED = """<ir_version: 10, opset_import: ["": 20]>
step (float[16, 32] x, float[64, 32] v) => (float[16, 32] y, float16[16, 64] h)
{
    x16 = Cast<to = 10>(x)
    h = MatMul(x16, w)
    a = Relu(h)
    v16 = Cast<to = 10>(v)
    y16 = MatMul(a, v16)
    y32 = Cast<to = 1>(y16)
    y = Sub(y32, x)
}"""


PAYS = """<ir_version: 10, opset_import: ["": 20]>
g (float16[512, 512] x, float16[512, 512] w) => (float16[512, 512] y) { h = MatMul(x, w) y = Relu(h) }"""


@pytest.fixture
def mixed(tmp_path):
    model = parser.parse_model(HALF_CONVERTED)
    weight = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "mixed.onnx")
    return tmp_path / "mixed.onnx"


def outputs_of(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {each.name: rng.standard_normal(each.shape).astype(np.float32) for each in session.get_inputs()}
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("device", ["zen4", "v100"])
def test_nodes_are_raised_where_low_precision_does_not_pay(program, mixed, tmp_path, capsys, device):
    assert program("optimize", "mixed.onnx", "-o", "out.onnx", "--device", device, "--report", "r.html") == 0
    told = capsys.readouterr()
    assert "Inference graph mixed already." in told.out
    assert "It is planned both ways" in told.out
    assert "x the file's speed" in told.out
    assert "3 of them become FP32, and 0 others fp16" in told.err.replace("\n", " ")
    before, after = outputs_of(mixed), outputs_of(tmp_path / "out.onnx")
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        np.testing.assert_allclose(after[name], value, atol=0.1, rtol=0.01)
    (weight,) = (t for t in onnx.load(tmp_path / "out.onnx").graph.initializer if t.name == "w")
    assert weight.data_type == onnx.TensorProto.FLOAT16
    assert "become FP32" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_another_low_precision_is_not_counted_as_the_planned_one(program, tmp_path, capsys):
    text = (
        HALF_CONVERTED.replace("float16", "bfloat16")
        .replace("to = 10", "to = 16")
        .replace("(float[16, 32] x,", "(bfloat16[32, 64] w, float[16, 32] x,")
    )
    onnx.save(parser.parse_model(text), tmp_path / "bf16.onnx")
    assert program("optimize", "bf16.onnx", "-o", "out.onnx", "--device", "v100") == 0
    out = capsys.readouterr().out
    assert "The file computes in bf16, which stays as it is: --precision bf16 plans it both ways." in out
    assert "No node may run in low precision" not in out
    assert program("optimize", "bf16.onnx", "-o", "out.onnx", "--device", "v100", "--verbose", "--force") == 0
    assert re.search(r"nodes +0 of \d+ in fp16, 3 in bf16 already", capsys.readouterr().out)


def test_casts_that_are_dropped_are_neither_timed_nor_kept(program, tmp_path, capsys):
    onnx.save(parser.parse_model(PAYS), tmp_path / "low.onnx")
    assert program("optimize", "low.onnx", "-o", "out.onnx", "--device", "v100") == 0
    out = capsys.readouterr().out
    assert re.search(r"nodes +2 of 2 in fp16", out)
    assert re.search(r"launches, bytes +2, 2\.6 MB -> 2\.6 MB", out)
    assert "an existing change of precision" not in out
    (cast,) = re.findall(r"Cast +0/0 +\S+ us +(\S+ \S+)", out)
    assert cast == "0.0 us"


def test_a_result_of_it_is_left_alone(program, mixed, tmp_path):
    assert program("optimize", "mixed.onnx", "-o", "out.onnx", "--device", "v100") == 0
    assert program("optimize", "out.onnx", "-o", "again.onnx", "--device", "v100") == 0
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


def test_compare_says_which_way_is_better(program, mixed, capsys):
    assert program("compare", "mixed.onnx", "--device", "zen4") == 0
    out = capsys.readouterr().out
    assert "as given" in out
    assert "raises 3 nodes of the file to FP32 and lowers 0" in out
    assert program("compare", "mixed.onnx", "--device", "zen4", "--json") == 0
    strategies = json.loads(capsys.readouterr().out)["strategies"]
    least = {row["strategy"]: row["predicted_us"] for row in strategies}
    assert least["optimal"] < least["as given"]


def test_compare_measures_the_file_as_well(program, mixed, capsys):
    words = ("compare", "mixed.onnx", "--device", "cpu", "--costs", "datasheet", "--measure", "--steps", "6")
    assert program(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert all(row["measured_us"] > 0 for row in rows)
    by_name = {row["strategy"]: row for row in rows}
    assert by_name["fp32"]["measured_speedup"] == 1.0
    assert by_name["as given"]["measured_bounds"] is not None


def test_verify_measures_against_the_file(program, mixed, tmp_path, capsys):
    words = (
        "--device",
        "cpu",
        "--costs",
        "datasheet",
        "--verify",
        "--verify-steps",
        "6",
        "--plan",
        "plan.json",
    )
    assert program("optimize", "mixed.onnx", "-o", "out.onnx", *words) == 0
    told = capsys.readouterr().err.replace("\n", " ")
    assert "as given" in told
    was_kept = "No planned step was faster, so the file stays as it is." in told
    first, second = (onnx.load(tmp_path / f"{name}.onnx").graph.node for name in ("mixed", "out"))
    assert ([n.op_type for n in first] == [n.op_type for n in second]) is was_kept
    assert ("verified-as-given" in (tmp_path / "plan.json").read_text(encoding="utf-8")) is was_kept


def test_the_frontier_begins_with_every_node_in_fp32(program, mixed, capsys):
    words = ("frontier", "mixed.onnx", "--device", "v100", "--runs", "2", "--emulated", "2", "--json")
    assert program(*words) == 0
    for frontier in json.loads(capsys.readouterr().out)["frontiers"]:
        assert frontier["roundings"] > 0
        assert min(point["low_nodes"] for point in frontier["points"]) == 0


@pytest.mark.parametrize("device", ["cpu", "v100"])
def test_check_holds_the_result_against_the_file(program, mixed, capsys, device):
    words = ("--device", device, "--costs", "datasheet", "--plan", "plan.json")
    assert program("optimize", "mixed.onnx", "-o", "out.onnx", *words) == 0
    predicted = json.loads((mixed.parent / "plan.json").read_text(encoding="utf-8"))["predicted_us"]
    capsys.readouterr()
    checked = ("check", "out.onnx", "--against", "mixed.onnx", "--baseline", "plan.json", "--device", device)
    assert program(*checked, "--json") == 0
    assert f"{predicted:,.1f} us" in capsys.readouterr().out


def test_nodes_that_somebody_else_made_low_against_the_lists_are_no_failure(program, tmp_path, capsys):
    """ReduceMean is on the deny list, and stays low as it is; named in the policy it has to rise."""
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float16[512, 512] x, float16[512, 512] w, float[8] b) => (float16[512, 1] y, float[8] z) {
            h = MatMul(x, w) a = Constant<value_ints = [1]>() y = ReduceMean(h, a)
            l = Cast<to = 10>(b) n = Neg(l) z = Cast<to = 1>(n) }"""
    onnx.save(parser.parse_model(text), tmp_path / "low.onnx")
    assert program("optimize", "low.onnx", "-o", "out.onnx", "--device", "v100") == 0
    assert "1 of them become FP32" in capsys.readouterr().err.replace("\n", " ")
    checked = ("check", "out.onnx", "--against", "low.onnx", "--device", "v100")
    assert program(*checked) == 0
    assert re.search(r"fp32 +passed", capsys.readouterr().out)
    assert program(*checked, "--keep-fp32", "ReduceMean") == 9


def test_a_plan_slower_than_the_file_is_not_said_to_be_of_another_version(program, tmp_path, capsys):
    """The plan's own speed-up is over FP32, the check's over the file."""
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float16[512, 512] x, float16[512, 512] w) => (float16[512, 1] y)
        { h = MatMul(x, w) a = Constant<value_ints = [1]>() y = ReduceMean(h, a) }"""
    onnx.save(parser.parse_model(text), tmp_path / "low.onnx")
    assert program("optimize", "low.onnx", "-o", "out.onnx", "--device", "v100", "--strategy", "tf-amp") == 0
    capsys.readouterr()
    assert program("check", "out.onnx", "--against", "low.onnx", "--device", "v100") == 9
    out = capsys.readouterr().out
    assert "1x is required" in out
    assert "another version" not in out


@pytest.fixture
def open_batch(tmp_path):
    """A file in FP16 whose batch has a name, and a batch for it."""
    text = (
        '<ir_version: 10, opset_import: ["": 20]> '
        "g (float16[batch, 64] x, float16[64, 64] w) => (float16[batch, 64] y) "
        "{ h = MatMul(x, w) y = Relu(h) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "half.onnx")
    x, w = np.ones((32, 64), np.float16), np.full((64, 64), 0.5, np.float16)
    np.savez(tmp_path / "b.npz", x=x, w=w)


@pytest.mark.parametrize(
    "words",
    [
        "optimize half.onnx --device v100 -o out.onnx",
        "optimize half.onnx --device v100 -o out.onnx --inputs b.npz --rules --min-gain 0",
        "optimize half.onnx --device v100 -o out.onnx --inputs b.npz --safety data",
        "optimize half.onnx --device v100 -o out.onnx --inputs b.npz --max-error 0.1",
        "optimize half.onnx --device v100 -o out.onnx --simplify --precision auto",
        "compare half.onnx --device v100 --drift planned --drift dfp16",
        "frontier half.onnx --device v100 --runs 2 --emulated 2",
        "frontier half.onnx --device v100 --runs 2 --emulated 2 --inputs b.npz",
        "check half.onnx --against half.onnx --device v100 --min-speedup 0",
        "bench half.onnx half.onnx --device cpu --steps 6 --threads 1",
        "profile half.onnx -o p.parquet --device cpu --steps 1 --threads 1",
    ],
)
def test_a_size_holds_in_every_stage(program, open_batch, capsys, words):
    assert program(*words.split(), "--dim", "batch=32") == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    assert "batch=SIZE" not in printed.err + printed.out
