"""Names, interfaces and batch sizes of the graphs to time."""

from pathlib import Path

import pytest

from campo_onnx.bench.graphs import Graph, batch_size, check_same_interface, distinct_names, read_graphs
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
RELU = "g (float[2, 3] x, float[3] w) => (float[2, 3] y) { z = Relu(x) y = Add(z, w) }"


@pytest.fixture
def graph(model_text):
    def make(text: str, name: str = "a") -> Graph:
        return Graph(name=name, imported=import_model(model_text(text)))

    return make


def test_a_file_twice_has_two_names() -> None:
    first, second = read_graphs([MLP, MLP])
    assert (first.name, second.name) == ("mlp", "mlp (2)")


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.onnx"], ("a",)),
        (["x/a.onnx", "x/b.onnx"], ("a", "b")),
        (["x/a.onnx", "y/a.onnx", "y/b.onnx"], ("x/a", "y/a", "b")),
        (["x/a.onnx", "x/z/a.onnx"], ("x/a", "z/a")),
        (["/a.onnx", "/x/a.onnx", "/a.onnx"], ("/a", "x/a", "/a (2)")),
        (["a.v2.onnx", "a.v3.onnx"], ("a.v2", "a.v3")),
    ],
)
def test_names_are_as_short_as_they_can_be(paths, names) -> None:
    assert distinct_names([Path(path) for path in paths]) == names


def test_order_of_inputs_does_not_matter(graph) -> None:
    other = RELU.replace("float[2, 3] x, float[3] w", "float[3] w, float[2, 3] x")
    check_same_interface([graph(RELU), graph(other, "b")])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "float[3] w) => (float[2, 3] y) { z = Relu(x) y = Add(z, w)",
            "float[3] v) => (float[2, 3] y) { z = Relu(x) y = Add(z, v)",
            "the second has no input 'w'",
        ),
        ("float[3] w", "float[3] w, float[1] extra", "the first has no input 'extra'"),
        ("2, 3", "4, 3", r"input 'x' is float32\[2, 3\] in the first and float32\[4, 3\] in the second"),
        ("=> (float[2, 3] y)", "=> (float[2, 3] y, float[2, 3] z)", "the first has no output 'z'"),
    ],
)
def test_the_first_difference_is_named(graph, old, new, message) -> None:
    changed = RELU.replace(old, new)
    with pytest.raises(UsageError, match=message):
        check_same_interface([graph(RELU), graph(RELU, "b"), graph(changed, "c")])


def test_another_type_is_a_difference(graph) -> None:
    double = RELU.replace("float[3] w", "float16[3] w").replace("Add(z, w)", "Add(z, v)")
    double = double.replace("z = Relu", "v = Cast<to = 1>(w) z = Relu")
    with pytest.raises(UsageError, match=r"float32\[3\] in the first and float16\[3\] in the second"):
        check_same_interface([graph(RELU), graph(double, "b")])


def test_two_graphs_of_one_name_are_refused(graph) -> None:
    with pytest.raises(UsageError, match="the same name"):
        check_same_interface([graph(RELU), graph(RELU)])
    with pytest.raises(UsageError, match="no graph"):
        check_same_interface([])


STEP = """
    g (float[3, 1] param_w, float lr, float[{rows}, 3] x, float[{labels}, 1] t)
        => (float[3, 1] new_w, float loss) {{
        y = MatMul(x, param_w)
        s = ReduceMean<keepdims = 0>(y)
        u = ReduceMean<keepdims = 0>(t)
        loss = Sub(s, u)
        d = Mul(loss, lr) new_w = Sub(param_w, d) }}"""


def renamed(model):
    """ONNX's text form has no dots in names."""
    names = {"param_w": "param.w", "new_w": "new.w"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(t, t) for t in node.input]
        node.output[:] = [names.get(t, t) for t in node.output]
    return model


@pytest.mark.parametrize(("rows", "labels", "batch"), [(4, 4, 4), (4, 8, None)])
def test_batch_is_what_all_feeds_share(model_text, rows, labels, batch) -> None:
    model = renamed(model_text(STEP.format(rows=rows, labels=labels)))
    assert batch_size(Graph(name="step", imported=import_model(model))) == batch


def test_no_batch_without_state(graph) -> None:
    assert batch_size(graph(RELU)) is None
