"""The table of kernels is that of what is translated, and says what calls a library."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch")

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.torch import compiled, kernels
from campo_onnx.runtime.torch.runtime import RUNTIME
from campo_onnx.runtime.torch.traced import LIBRARY, trace
from campo_onnx.runtime.torch.translation import translate
from campo_onnx.runtime.torch.translation.table import TABLE
from tests.conftest import parse_model

BF16 = Precision.BF16


def written_out(op: OpKey) -> bool:
    """Whether ONNX defines an operator by others, which are run in its place."""
    if op.domain or not onnx.defs.has(op.op_type):
        return False
    schema = onnx.defs.get_schema(op.op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


def test_what_is_translated_is_in_the_table_and_nothing_else():
    rows = kernels.table().keys()
    translated = {op for op in TABLE if op.domain != "campo_onnx.torch"}  # written while it is translated
    assert not translated - rows
    beside = {OpKey("", "Constant"), OpKey("", "MaxPoolGrad")}  # neither is computed as it stands
    assert beside <= rows - translated
    assert not [op for op in rows - translated - beside if not written_out(op)]


def signature(op_type, **attributes):
    return make_signature(OpKey("", op_type), (), (), opset=22, attributes=attributes)


def test_products_are_native_and_all_else_is_stored_low():
    for processor in ("cpu", "cuda"):
        assert RUNTIME.support(signature("MatMul"), processor, BF16) is Support.NATIVE
        assert RUNTIME.support(signature("Exp"), processor, BF16) is Support.STORAGE
    assert RUNTIME.support(signature("MatMul"), "cpu", Precision.FP32) is Support.NATIVE
    assert RUNTIME.support(signature("Conv"), "cuda", Precision.FP16) is Support.NATIVE
    assert RUNTIME.support(signature("Conv"), "cpu", Precision.FP16) is Support.REFUSED
    assert RUNTIME.support(signature("Frobnicate"), "cpu", Precision.FP32) is Support.REFUSED
    assert RUNTIME.support(signature("Exp"), "intel_gpu", BF16) is Support.REFUSED


@pytest.mark.parametrize(
    "graph",
    [
        "agraph (bfloat16[4,4] a, bfloat16[4,4] b) => (bfloat16[4,4] c) { c = MatMul (a, b) }",
        "agraph (bfloat16[2,4,4] a, bfloat16[2,4,4] b) => (bfloat16[2,4,4] c) { c = MatMul (a, b) }",
        "agraph (bfloat16[4,4] a, bfloat16[4,4] b) => (bfloat16[4,4] c) { c = Gemm (a, b) }",
        "agraph (bfloat16[1,2,4,4] a, bfloat16[3,2,3,3] b) => (bfloat16[1,3,2,2] c) { c = Conv (a, b) }",
        "agraph (bfloat16[1,3,2,2] a, bfloat16[3,2,3,3] b) => (bfloat16[1,2,4,4] c) "
        "{ c = ConvTranspose (a, b) }",
        "agraph (bfloat16[4,4] a, bfloat16[4,4] b) => (bfloat16[4,4] c) { c = Einsum "
        '<equation = "ij,jk->ik"> (a, b) }',
    ],
)
def test_native_operators_call_a_library_in_their_types(graph):
    model = parse_model(graph, 22)
    model.graph.node[0].name = "product"
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    traced = trace(translate(model), [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes])
    assert any(node.target in LIBRARY for node in traced.module.graph.nodes)
    assert traced.computes == {"product": BF16}


@pytest.mark.parametrize("processor", ["cpu", "cuda"])
def test_scatters_add_up_in_the_low_precision(processor):
    scatter = signature("ScatterElements", reduction="add")
    assert RUNTIME.sums_low(scatter, processor, BF16)
    assert not RUNTIME.sums_low(scatter, processor, Precision.FP32)
    assert not RUNTIME.sums_low(signature("ScatterElements"), processor, BF16)
    assert not RUNTIME.sums_low(signature("ReduceSum"), processor, BF16)
    assert not RUNTIME.sums_low(signature("CumSum"), processor, BF16)


@pytest.mark.parametrize(
    ("graph", "adds_low"),
    [
        ('y = ScatterElements <axis = 0, reduction = "add"> (z, i, x)', True),
        ("y = ReduceSum <keepdims = 1> (x)", False),
        ("last = CumSum (x, k) y = Slice (last, from, to)", False),
    ],
)
def test_sums_are_accumulated_as_the_table_says(graph, adds_low, monkeypatch):
    """Of 2,000 ones a sum in BF16 is 256."""
    monkeypatch.setattr(compiled, "_eager", lambda *_, **__: "")
    text = f"""agraph (bfloat16[2000] x, bfloat16[1] z, int64[2000] i) => (bfloat16[1] y)
      <int64 k = {{0}}, int64[1] from = {{1999}}, int64[1] to = {{2000}}> {{ {graph} }}"""
    model = parse_model(text, 22)
    low = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    feeds = {"x": np.ones(2000).astype(low), "z": np.zeros(1).astype(low), "i": np.zeros(2000, np.int64)}
    total = float(RUNTIME.load(model, "cpu", threads=1).run(feeds)["y"][0])
    assert total == (256 if adds_low else 2000)


def test_no_node_of_a_step_with_constants_is_refused() -> None:
    view = import_model(Path(__file__).parents[2] / "data" / "mlp.onnx").view
    assert any(node.op == OpKey("", "Constant") for node in view.nodes)
    refused = [
        node.name
        for node in view.nodes
        if RUNTIME.support(view.signature(node.name), "cpu", Precision.FP32) is Support.REFUSED
    ]
    assert refused == []
