"""Kinds of graphs, by structure: names are changed, and inference graphs look like training."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.graph_kind import Form, GraphKind, Storage, graph_kind
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks" / "data"


def kind_of(model, dims=None) -> GraphKind:
    return graph_kind(import_model(model, dims).view)


def anonymous(path) -> onnx.ModelProto:
    """The same graph with no name that says anything."""
    model = onnx.load(path)
    graph = model.graph
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"t{len(names)}") if name else ""

    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed(value.name)
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    return model


STEPS = {
    DATA / "mlp.onnx": (Form.GRADIENTS, False),
    DATA / "resblocks.onnx": (Form.GRADIENTS, False),
    DATA / "alexnet_like.onnx": (Form.GRADIENTS, False),
    DATA / "bert2_mlm_sdpa.onnx": (Form.GRADIENTS, False),
    DATA / "frameworks" / "cnn_jax.onnx": (Form.GRADIENTS, False),
    BENCHMARKS / "mlp_step.onnx": (Form.STEP, True),
    BENCHMARKS / "cnn_step.onnx": (Form.STEP, True),
    BENCHMARKS / "transformer_step.onnx": (Form.STEP, True),
}


@pytest.mark.parametrize(("path", "expected"), STEPS.items(), ids=[path.stem for path in STEPS])
def test_training_is_recognized_without_names(path, expected, dims_of):
    for model in (onnx.load(path), anonymous(path)):
        kind = kind_of(model, dims_of(path))
        assert (kind.form, kind.scales_loss) == expected
        assert kind.trains


@pytest.mark.parametrize("name", ["bert_optimized_training", "cnn_optimized_training"])
def test_a_framework_scales_what_it_hands_in_or_not(name, dims_of):
    kind = kind_of(DATA / f"{name}.onnx", dims_of(DATA / f"{name}.onnx"))
    assert (kind.form, kind.scales_loss) == (Form.GRADIENTS, None)


def test_one_trained_adapter_beside_frozen_weights():
    """Two outputs of forty weights: too few to go by shapes, but their products read what the weights' do."""
    model = anonymous(DATA / "resblocks.onnx")
    gradients = [v for v in model.graph.output if len(v.type.tensor_type.shape.dim) > 1]
    for value in gradients[2:]:
        model.graph.output.remove(value)
    assert kind_of(model).form is Form.GRADIENTS


INFERENCE = {
    "an autoencoder": """agraph (float[8, 32] x) => (float[8, 32] y) <float[32, 4] w, float[4, 32] v>
        { h = MatMul(x, w) a = Relu(h) b = MatMul(a, v) y = Sigmoid(b) }""",
    "a denoiser": """agraph (float[8, 32] x) => (float[8, 32] y) <float[32, 32] w>
        { h = MatMul(x, w) a = Relu(h) y = Sub(x, a) }""",
    "one number": """agraph (float[1, 32] x) => (float[1, 1] y) <float[32, 1] w>
        { h = MatMul(x, w) y = Exp(h) }""",
    "tied weights": """agraph (float[8, 32] x) => (float[8, 32] y) <float[32, 4] w>
        { h = MatMul(x, w) t = Transpose<perm=[1, 0]>(w) y = MatMul(h, t) }""",
}
SQUARE = """agraph (float[32, 32] x) => (float[32, 32] y) <float[32, 32] w, float[32, 32] v>
    { h = MatMul(x, w) a = Relu(h) y = MatMul(a, v) }"""


def with_weights(text, model_text):
    """Parse a graph whose constants are random."""
    head, _, rest = text.partition("<")
    declared, _, body = rest.partition(">")
    model = model_text(head + body)
    for entry in declared.split(", float"):
        shape, _, name = entry.removeprefix("float").partition("] ")
        sizes = [int(size) for size in shape.strip("[").split(",")]
        values = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name.split()[0]))
    return model


@pytest.mark.parametrize("text", INFERENCE.values(), ids=INFERENCE)
def test_inference_that_looks_like_training(text, model_text):
    kind = kind_of(with_weights(text, model_text))
    assert (kind.form, kind.has_nothing_to_protect) == (Form.INFERENCE, True)
    assert "no loss to protect" in kind.told
    assert "training step" not in kind.told


def test_an_output_of_a_weights_shape_leaves_a_doubt(model_text):
    kind = kind_of(with_weights(SQUARE, model_text))
    assert (kind.form, kind.has_nothing_to_protect) == (Form.INFERENCE, False)
    assert "no loss to protect" not in kind.told


def test_nothing_of_an_inference_graph_is_called_a_loss_or_an_update(model_text):
    model = with_weights(INFERENCE["a denoiser"], model_text)
    plan = optimize(model, Options(target=target("v100"), lists=preset("tf115"), strategy="tf-amp")).plan
    assert plan.low_nodes
    assert not {"loss", "weight update"} & {d.decided_by.value for d in plan.decisions}


def test_an_update_alone(model_text):
    kind = kind_of(
        model_text("""agraph (float[32, 4] w, float[32, 4] g, float lr) => (float[32, 4] new)
            { s = Mul(g, lr) new = Sub(w, s) }""")
    )
    assert (kind.form, kind.scales_loss) == (Form.UPDATE, None)


def test_precisions(model_text):
    half = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT16)
    assert half == np.float16
    low = "agraph (float16[8, 32] x, float16[32, 4] w) => (float16[8, 4] y) { y = MatMul(x, w) }"
    assert graph_kind(import_model(model_text(low), any_type=True).view).storage is Storage.LOW
    mixed = """agraph (float[8, 32] x, float[32, 4] w) => (float[8, 4] y)
        { a = Cast<to=10>(x) b = Cast<to=10>(w) h = MatMul(a, b) c = Cast<to=1>(h) y = Exp(c) }"""
    assert kind_of(model_text(mixed)).storage is Storage.MIXED
    quantized = """agraph (float[8, 32] x, float s, uint8 z) => (float[8, 32] y)
        { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    assert kind_of(model_text(quantized)).storage is Storage.QUANTIZED


def test_titles():
    assert (
        GraphKind(form=Form.STEP, scales_loss=True).title == "whole training step in FP32, with a loss scale"
    )
    kind = GraphKind(form=Form.INFERENCE, storage=Storage.QUANTIZED, may_train=False)
    assert kind.title == "inference graph, quantized"
    result = GraphKind(form=Form.STEP, storage=Storage.MIXED, is_result=True)
    assert result.told == "Whole training step mixed already, a result of campo-onnx."
