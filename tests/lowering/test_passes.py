"""Each pass on small graphs: what it writes, and that it computes the same."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.convolutions.passes import convolutions
from campo_onnx.lowering.data_gradients import data_gradients
from campo_onnx.lowering.dropout import dropout
from campo_onnx.lowering.max_pool import max_pool
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.raise_opset import raise_opset
from campo_onnx.lowering.sign_masks import sign_masks
from campo_onnx.lowering.zero_padding import zero_padding
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.signature import make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.registry import temporary_runtime
from campo_onnx.targets.target import target

CUDA = Place(target=target("v100"))
CPU = Place(target=target("cpu"))
OPENVINO = Place(target=target("cpu", "openvino"))
PLACES = {"cuda": CUDA, "cpu": CPU, "openvino": OPENVINO}
PASSES = {
    rule.__name__: rule for rule in (data_gradients, dropout, max_pool, raise_opset, sign_masks, zero_padding)
}
PAIRS = [
    pair.strip().split("\n", 1)
    for pair in (Path(__file__).parent / "fixtures" / "passes.txt").read_text().split("\n\n\n")
]


@dataclass(frozen=True)
class Plugin:
    """Answers of OpenVINO to passes, where its folder is not there to give them."""

    name: str = "openvino"
    processors: tuple[str, ...] = ("cpu",)

    def support(self, signature, processor, precision):
        trains = signature.op.op_type == "Dropout" and signature.constants.get(2, False)
        return Support.REFUSED if trains else Support.NATIVE


@pytest.fixture(autouse=True)
def openvino():
    with temporary_runtime(Plugin()):
        yield


def parsed(graph, opset=20):
    return import_model(parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {graph}'))


def printed(model):
    """The nodes of a graph, one a line, with the values of its constants."""
    lines = [f"opset {model.opset_import[0].version}"]
    constants = ((tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    lines += [f"{name} = {array.tolist()}" for name, array in constants]
    for node in model.graph.node:
        settings = ", ".join(
            f"{a.name}={onnx.helper.get_attribute_value(a)}"
            for a in sorted(node.attribute, key=lambda a: a.name)
        )
        outputs, inputs = ", ".join(node.output), ", ".join(node.input)
        lines.append(f"{outputs} = {node.op_type}({inputs})" + (f" <{settings}>" if settings else ""))
    return "\n".join(lines)


@pytest.mark.parametrize(("title", "pair"), PAIRS, ids=[title for title, _ in PAIRS])
def test_a_pass_writes(title, pair):
    rule, place = title.removeprefix("# ").split(":")[0].split(" for ")
    text, expected = pair.split("\n=>\n")
    imported = parsed(text)
    assert printed(PASSES[rule](imported, PLACES[place])) == expected.strip()


@pytest.mark.parametrize(("output", "size"), [("x", 4), ("w", 2)], ids=["an input", "a constant"])
def test_convolutions_stay_in_a_graph_with_an_output_that_no_node_computes(output, size):
    imported = parsed(f"""f (float[1,1,4,4] x) => (float[1,1,3,3] y, float[1,1,{size},{size}] {output})
        <float[1,1,2,2] w = {{1, 2, 3, 4}}> {{ y = Conv(x, w) }}""")
    assert convolutions(imported, CUDA) is imported.model


def same(run, imported, rule, place, feeds, *, exact=True):
    model = rule(imported, place)
    assert model is not imported.model
    onnx.checker.check_model(model, full_check=True)
    before, after = run(imported.model, feeds), run(model, feeds)
    for name, value in before.items():
        if exact:
            np.testing.assert_array_equal(after[name], value, strict=True)
        else:
            np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-5, strict=True)


POOLS = [
    ((2, 3, 8, 8), "kernel_shape=[2,2], strides=[2,2]", (4, 4)),
    ((2, 3, 9, 7), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", (5, 4)),
    ((1, 2, 8, 6), "kernel_shape=[3,2], strides=[2,1], pads=[0,1,1,0]", (4, 6)),
    ((1, 2, 7, 7), "kernel_shape=[3,3], strides=[2,2], ceil_mode=1", (3, 3)),
    ((1, 1, 8, 8), "kernel_shape=[3,3], strides=[2,2], ceil_mode=1", (4, 4)),
    ((2, 2, 6, 6), "kernel_shape=[3,3]", (4, 4)),
    ((2, 2, 6, 6), "kernel_shape=[1,1], strides=[2,2]", (3, 3)),
]


@pytest.mark.parametrize("place", [CUDA, OPENVINO], ids=["cuda", "openvino"])
@pytest.mark.parametrize(("shape", "window", "size"), POOLS)
def test_maxima_and_their_places_are_those_of_max_pool(run, place, shape, window, size):
    image, result = ",".join(map(str, shape)), ",".join(map(str, (*shape[:2], *size)))
    imported = parsed(
        f"g (float[{image}] x) => (float[{result}] y, int64[{result}] place)"
        f" {{ y, place = MaxPool<{window}>(x) }}"
    )
    rng = np.random.default_rng(0)
    for x in (
        rng.standard_normal(shape),
        rng.integers(0, 3, shape),  # ties: the first of several maxima counts
        *([np.full(shape, -np.inf)] if place is CUDA else []),  # else MaxPool's kernel decides
    ):
        same(run, imported, max_pool, place, {"x": x.astype(np.float32)})


@pytest.mark.parametrize("place", [CUDA, OPENVINO], ids=["cuda", "openvino"])
def test_a_place_within_an_image_of_lowest_numbers_is_of_that_image(run, place):
    imported = parsed(
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] place)"
        " { y, place = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }"
    )
    model = max_pool(imported, place)
    places = run(model, {"x": np.full((1, 1, 4, 4), -np.inf, np.float32)})["place"]
    assert places.min() >= 0
    assert places.max() < 16


@pytest.mark.parametrize("window", ["kernel_shape=[2,2], dilations=[2,2]", "kernel_shape=[6,6]"])
def test_other_windows_stay(window):
    n = 6 if "dil" in window else 3
    imported = parsed(
        f"g (float[1,1,8,8] x) => (float[1,1,{n},{n}] y, int64[1,1,{n},{n}] place)"
        f" {{ y, place = MaxPool<{window}>(x) }}"
    )
    assert max_pool(imported, CUDA) is imported.model


TRANSPOSED = [
    ((2, 4, 6, 6), (4, 3, 3, 3), "pads=[1,1,1,1]", (6, 6)),
    ((2, 4, 6, 6), (4, 3, 1, 1), "strides=[1,1]", (6, 6)),
    ((2, 4, 6, 5), (4, 3, 3, 2), "pads=[0,1,1,0]", (7, 5)),
    ((2, 4, 6, 6), (4, 2, 3, 3), "group=2, pads=[1,1,1,1]", (6, 6)),
    ((2, 4, 6, 6), (4, 3, 3, 3), "dilations=[2,2], pads=[2,2,2,2]", (6, 6)),
]


@pytest.mark.parametrize(("image", "weight", "settings", "size"), TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_a_transposed_convolution_is_one_of_the_kernel_turned_round(run, image, weight, settings, size, bias):
    channels = weight[1] * (2 if "group" in settings else 1)
    shapes = {"g": image, "w": weight} | ({"b": (channels,)} if bias else {})
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    result = ",".join(map(str, (image[0], channels, *size)))
    imported = parsed(
        f"f ({inputs}) => (float[{result}] y) {{ y = ConvTranspose<{settings}>({', '.join(shapes)}) }}"
    )
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    same(run, imported, data_gradients, CUDA, feeds, exact=False)
    assert data_gradients(imported, OPENVINO) is imported.model


@pytest.mark.parametrize(
    ("settings", "size"),
    [("strides=[2,2]", 13), ("pads=[3,3,3,3]", 2), ('auto_pad="SAME_UPPER"', 6)],
)
def test_other_transposed_convolutions_stay(settings, size):
    imported = parsed(
        f"f (float[1,1,6,6] g, float[1,1,3,3] w) => (float[1,1,{size},{size}] y)"
        f" {{ y = ConvTranspose<{settings}>(g, w) }}"
    )
    assert data_gradients(imported, CUDA) is imported.model


@pytest.mark.parametrize("widths", [(0, 1, 0, 2), (2, 0, 0, 1), (0, 0, 1, 0), (1, 1, 1, 1)])
def test_zeros_are_joined_on(run, widths):
    shape = (2 + widths[0] + widths[2], 3 + widths[1] + widths[3])
    listed = ",".join(map(str, widths))
    imported = parsed(
        f"f (float[2,3] x) => (float[{shape[0]},{shape[1]}] y)"
        f" <int64[4] pads = {{{listed}}}> {{ y = Pad(x, pads) }}"
    )
    same(run, imported, zero_padding, CUDA, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


@pytest.mark.parametrize(
    ("pads", "rest", "size"),
    [("{0,1,0,-1}", "", 3), ("{0,1,0,1}", ", one", 5), ("{0,0,0,0}", "", 3)],
    ids=["crops", "pads ones", "pads nothing"],
)
def test_other_padding_stays(pads, rest, size):
    imported = parsed(
        f"f (float[2,3] x) => (float[2,{size}] y) <int64[4] pads = {pads}, float one = {{1}}>"
        f" {{ unread = Add(one, one) y = Pad(x, pads{rest}) }}"
    )
    assert zero_padding(imported, CUDA) is imported.model


@pytest.mark.parametrize("comparison", ["Greater", "LessOrEqual"])
def test_masks_of_relu_select_the_same(run, comparison):
    imported = parsed(
        "f (float[4,4] x) => (bool[2,8] mask) <float zero = {0}, int64[2] shape = {2,8}>"
        f" {{ y = Relu(x) z = Reshape(y, shape) mask = {comparison}(z, zero) }}"
    )
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    x[0, 0], x[0, 1] = 0, -0.0
    same(run, imported, sign_masks, CUDA, {"x": x})


@pytest.mark.parametrize(
    "body",
    ["mask = Greater(x, zero)", "y = Relu(x) mask = Greater(y, one)", "y = Abs(x) mask = Greater(y, zero)"],
)
def test_other_comparisons_stay(body):
    imported = parsed(
        f"f (float[4] x) => (bool[4] mask) <float zero = {{0}}, float one = {{1}}>"
        f" {{ t = Add(zero, one) {body} }}"
    )
    assert sign_masks(imported, CUDA) is imported.model


def test_dropout_draws_from_the_same_distribution(run):
    imported = parsed(
        "f (float[100,1000] x) => (float[100,1000] y, bool[100,1000] mask)"
        " <float ratio = {0.25}, bool training = {1}> { y, mask = Dropout(x, ratio, training) }"
    )
    model = dropout(imported, OPENVINO)
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((100, 1000)).astype(np.float32)
    result = run(model, {"x": x})
    np.testing.assert_allclose(result["y"], np.where(result["mask"], x / 0.75, 0), rtol=1e-6)
    assert abs(result["mask"].mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / x.size)


@pytest.mark.parametrize("inputs", ["x, ratio", "x, ratio, evaluating", "x, ratio, training"])
def test_dropout_stays_where_it_does_not_train_or_takes_all(inputs):
    imported = parsed(
        "f (float[4] x) => (float[4] y) <float ratio = {1}, bool evaluating = {0}, bool training = {1}>"
        f" {{ t = And(evaluating, training) r = Neg(ratio) y, mask = Dropout({inputs}) }}"
    )
    assert dropout(imported, OPENVINO) is imported.model


def test_an_opset_is_raised_where_every_operator_keeps_its_meaning_and_runs():
    imported = parsed("f (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { y = Conv(x, w) }")
    model = raise_opset(imported, CUDA)
    assert [entry.version for entry in model.opset_import] == [22]
    assert list(model.graph.node) == list(imported.model.graph.node)
    assert raise_opset(import_model(model), CUDA).opset_import[0].version == 22


@pytest.mark.parametrize(
    ("graph", "opset", "place", "why"),
    [
        ("f (float[2,3] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }",
         17, CUDA, "ReduceMean changed"),
        ("f (float[1,1,7,7] x) => (float[1,1,4,4] y) { y = AveragePool<kernel_shape=[2,2], strides=[2,2],"
         " ceil_mode=1>(x) }", 20, CUDA, "AveragePool changed"),
        ("f (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
         20, CUDA, "no kernel of MaxPool"),
        ("f () => (float[4] y) { y = RandomUniform<shape=[4]>() }", 20, CPU, "no kernel of RandomUniform"),
        ("f (float[4] x, bool c) => (float[4] y) { y = If(c) <then_branch = a () => (float[4] t)"
         " { t = Elu(x) }, else_branch = b () => (float[4] t) { t = Relu(x) }> }",
         20, CUDA, "no kernel of Elu"),
    ],
    ids=["an attribute became an input", "windows that reach beyond", "cuda has no max pool",
         "a cpu draws none", "in a body"],
)  # fmt: skip
def test_an_opset_stays_where_an_operator_changes_or_does_not_run(graph, opset, place, why):
    with pytest.raises(UnsupportedModelError, match=why):
        raise_opset(parsed(graph, opset), place)


@pytest.mark.parametrize("op_type", ["RandomUniform", "RandomNormal", "Multinomial"])
def test_a_cpu_refuses_what_the_table_says_it_refuses(run, op_type):
    text = {
        "RandomUniform": "y = RandomUniform<shape=[2,3]>()",
        "RandomNormal": "y = RandomNormal<shape=[2,3]>()",
        "Multinomial": "z = Multinomial(x) y = Cast<to=1>(z)",
    }[op_type]
    graph = f"f (float[2,3] x) => (float[2,{1 if op_type == 'Multinomial' else 3}] y) {{ {text} }}"
    for opset in (20, 22):
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {graph}')
        is_listed = CPU.runs(make_signature(OpKey("", op_type), (), ()), opset)
        with nullcontext() if is_listed else pytest.raises(NotImplemented, match="Could not find"):
            run(model)
        assert is_listed == (opset == 20)


def test_other_types_stay():
    imported = parsed(
        "f (double[1,1,4,4] x, float[1] f) => (double[1,1,2,2] y, int64[1,1,2,2] place, float[1] g)"
        " { g = Relu(f) y, place = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    assert max_pool(imported, CUDA) is imported.model


def test_places_do_not_depend_on_how_maxima_are_rounded(run):
    imported = parsed(
        "g (float[2,3,8,8] x) => (float[2,3,4,4] y, int64[2,3,4,4] place)"
        " { y, place = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    model = max_pool(imported, OPENVINO)
    assert [node.op_type for node in model.graph.node if "y" in node.input] == []
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    for node in list(model.graph.node):
        if node.op_type == "Max":  # what a plan may round while the slices stay FP32
            rounded = parser.parse_graph("r (float x) => (float y) { h = Cast<to=10>(x) y = Cast<to=1>(h) }")
            (down, up), output = rounded.node, node.output[0]
            node.output[0] = down.input[0] = f"{output}_exact"
            down.output[0] = up.input[0] = f"{output}_low"
            up.output[0] = output
            position = list(model.graph.node).index(node) + 1
            for each in (up, down):
                model.graph.node.insert(position, each)
    assert len(model.graph.node) > len(max_pool(imported, OPENVINO).graph.node)
    rounded, exact = run(model, feeds)["place"], run(imported.model, feeds)["place"]
    assert np.mean(rounded == exact) > 0.95
