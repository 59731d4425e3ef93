"""Which inputs and outputs change type with a node."""

import numpy as np
import onnx
import pytest

from campo_onnx import Options, oplists, target
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import NO_FP32, Ports, low_attribute
from campo_onnx.ops.precision import Precision
from campo_onnx.planning.pipeline import problem_of


@pytest.fixture
def ports(model_text):
    """Find the ports of the node called ``n``."""

    def ports_of_n(graph, opset=20, precision=Precision.FP16):
        view = import_model(model_text(graph, opset)).view
        return ports_of(view.signature("n"), precision)

    return ports_of_n


def low(inputs, outputs, attribute=None):
    return Ports(low_inputs=frozenset(inputs), low_outputs=frozenset(outputs), attribute=attribute)


XY = "g (float[2,4] x) => (float[2,4] y)"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (f"{XY} {{ [n] y = Add(x, x) }}", low((0, 1), (0,))),
        # statistics of LayerNormalization have a type of their own
        (
            "g (float[2,4] x, float[4] s, float[4] b) => (float[2,4] y, float[2,1] m, float[2,1] v)"
            "{ [n] y, m, v = LayerNormalization(x, s, b) }",
            low((0, 1, 2), (0,)),
        ),
        # scales of Resize stay FP32, the omitted roi has no type
        (
            "g (float[1,1,2,2] x, float[4] s) => (float[1,1,4,4] y) { [n] y = Resize(x, , s) }",
            low((0,), (0,)),
        ),
        (
            "g (float[4] x, float r, bool t) => (float[4] y, bool[4] m) { [n] y, m = Dropout(x, r, t) }",
            low((0,), (0,)),
        ),
        ("g (float[4] x, float[4] e) => (float[4] y) { [n] y = Pow(x, e) }", low((0,), (0,))),
        ("g (bool[4] c, float[4] x) => (float[4] y) { [n] y = Where(c, x, x) }", low((1, 2), (0,))),
        ("g (float[4] x, int64[2] s) => (float[2,2] y) { [n] y = Reshape(x, s) }", low((0,), (0,))),
        (
            "g (float[4] x) => (float[2] a, float[2] b) { [n] a, b = Split<num_outputs = 2>(x) }",
            low((0,), (0, 1)),
        ),
        ("g (float[4] x) => (float[12] y) { [n] y = Concat<axis = 0>(x, x, x) }", low((0, 1, 2), (0,))),
        ("g (float[4] x) => (bool[4] y) { [n] y = Less(x, x) }", low((0, 1), ())),
        (
            "g (float[4] x) => (float[2] v, int64[2] i) <int64[1] k = {2}> { [n] v, i = TopK(x, k) }",
            low((0,), (0,)),
        ),
        # LSTM: the omitted outputs are skipped
        (
            "g (float[1,1,2] x, float[1,8,2] w, float[1,8,2] r) => (float[1,1,2] c)"
            '{ [n] "", "", c = LSTM<hidden_size = 2>(x, w, r) }',
            low((0, 1, 2), (2,)),
        ),
    ],
    ids=lambda value: "" if isinstance(value, Ports) else value[value.index("[n]") :],
)
def test_ports_follow_the_data_s_type_variable(ports, graph, expected):
    assert ports(graph) == expected


def test_batch_normalization_for_inference_is_of_one_type_throughout(ports):
    graph = """g (float[1,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[1,2,3] y) {
        [n] y = BatchNormalization(x, s, b, m, v)
    }"""
    assert ports(graph) == low(range(5), (0,))


def test_batch_normalization_in_training_stays_fp32(ports):
    graph = """g (float[1,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v)
        => (float[1,2,3] y, float[2] m2, float[2] v2) {
        [n] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    }"""
    assert "trains in FP32" in str(ports(graph).refusal)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("e = RandomUniform<shape = [2, 4]>()", low((), (0,), "dtype")),
        ("e = RandomNormal<shape = [2, 4], dtype = 1>()", low((), (0,), "dtype")),
        # without dtype these take the type of their input: both change, or neither
        ("e = RandomUniformLike(x)", low((0,), (0,), "dtype")),
        ("e = Bernoulli(x)", low((0,), (0,), "dtype")),
        ("e = EyeLike(x)", low((0,), (0,), "dtype")),
        ("e = ConstantOfShape(s)", low((), (0,), "value")),
    ],
)
def test_sources_state_their_type(ports, body, expected):
    graph = f"{XY} <int64[2] s = {{2, 4}}> {{ [n] {body} y = Add(x, e) }}"
    assert ports(graph) == expected


def test_a_source_needs_a_variant_in_the_low_precision(ports):
    graph = f"{XY} {{ [n] e = RandomUniform<shape = [2, 4]>() y = Add(x, e) }}"
    assert (
        str(ports(graph, precision=Precision.BF16).refusal)
        == "RandomUniform has no bf16 variant in this opset"
    )
    assert not ports(graph, 22, Precision.BF16).refusal


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("i = Cast<to = 9>(x) [n] y = Cast<to = 1>(i)", low((), (0,), "to")),
        ("[n] i = Cast<to = 9>(x) y = Cast<to = 1>(i)", low((0,), ())),
    ],
)
def test_casts_between_truth_values_and_fp32(ports, body, expected):
    assert ports(f"{XY} {{ {body} }}") == expected


@pytest.mark.parametrize("to", [10, 16])
def test_an_existing_change_of_precision_is_left(ports, to):
    graph = f"{XY} {{ [n] h = Cast<to = {to}>(x) y = Cast<to = 1>(h) }}"
    assert str(ports(graph).refusal) == "an existing change of precision"


def test_integers_become_fp32_only(ports):
    graph = "g (int64[4] x) => (float[4] y) { [n] y = Cast<to = 1>(x) }"
    assert "may not hold" in str(ports(graph).refusal)


@pytest.mark.parametrize(("op", "result"), [("Shape", "int64[1]"), ("Size", "int64")])
def test_readers_of_shapes_take_what_is_there(ports, op, result):
    node_ports = ports(f"g (float[4] x) => ({result} y) {{ [n] y = {op}(x) }}")
    assert node_ports.any_inputs == {0}
    assert node_ports.refusal


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (
            "g (float[2] x, bool c) => (float[2] y) { [n] y = If (c) <then_branch = t () => (float[2] o)"
            "{ o = Neg(x) }, else_branch = e () => (float[2] p) { p = Identity(x) }> }",
            "control flow",
        ),
        (
            "g (float[2] x) => (float[4] y)"
            "{ [n] s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(s) }",
            "not a tensor",
        ),
        (
            "g (float[2] x) => (float[4] y)"
            "{ s = SequenceConstruct(x, x) [n] y = ConcatFromSequence<axis = 0>(s) }",
            "not a tensor",
        ),
        ("g (float[2] x) => (float[2] y) { [n] y = com.microsoft.Mystery(x) }", "no schema"),
        ("g (float[2] x) => (float[2] y) <float[2] y> { [n] y = com.microsoft.YieldOp(x) }", "boundary"),
    ],
)
def test_what_cannot_be_low_says_why(ports, graph, why):
    node_ports = ports(graph)
    assert why in str(node_ports.refusal)
    assert not node_ports.low_inputs | node_ports.low_outputs


def test_a_node_without_fp32_has_no_precision(ports):
    assert (
        ports("g (int64[2] x, float[2] f) => (int64[2] y, float[2] u) { [n] y = Neg(x) u = Neg(f) }")
        == NO_FP32
    )


def test_an_opset_without_the_variant(ports):
    graph = "g (float[4] x, float[1] s, int8[1] z) => (int8[4] y) { [n] y = QuantizeLinear(x, s, z) }"
    assert "no fp16 variant" in str(ports(graph, 13).refusal)
    assert not ports(graph, 19).refusal


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        # the gradient of Gather: shape and indices are integers, the gradient is the third
        (
            "g (int64[2] s, int64[3] i, float[3,4] dy) => (float[8,4] dx)"
            "{ [n] dx = com.microsoft.GatherGrad<axis = 0>(s, i, dy) }",
            low((2,), (0,)),
        ),
        # mean and inverse deviation of LayerNormalizationGrad stay FP32
        (
            "g (float[2,4] dy, float[2,4] x, float[4] s, float[2,1] m, float[2,1] v)"
            "=> (float[2,4] dx, float[4] ds, float[4] db)"
            "{ [n] dx, ds, db = com.microsoft.LayerNormalizationGrad(dy, x, s, m, v) }",
            low((0, 1, 2), (0, 1, 2)),
        ),
        (
            "g (float[1,1,4,4] dy, float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,3,3] dw)"
            '{ [n] "", dw = com.microsoft.ConvGrad<pads = [1,1,1,1]>(dy, x, w) }',
            low((0, 1, 2), (1,)),
        ),
        (
            "g (float[4] dy, bool[4] m, float r, bool t) => (float[4] dx)"
            "{ [n] dx = com.microsoft.DropoutGrad(dy, m, r, t) }",
            low((0,), (0,)),
        ),
        (
            "g (float[1,1,2,2] dy, int64[1,1,2,2] i) => (float[1,1,4,4] dx) { [n] dx = MaxPoolGrad(dy, i) }",
            low((0,), (0,)),
        ),
    ],
)
def test_training_operators(ports, graph, expected):
    assert ports(graph) == expected


def test_the_low_attribute(model_text):
    view = import_model(
        model_text(f"""{XY} <int64[2] s = {{2, 4}}> {{
            [a] e = ConstantOfShape<value = float[1] {{2.5}}>(s) [b] f = ConstantOfShape(s)
            [c] r = RandomUniform<shape = [2, 4]>() h = Add(e, f) y = Add(h, r)
        }}""")
    ).view

    def value(name):
        signature = view.signature(name)
        ports = ports_of(signature, Precision.FP16)
        return low_attribute(signature.attributes.get(ports.attribute), ports, Precision.FP16)

    filled = onnx.numpy_helper.to_array(value("a"))
    assert filled.dtype == np.float16
    assert filled.tolist() == [2.5]
    assert onnx.numpy_helper.to_array(value("b")).tolist() == [0.0]
    assert value("c") == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        # the output has the type of the scale
        (
            "g (float[2,4] x, float[4] s) => (float[2,4] y) { [n] y = RMSNormalization(x, s) }",
            low((0, 1), (0,)),
        ),
        # keys and values, cached ones too, and an additive mask
        (
            "g (float[1,1,2,4] q, float[1,1,2,4] k, float[1,1,2,4] v, float[2,4] m, float[1,1,2,4] pk, "
            "float[1,1,2,4] pv) => (float[1,1,2,4] y, float[1,1,4,4] nk, float[1,1,4,4] nv) "
            "{ [n] y, nk, nv = Attention(q, k, v, m, pk, pv) }",
            low((0, 1, 2, 3, 4, 5), (0, 1, 2)),
        ),
        # a mask of truth values is none of the data
        (
            "g (float[1,1,2,4] q, bool[2,2] m) => (float[1,1,2,4] y) { [n] y = Attention(q, q, q, m) }",
            low((0, 1, 2), (0,)),
        ),
        # the scale decides the type of what is dequantized
        (
            "g (int8[4] x, float s, int8 z) => (float[4] y) { [n] y = DequantizeLinear(x, s, z) }",
            low((1,), (0,)),
        ),
        # values, not indices
        (
            "g (float[2] i, int64[1] d, float[2] v) => (float[2,4] y) { [n] y = OneHot(i, d, v) }",
            low((2,), (0,)),
        ),
    ],
    ids=lambda value: "" if isinstance(value, Ports) else value[value.index("[n]") :],
)
def test_types_that_belong_together_change_together(ports, run, lower, model_text, graph, expected):
    assert ports(graph, 23) == expected
    mixed = lower(model_text(graph, 23)).model
    onnx.checker.check_model(mixed, full_check=True)
    if "OneHot" not in graph:  # the CPU provider has no kernel for these types, low or not
        run(mixed)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("opset", [14, 15])
def test_normalizations_that_onnx_runtime_puts_into_the_standard_domain(
    ports, run, lower, model_text, tmp_path, op, opset
):
    text = (
        f"g (float[2,4] x, float[4] s) => (float[2,4] y, float[M,N] z) "
        f"{{ [n] h, mean = {op}(x, s{', s' if op[0] == 'L' else ''}) [r] y = Relu(h) [m] z = Neg(mean) }}"
    )
    model = model_text(text, opset)
    imported = import_model(model)
    assert imported.view.tensors["h"].shape == (2, 4)
    assert imported.view.tensors["mean"].shape == (2, 1)
    inputs = (0, 1, 2) if op[0] == "L" else (0, 1)
    assert ports(text, opset) == low(inputs, (0,))
    lowered = lower(model, ["n", "r"])
    assert lowered.casts
    export_model(lowered.model, tmp_path / "mixed.onnx")
    chance = np.random.default_rng(0)
    feeds = {name: chance.standard_normal(s).astype(np.float32) for name, s in (("x", (2, 4)), ("s", (4,)))}
    for name, expected in run(model, feeds).items():
        np.testing.assert_allclose(run(lowered.model, feeds)[name], expected, atol=0.02)


def test_bf16_needs_an_opset_whose_cast_makes_it(lower, model_text):
    text = "g (float[4,4] x) => (float[4,4] y) { [n] y = com.microsoft.FusedMatMul(x, x) }"
    for opset, why in ((12, "Cast makes no bf16 in opset 12"), (13, "")):
        imported = import_model(model_text(text, opset))
        options = Options(target=target("h200"), lists=oplists("campo"), low=Precision.BF16)
        verdict = problem_of(imported, options).fixed.get("n")
        assert ("" if verdict is None else verdict.reason) == why
