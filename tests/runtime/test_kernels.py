"""The table of ONNX Runtime's kernels."""

import csv
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.ops.registry import REGISTRY
from campo_onnx.ops.spec import FixedPorts
from campo_onnx.runtime.onnxruntime import kernels
from campo_onnx.runtime.onnxruntime.kernels import has_kernel, refuses_attributes, runs

FP16, BF16 = Precision.FP16, Precision.BF16
TENSOR_CORE_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@pytest.mark.parametrize("op", TENSOR_CORE_OPS)
@pytest.mark.parametrize("opset", range(13, 23))
def test_tensor_core_operators_have_fp16_kernels_on_cuda(op, opset):
    assert has_kernel(OpKey("", op), opset, "cuda", FP16)


@pytest.mark.parametrize("op", TENSOR_CORE_OPS)
def test_the_cpu_provider_computes_products_in_fp32(op):
    assert not has_kernel(OpKey("", op), 20, "cpu", FP16)


@pytest.mark.parametrize("op", ["MatMul", "Softmax", "ReduceSum", "Erf", "Transpose"])
@pytest.mark.parametrize("precision", [FP16, BF16], ids=["fp16", "bf16"])
def test_what_is_said_to_run_on_a_cpu_runs_on_it(op, precision):
    dtype, arity = precision.onnx_dtype, 2 if op == "MatMul" else 1
    inputs = [onnx.helper.make_tensor_value_info(f"x{i}", dtype, [4, 4]) for i in range(arity)]
    output = onnx.helper.make_tensor_value_info("y", dtype, None)
    node = onnx.helper.make_node(op, [value.name for value in inputs], ["y"])
    opset = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, [output]), opset_imports=opset, ir_version=9
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    allowed = (
        pytest.raises(Exception, match="NOT_IMPLEMENTED")
        if not runs(OpKey("", op), 20, "cpu", precision)
        else nullcontext()
    )
    with allowed:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_bf16_has_fewer_kernels():
    log_softmax = OpKey("", "LogSoftmax")
    assert has_kernel(log_softmax, 20, "cuda", FP16)
    assert not has_kernel(log_softmax, 20, "cuda", BF16)


def test_an_operator_nobody_knows():
    assert not has_kernel(OpKey("my.domain", "Fancy"), 1, "cuda", FP16)
    assert not has_kernel(OpKey("", "MatMul"), 20, "tpu", FP16)


def test_training_kernels_are_cuda_only():
    gradient = OpKey("com.microsoft", "ConvGrad")
    assert has_kernel(gradient, 1, "cuda", FP16)
    assert not has_kernel(gradient, 1, "cuda", BF16)
    assert not has_kernel(gradient, 1, "cpu", FP16)


def test_a_missing_kernel_keeps_a_node_fp32_and_says_so(model_text):
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.lists.oplists import preset
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import problem_of
    from campo_onnx.targets.target import target

    model = model_text("""g (float[8,8] x, float[8,8] w) => (float[8,8] y) {
        h = MatMul(x, w) [soft] s = LogSoftmax(h) y = MatMul(s, w)
    }""")
    for precision, expected in ((BF16, "the cuda provider has no bf16 kernel for LogSoftmax"), (FP16, None)):
        options = Options(target=target("h200"), lists=preset("campo"), low=precision)
        verdict = problem_of(import_model(model), options).fixed.get("soft")
        assert (verdict and verdict.reason) == expected


def test_operators_of_the_training_build_have_kernels_but_for_one():
    # Release 1.19.2 crashes on loading a graph with a low MaxPoolGrad.
    without_schema = [key for key, spec in REGISTRY.specs.items() if isinstance(spec.ports, FixedPorts)]
    without_kernel = [key for key in without_schema if not has_kernel(key, 1, "cuda", FP16)]
    assert without_kernel == [OpKey("", "MaxPoolGrad")]


def test_every_row_names_a_provider_a_range_of_opsets_and_each_format():
    table = Path(kernels.__file__).with_name("kernels.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    for row in rows:
        assert row["provider"] in ("cuda", "cpu")
        assert int(row["since"]) <= int(row["until"] or row["since"])
        assert {row[precision.value] for precision in low_precisions()} <= {"0", "1"}


@pytest.mark.parametrize(
    ("op", "reduction"), [("ScatterND", "add"), ("ScatterElements", "add"), ("ScatterND", "none")]
)
def test_reductions_that_the_cpu_provider_has_no_kernel_for(model_text, lower, run, op, reduction):
    index = "int64[1,1]" if op == "ScatterND" else "int64[1,2]"
    text = (
        f"g (float[2,2] x, {index} i, float[1,2] u) => (float[2,2] y) "
        f'{{ [n] y = {op}<reduction = "{reduction}">(x, i, u) }}'
    )
    signature = import_model(model_text(text, 18)).view.signature("n")
    assert refuses_attributes(signature, "cpu") == (reduction != "none")
    assert not refuses_attributes(signature, "cuda")
    feeds = {"x": np.ones((2, 2), np.float32), "u": np.ones((1, 2), np.float32)}
    feeds["i"] = np.zeros((1, 1) if op == "ScatterND" else (1, 2), np.int64)
    mixed = lower(model_text(text, 18)).model
    if reduction == "none":
        run(mixed, feeds)
    else:
        with pytest.raises(Exception, match="MLFloat16 data type is not supported"):
            run(mixed, feeds)
