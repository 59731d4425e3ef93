"""A low precision that a runtime does not compute in is refused, with the reason, before anything is done."""

import pytest

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.errors import UsageError
from campo_onnx.runtime.registry import check_precision, default_precision
from tests.conftest import DATA

CPU = target("cpu_bf16", "openvino")


def test_openvino_refuses_fp16_and_says_why() -> None:
    with pytest.raises(UsageError, match=r"openvino does not compute in fp16.*without rounding.*Choose bf16"):
        optimize_model(DATA / "mlp.onnx", Options(target=CPU, lists=oplists("campo")))
    assert not CPU.computes_in(Precision.FP16)
    assert CPU.computes_in(Precision.BF16)
    plan = optimize_model(
        DATA / "mlp.onnx", Options(target=CPU, lists=oplists("campo"), low=Precision.BF16)
    ).plan
    assert plan.low is Precision.BF16


def test_each_runtime_has_a_precision_where_none_is_named() -> None:
    assert default_precision("openvino") is Precision.BF16
    assert default_precision() is Precision.FP16
    check_precision(Precision.FP16)
    with pytest.raises(UsageError, match="unknown runtime"):
        check_precision(Precision.FP16, "cuda")


@pytest.mark.parametrize("command", ["optimize", "compare", "calibrate"])
def test_one_message_at_the_command_line(program, capsys, tmp_path, command) -> None:
    target = tmp_path / "out"
    words = {
        "optimize": [str(DATA / "mlp.onnx"), "-o", str(target)],
        "compare": [str(DATA / "mlp.onnx")],
        "calibrate": ["--quick", "-o", str(target)],
    }[command]
    assert program(command, *words, "--runtime", "openvino", "--precision", "fp16") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("error: openvino does not compute in fp16: its plugin for CPUs takes FP16 types")
    assert error.endswith("Choose bf16: --precision bf16, or low=Precision.BF16.")
    assert not target.exists()


@pytest.mark.parametrize("words", [[], ["--precision", "auto"]])
def test_bf16_is_planned_where_nothing_is_named(program, capsys, tmp_path, words) -> None:
    model = str(DATA / "mlp.onnx")
    options = ["--device", "zen5", "--runtime", "openvino", "--costs", "datasheet", "--dry-run", *words]
    assert program("optimize", model, *options) == 0
    assert "lists campo, bf16" in capsys.readouterr().out
