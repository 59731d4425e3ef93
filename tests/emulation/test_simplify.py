"""Given graphs cleaned up before they are planned."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.emulation import simplify as room
from campo_onnx.emulation.simplify import simplify
from campo_onnx.errors import CheckFailedError, UsageError

GRAPH = """
    <ir_version: 10, opset_import: ["": 20]>
    step (float[4,4] x, float[4,4] w) => (float[4,4] loss) {
        one = Constant <value_float = 1.0> ()
        two = Add (one, one)
        again = Identity (x)
        product = MatMul (again, w)
        copy = Identity (product)
        loss = Mul (copy, two)
    }
"""


def test_redundant_nodes_go_and_the_result_stays() -> None:
    result = simplify(onnx.parser.parse_model(GRAPH))
    assert [node.op_type for node in result.model.graph.node] == ["MatMul", "Mul"]
    assert (result.nodes_before, result.nodes_after, result.why_not_run) == (6, 2, "")
    onnx.checker.check_model(result.model, full_check=True)


ROUNDED_BY_RULES = {
    "zeros are not what a MaxPool pads with": """
        step (float[1,1,4,4] x) => (float[1,1,5,5] y)
        <int64[8] widths = {0,0,1,1,0,0,1,1}, float zero = {0}> {
            padded = Pad (x, widths, zero)
            y = MaxPool <kernel_shape = [2, 2]> (padded)
        }""",
    "a bias between quantized tensors is not rounded": """
        step (uint8[1,1,4,4] q) => (uint8[1,1,3,3] y)
        <float scale = {0.1}, uint8 zero = {128}, uint8[1,1,2,2] kernel = {99, 1, 2, 3}, float[1] b = {3}> {
            x = DequantizeLinear (q, scale, zero)
            w = DequantizeLinear (kernel, scale, zero)
            c = Conv (x, w, b)
            y = QuantizeLinear (c, scale, zero)
        }""",
}


@pytest.mark.parametrize("case", ROUNDED_BY_RULES)
def test_rules_that_change_values_are_left_out(case: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {ROUNDED_BY_RULES[case]}')
    before, after = (sorted(node.op_type for node in m.graph.node) for m in (model, simplify(model).model))
    assert after == before


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("copy = Dropout (product)", "it draws random numbers"),
        (
            "rows = Constant <value_ints = [0, 1, 2, 4]> () copy = Gather (product, rows)",
            "does not run on made-up values",
        ),
    ],
)
def test_a_graph_is_not_run_where_that_says_nothing(statement: str, why: str) -> None:
    text = GRAPH.replace("copy = Identity (product)", statement)
    assert why in simplify(onnx.parser.parse_model(text)).why_not_run


def test_named_sizes_keep_their_names() -> None:
    model = onnx.parser.parse_model(GRAPH.replace("float[4,4] x", "float[rows,4] x"))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "anything"
    simpler = simplify(model, {"rows": 4}).model
    assert [*simpler.graph.input, *simpler.graph.output] == [*model.graph.input, *model.graph.output]


def test_sequences_are_compared() -> None:
    text = GRAPH.replace("(float[4,4] loss)", "(seq(float[4,4]) list)").replace(
        "loss = Mul (copy, two)", "scaled = Mul (copy, two) list = SequenceConstruct (scaled, copy)"
    )
    assert not simplify(onnx.parser.parse_model(text)).why_not_run


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("Mul (copy", "Add (copy", "a different 'loss'"),
        ("loss", "lost", "other inputs or outputs.*the second has no output 'loss'"),
    ],
)
def test_another_graph_is_refused(
    before: str, after: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = onnx.parser.parse_model(GRAPH.replace(before, after))
    monkeypatch.setattr(room, "cleaned_up", lambda *_, **__: other)
    with pytest.raises(CheckFailedError, match=says):
        simplify(onnx.parser.parse_model(GRAPH))


def test_no_room_for_a_temporary_file_is_not_a_model_that_is_refused() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(UsageError, match="temporary file cannot be written"):
            simplify(onnx.parser.parse_model(GRAPH))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_command_plans_what_is_left(tmp_path: Path) -> None:
    fp32, mixed = tmp_path / "step.onnx", tmp_path / "mixed.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH), fp32)
    command = ["optimize", str(fp32), "-o", str(mixed), "--device", "v100", "--simplify"]
    ran = subprocess.run(
        [sys.executable, "-m", "campo_onnx", *command], capture_output=True, text=True, check=True
    )
    assert len(onnx.load(mixed).graph.node) == 2
    assert "6 nodes to 2" in ran.stderr


def test_weights_outside_the_model_are_read_and_written(tmp_path: Path) -> None:
    """As torch.onnx writes them; the mixed step has them beside itself, and computes the same."""
    model = onnx.parser.parse_model(GRAPH)
    del model.graph.input[1]
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    fp32, mixed = tmp_path / "in" / "step.onnx", tmp_path / "out" / "mixed.onnx"
    for folder in (fp32.parent, mixed.parent):
        folder.mkdir()
    onnx.save(model, fp32, save_as_external_data=True, location="w.bin", size_threshold=0)
    before = (fp32.parent / "w.bin").read_bytes()
    plan = ["--plan", str(fp32.parent / "w.bin"), "--force"]
    for more, code in ((plan, 2), ([], 0)):
        command = ["optimize", str(fp32), "-o", str(mixed), "--device", "v100", "--simplify", *more]
        ran = subprocess.run(
            [sys.executable, "-m", "campo_onnx", *command], capture_output=True, text=True, check=False
        )
        assert ran.returncode == code, ran.stderr
    written = onnx.load(mixed)
    (stored,) = [t for t in written.graph.initializer if t.name == "w"]
    assert np.array_equal(onnx.numpy_helper.to_array(stored), weights)
    assert (fp32.parent / "w.bin").read_bytes() == before
