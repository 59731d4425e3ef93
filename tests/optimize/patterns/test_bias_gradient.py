import pytest

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.bias_gradient import bias_gradient
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.updates import weight_update


def classes_of(read, text):
    view = read(text).view
    findings = bias_gradient(view, weight_update(view))
    assert not findings.contained
    return {name: op_class for name, (op_class, _) in findings.classes.items()}


@pytest.mark.parametrize(
    "tail",
    [
        "[s] gb = ReduceSum<keepdims=0>(g, axis)",
        "[s] t = ReduceSum<keepdims=1>(g, axis) [r] gb = Reshape(t, eight)",
        "[s] t = ReduceSum<keepdims=1>(g, axis) [q] r = Squeeze(t, axis) [i] gb = Identity(r)",
        "[s] t = ReduceSum<keepdims=0>(g, axis) [m] gb = Mul(t, half)",  # what dropout kept
        "[s] gb = com.microsoft.ReduceSumTraining<keepdims=0>(g, axis)",
    ],
)
def test_a_sum_that_leaves_the_graph(read, tail):
    constants = "<int64[1] axis = {0}, int64[1] eight = {8}, float half = {0.5}>"
    text = f"(float[4,8] g) => (float[8] gb) {constants} {{ {tail} }}"
    assert classes_of(read, text) == {"s": OpClass.INFER}


def test_a_sum_in_stages(read):
    text = """(float[4,8,3] g) => (float[8] gb) <int64[1] axis = {0}, int64[1] last = {2}> {
        [sample] t = ReduceSum<keepdims=0>(g, last)
        [batch] gb = ReduceSum<keepdims=0>(t, axis)
    }"""
    assert classes_of(read, text) == {"sample": OpClass.INFER, "batch": OpClass.INFER}


def test_a_sum_that_feeds_the_weight_update(read):
    text = """(float[4,8] g, float[8] b, float lr) => (float[8] new)
              <int64[1] axis = {0}, int64[1] eight = {8}> {
        [s] t = ReduceSum<keepdims=1>(g, axis)
        [r] gb = Reshape(t, eight)
        [d] d = Mul(gb, lr)
        [n] new = Sub(b, d)
    }"""
    assert classes_of(read, text) == {"s": OpClass.INFER}


@pytest.mark.parametrize(
    "text",
    [
        # a mean loss: its sum is divided
        """(float[4,8] e) => (float loss) <float n = {32.0}> {
            [s] t = ReduceSum<keepdims=0>(e)
            [d] loss = Div(t, n)
        }""",
        # the squeeze of squeeze-and-excite: a layer reads it
        """(float[4,8,3] x, float[8,8] w) => (float[4,8] y) <int64[1] axis = {2}> {
            [s] t = ReduceSum<keepdims=0>(x, axis)
            [m] y = MatMul(t, w)
        }""",
        # a gradient whose norm is taken as well
        """(float[4,8] g) => (float[8] gb, float[8] square) <int64[1] axis = {0}> {
            [s] gb = ReduceSum<keepdims=0>(g, axis)
            [q] square = Mul(gb, gb)
        }""",
        # integers
        """(int64[4,8] g, float[4] x) => (int64[8] gb, float[4] y) <int64[1] axis = {0}> {
            [s] gb = ReduceSum<keepdims=0>(g, axis)
            [t] y = Tanh(x)
        }""",
        # nobody wants it
        """(float[4,8] g) => (float[4,8] y) <int64[1] axis = {0}> {
            [s] gb = ReduceSum<keepdims=0>(g, axis)
            [t] y = Tanh(g)
        }""",
        # a mean is no gradient of a bias
        """(float[4,8] g) => (float[8] gb) <int64[1] axis = {0}> {
            [s] gb = ReduceMean<keepdims=0>(g, axis)
        }""",
    ],
)
def test_near_misses(read, text):
    assert classes_of(read, text) == {}


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("[s] t = ReduceSum<noop_with_empty_axes=1>(g, none)", "4,6"),  # as gradient builders leave it
        ("[s] t = ReduceSum<keepdims=0>(g1, axis)", "6"),  # an axis of size one
    ],
)
def test_a_sum_over_no_axis_changes_nothing(read, node, shape):
    text = f"""(float[4,8] g, float[1,8] g1, float[8,6] w) => (float[{shape}] y)
               <int64[0] none = {{}}, int64[1] axis = {{0}}> {{
        {node}
        [m] y = MatMul(t, w)
    }}"""
    assert classes_of(read, text) == {"s": OpClass.CLEAR}


def test_a_sum_over_no_axis_does_not_taint_the_gradients_behind_it(problem_from):
    text = """(float[4,8] g, float[8,8] v, float[8,6] w) => (float[4,6] y) <int64[0] none = {}> {
        [a1] t = MatMul(g, v)
        [s] u = ReduceSum<noop_with_empty_axes=1>(t, none)
        [i] r = Tanh(u)
        [a2] y = MatMul(r, w)
    }"""
    problem = problem_from(text)
    assert taint(problem.view, problem.classification) == set()


def test_an_empty_list_of_axes_may_mean_all(read):
    text = """(float[4,8] g) => (float[1,1] y) <int64[0] none = {}> { [s] y = ReduceSum(g, none) }"""
    assert classes_of(read, text) == {"s": OpClass.INFER}


def test_a_sum_that_an_accumulator_takes(read):
    text = """(float[4,8] g, float[8] buffer, bool[1] reset) => (bool[1] done) <int64[1] axis = {0}> {
        [s] gb = ReduceSum<keepdims=0>(g, axis)
        [acc] done = com.microsoft.InPlaceAccumulatorV2 (buffer, gb, reset)
    }"""
    assert classes_of(read, text) == {"s": OpClass.INFER}
