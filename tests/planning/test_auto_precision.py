"""The choice of a low precision: by what survives, then by time, and always with a reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from campo_onnx_cli.main import app
from onnx import numpy_helper
from typer.testing import CliRunner

from campo_onnx import Device, Options, device, oplists, optimize_model
from campo_onnx.ops.precision import Precision
from campo_onnx.planning.auto_precision import choose_precision


def chain(*, scaled: bool, constant: float = 1.0) -> onnx.ModelProto:
    """A loss of two large products and its gradient by the first weight; with a loss scale or without."""
    scale, seed = ("float loss_scale, ", "loss_scale") if scaled else ("", "one")
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    g ({scale}float[2048,2048] x, float[2048,2048] w) => (float loss, float[2048,2048] grad)
    <float one = {{1.0}}, float many = {{4194304.0}}> {{
        h = MatMul (x, w)
        k = Mul (h, constant)
        r = Relu (k)
        a = MatMul (r, x)
        loss = ReduceMean <keepdims = 0> (a)
        s = Div ({seed}, many)
        sizes = Shape (a)
        da = Expand (s, sizes)
        xt = Transpose <perm = [1, 0]> (x)
        dr = MatMul (da, xt)
        {"up" if scaled else "grad"} = MatMul (xt, dr)
        {"grad = Div (up, loss_scale)" if scaled else ""}
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array(constant, np.float32), "constant"))
    return model


def options(figures: str | Device = "a100") -> Options:
    found = device(figures) if isinstance(figures, str) else figures
    return Options(device=found, lists=oplists("campo"))


def test_without_a_loss_scale_bf16_is_taken() -> None:
    choice = choose_precision(chain(scaled=False), options())
    assert choice.low is Precision.BF16
    assert "does not scale its loss" in choice.why
    assert choice.plans[Precision.FP16].low_nodes


def test_with_a_loss_scale_the_finer_one_is_taken_where_both_are_as_fast() -> None:
    choice = choose_precision(chain(scaled=True), options())
    assert choice.low is Precision.FP16
    assert "rounds finer" in choice.why
    assert choice.plans[Precision.FP16].low_nodes
    assert choice.plans[Precision.BF16].low_nodes


def test_the_faster_one_is_taken_where_times_differ() -> None:
    # 1e30 has no place in FP16: what meets it stays FP32 there.
    choice = choose_precision(chain(scaled=True, constant=1e30), options())
    assert choice.low is Precision.BF16
    assert "faster" in choice.why
    assert choice.plans[Precision.BF16].predicted_us < choice.plans[Precision.FP16].predicted_us


@pytest.mark.parametrize(("name", "words"), [("v100", "only low precision"), ("k80", "computes in none")])
def test_a_device_may_leave_no_choice(name: str, words: str) -> None:
    figures = device("v100")
    if name == "k80":
        figures = replace(figures, name=name, fp16_tensor_flops_per_s=None, fp16_flops_per_s=None)
    choice = choose_precision(chain(scaled=False), options(figures))
    assert choice.low is Precision.FP16
    assert words in choice.why


def test_where_nothing_pays_that_is_said() -> None:
    tiny = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[4,4] x) => (float[4,4] y) { y = MatMul (x, x) }"""
    )
    assert "FP32 stays" in choose_precision(tiny, options()).why


def test_a_result_keeps_its_precision() -> None:
    mixed = optimize_model(chain(scaled=True), replace(options(), low=Precision.BF16)).model
    assert choose_precision(mixed, options()).low is Precision.BF16


def test_the_command_says_what_was_chosen(tmp_path: Path) -> None:
    given, out = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(chain(scaled=False), given)
    words = ["optimize", str(given), "-o", str(out), "--device", "a100", "--precision", "auto"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "BF16 was chosen. The graph does not scale its loss" in " ".join(answer.output.split())
    types = {info.type.tensor_type.elem_type for info in onnx.load(out).graph.value_info}
    casts = {a.i for n in onnx.load(out).graph.node if n.op_type == "Cast" for a in n.attribute}
    assert onnx.TensorProto.BFLOAT16 in casts | types
