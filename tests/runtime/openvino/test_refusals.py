"""Graphs that OpenVINO does not run, or gets wrong: one message with node, reason and remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.openvino import program as programs
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model


def load(graph):
    return RUNTIME.load(parse_model(graph, 22), "cpu")


EMPTY = "float[0,3] e) => (float[0,3] f) { f = Relu (e) }"
GATHERED = "float[4] x) => (float[0] f) <int64[0] none = {}> { f = Gather (x, none) }"


@pytest.mark.parametrize("graph", [EMPTY, GATHERED])
def test_tensors_without_elements_are_refused(graph):
    """A Gather of none gave one element, a product of none ended the process."""
    with pytest.raises(UnsupportedModelError, match=r"tensors without elements: '.*' (gives|.* reads) one"):
        load(f"agraph ({graph}")


@pytest.mark.parametrize(
    "node",
    [
        "LRN <alpha = 0.1, bias = 0.25, size = 3> (x)",
        "PRelu (x, slope)",
        "Pad <mode = 'edge'> (x, both, , axes)".replace("'", chr(34)),
    ],
)
def test_forms_that_are_computed_otherwise_are_refused(node):
    graph = f"""
    agraph (float[1,4,6,4] x, float[4] slope) => (float[1,4,N,M] y)
    <int64[2] both = {{1, 1}}, int64[1] axes = {{2}}> {{
      y = {node}
    }}
    """
    with pytest.raises(UnsupportedModelError, match="OpenVINO computes 1 node otherwise than ONNX"):
        load(graph)


WINDOW = """agraph (int64 n, bool go) => (float[8] y) <float[8] x = {1, 2, 3, 4, 5, 6, 7, 8}> {
  y = Loop (n, go, x) <body = turn (int64 i, bool on, float[8] s) => (bool so, float[8] t) {
    so = Identity (on)
    w = BlackmanWindow (eight)
    t = Mul (s, w)
  }>
}""".replace("<float", "<int64 eight = {8}, float")


@pytest.mark.parametrize("typed", ["float[8] s", "s"])
def test_forms_in_bodies_are_refused(typed):
    with pytest.raises(UnsupportedModelError, match="OpenVINO computes 1 node otherwise than ONNX"):
        load(WINDOW.replace("float[8] s)", f"{typed})"))


@pytest.mark.parametrize("constant", ["int64 n = {0}", "bool go = {0}"])
def test_a_loop_that_never_turns_is_refused(constant):
    """A state that grows with each turn had the length of one turn, and what memory held."""
    graph = f"""agraph (float[4] x, int64 turns, bool goes) => (float[M] y) <{constant}> {{
      y = Loop (n, go, x) <body = turn (int64 i, bool on, float[N] s) => (bool so, float[K] t) {{
        so = Identity (on)
        t = Concat <axis = 0> (s, x)
      }}>
    }}"""
    other = ("int64 turns", "int64 n") if "go =" in constant else ("bool goes", "bool go")
    with pytest.raises(UnsupportedModelError, match=r"otherwise than ONNX: .*Loop"):
        load(graph.replace(*other))


SOFTMAX = "agraph (float[2,3,4,1] x) => (float[2,3,4,1] y) { y = Softmax AXIS (x) }"


@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = -3>"])
def test_a_softmax_over_several_axes_is_refused(axis):
    with pytest.raises(UnsupportedModelError, match=r"otherwise than ONNX: .*Softmax"):
        RUNTIME.load(parse_model(SOFTMAX.replace("AXIS", axis), 11), "cpu")


TRANSPOSED = """agraph (float[1,2,5,5] x, float[2,2,K,3] w) => (float[1,2,10,10] y) {
    y = ConvTranspose <strides = [2,2], output_shape = [10,10], auto_pad = "WHICH"> (x, w) }"""


def test_a_transposed_convolution_of_some_size_is_padded_as_onnx_says_or_refused(run):
    feeds = {"x": np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5)}
    for which, kernel in (("SAME_UPPER", 3), ("SAME_UPPER", 2), ("SAME_LOWER", 3)):
        model = parse_model(TRANSPOSED.replace("WHICH", which).replace("K,3", f"{kernel},{kernel}"), 22)
        feeds["w"] = np.arange(4.0 * kernel**2, dtype=np.float32).reshape(2, 2, kernel, kernel)
        if (which, kernel) == ("SAME_UPPER", 3):
            with pytest.raises(UnsupportedModelError, match=r"otherwise than ONNX: .*ConvTranspose"):
                RUNTIME.load(model, "cpu")
        else:
            actual = RUNTIME.load(model, "cpu").run(feeds)["y"]
            np.testing.assert_allclose(actual, run(model, feeds)["y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("graph", "opset"),
    [
        (SOFTMAX.replace("AXIS", "<axis = 2>"), 11),
        (SOFTMAX.replace("AXIS", "<axis = 1>"), 13),
        (
            "agraph (float[2,3,4,1] x) => (float[2,3,5,1] y) <int64[8] sides = {0,0,1,0,0,0,0,0},"
            " int64[4] axes = {0,1,2,3}> { y = Pad (x, sides, , axes) }",
            18,
        ),
    ],
)
def test_forms_that_mean_the_same_are_computed(run, graph, opset):
    model = parse_model(graph, opset)
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 4, 1)).astype(np.float32)}
    np.testing.assert_allclose(RUNTIME.load(model, "cpu").run(feeds)["y"], run(model, feeds)["y"], rtol=1e-5)


def test_peepholes_are_refused():
    graph = """
    agraph (float[5,2,3] x, float[1,16,3] w, float[1,16,4] r, float[1,12] p) => (float[5,1,2,4] y) {
      y = LSTM <hidden_size = 4> (x, w, r, , , , , p)
    }
    """
    with pytest.raises(UnsupportedModelError, match=r"otherwise than ONNX: .*LSTM"):
        load(graph)


def test_a_graph_that_is_not_compiled_names_the_node_and_the_remedy(monkeypatch):
    graph = "agraph (float[4] x, float[4] z) => (float[4] y) { r = Relu (x) y = Add (r, z) }"

    def compile_model(*_):
        raise RuntimeError(
            "Exception from core.cpp:117:\nCheck 'merge' failed at eltwise.hpp:26:\n"
            "While validating node 'opset1::Add y (a, b)' with friendly_name 'loss/Add':\n"
            "Argument shapes are inconsistent.\n\n"
        )

    core = SimpleNamespace(
        read_model=programs.core().read_model,
        compile_model=compile_model,
        get_property=lambda *_: ["BF16"],
    )
    monkeypatch.setattr(programs, "core", lambda: core)
    with pytest.raises(UnsupportedModelError) as refused:
        load(graph)
    assert str(refused.value) == (
        "OpenVINO reads the graph and fails to compile it: at 'loss/Add': Argument shapes are inconsistent. "
        "The file may be sound: OpenVINO rewrites a graph before it compiles it. "
        "Run the graph on ONNX Runtime (--runtime onnxruntime)."
    )


def test_an_operator_that_is_not_read_is_told_with_its_node():
    graph = """
    agraph (float[1,3,5,6] x) => (float[1,3,M,N] y) {
      a = Relu (x)
      y = MaxPool <kernel_shape = [1,7], strides = [1,2], ceil_mode = 1> (a)
    }
    """
    model = parse_model(graph, 20)
    model.graph.node[1].name = "pool"
    with pytest.raises(UnsupportedModelError, match="MaxPool: at 'pool': Kernel after dilation has size"):
        RUNTIME.load(model, "cpu")
