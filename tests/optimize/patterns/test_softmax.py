import pytest

from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.normalization import normalization
from campo_onnx.optimize.lists.patterns.softmax import softmax
from campo_onnx.optimize.passes import taint

HEAD = """(float[4,8] x, float[4,8] z, float[4,1] c) => (float[4,8] y)
          <int64[1] axis = {1}, int64[2] shape = {4, 8}, int64[2] col = {4, 1}> {"""


def findings_of(read, body):
    findings = softmax(read(f"{HEAD} {body} }}").view, frozenset())
    return {name: op_class for name, (op_class, _) in findings.classes.items()}, findings.contained


@pytest.mark.parametrize(
    "body",
    [
        "[m] m = ReduceMax(x, axis) [s] s = Sub(x, m) [e] y = Exp(s)",
        # JAX reduces without the axis and broadcasts it back itself
        """[m] m = ReduceMax<keepdims=0>(x, axis) [r] n = Reshape(m, col) [b] b = Expand(n, shape)
           [s] s = Sub(x, b) [e] y = Exp(s)""",
        "[m] m = ReduceMax<keepdims=0>(x, axis) [u] n = Unsqueeze(m, axis) [s] s = Sub(x, n) [e] y = Exp(s)",
        # and bounds it from below, by minus infinity
        "[m] m = ReduceMax(x, axis) [b] n = Max(c, m) [s] s = Sub(x, n) [e] y = Exp(s)",
    ],
)
def test_exp_of_what_lies_below_its_maximum(read, body):
    assert findings_of(read, body) == ({"e": OpClass.INFER}, frozenset())


@pytest.mark.parametrize(
    "body",
    [
        "[e] y = Exp(x)",
        "[s] s = Sub(x, c) [e] y = Exp(s)",
        "[m] m = ReduceMax(z, axis) [s] s = Sub(x, m) [e] y = Exp(s)",  # of another tensor
        "[m] m = ReduceMin(x, axis) [s] s = Sub(x, m) [e] y = Exp(s)",
        "[m] m = ReduceMax(x, axis) [s] s = Sub(m, x) [e] y = Exp(s)",  # the wrong way round
        "[m] m = ReduceMax(x, axis) [n] n = Neg(m) [s] s = Sub(x, n) [e] y = Exp(s)",
        "[m] m = ReduceMax(x, axis) [n] n = Min(c, m) [s] s = Sub(x, n) [e] y = Exp(s)",
    ],
)
def test_near_misses(read, body):
    assert findings_of(read, body) == ({}, frozenset())


def test_a_maximum_that_is_reached_by_a_trillion_ways_is_visited_once(read):
    steps = " ".join(f"[m{i}] m{i} = Max(m{i - 1}, m{i - 1})" for i in range(1, 41))
    body = f"[m0] m0 = ReduceMax(x, axis) {steps} [s] s = Sub(x, m40) [e] y = Exp(s)"
    assert findings_of(read, body) == ({"e": OpClass.INFER}, frozenset())


def test_what_reads_a_softmax_is_contained_and_what_reads_its_logarithm_is_not(read):
    classes, contained = findings_of(
        read, "[p] p = Softmax(x) [l] l = LogSoftmax(x) [a] q = Mul(p, z) [b] y = Add(q, l)"
    )
    assert classes == {}
    assert contained == {Use("a", 0)}


@pytest.mark.parametrize(
    ("tail", "is_found"),
    [
        ("[s] s = Sub(g, r) [m] y = Mul(p, s)", True),
        ("[k] k = Mul(r, keep) [s] s = Sub(g, k) [m] y = Mul(s, p)", True),
        ("[s] s = Sub(r, g) [m] y = Mul(p, s)", False),
        ("[s] s = Sub(g, r) [m] y = Mul(x, s)", False),
        ("[e] e = Exp(r) [s] s = Sub(g, e) [m] y = Mul(p, s)", False),
    ],
)
def test_the_sum_of_a_row_in_the_gradient_of_attention(read, tail, is_found):
    head = """(float[4,8] x, float[4,8] g, float[4,2] o, float[4,2] of_o) => (float[4,8] y)
              <int64[1] axis = {1}, float keep = {0.9}> {"""
    body = f"[p] p = Softmax(x) [w] w = Mul(o, of_o) [t] r = ReduceSum(w, axis) {tail}"
    findings = softmax(read(f"{head} {body} }}").view, frozenset())
    assert {name: op_class for name, (op_class, _) in findings.classes.items()} == (
        {"t": OpClass.INFER} if is_found else {}
    )
    assert (Use("s", 1) in findings.contained) == is_found


@pytest.mark.parametrize(
    ("node", "position"),
    [("GatedAdd(m, p, r)", 2), ("HyperConnectionPostMix<num_branches = 1>(p, g, w, r)", 3)],
)
def test_the_sum_of_a_row_as_the_factor_of_a_fused_sum(read, node, position):
    text = f"""(float[4,8] x, float[4,8] g, float[4,8] o) => (float[4,8] y) <int64[1] axis = {{1}}> {{
        [p] p = Softmax(x) [w] w = Mul(o, o) [t] r = ReduceSum(w, axis) [m] m = Mul(g, p)
        [s] y = com.microsoft.{node} }}"""
    findings = softmax(read(text).view, frozenset())
    assert [*findings.classes] == ["t"]
    assert Use("s", position) in findings.contained


@pytest.mark.parametrize(
    "node",
    [
        "HyperConnectionPostMix<num_branches = 1>(p, g, w)",  # without the factor
        "HyperConnectionPostMix<num_branches = 2>(p, g, w, r)",  # a matrix, which mixes two streams
        "GatedAdd(p, m, r)",  # the factor of the other tensor
    ],
)
def test_a_fused_sum_without_a_factor_of_the_weights(read, node):
    text = f"""(float[4,8] x, float[4,8] g, float[4,8] o) => (float[4,8] y) <int64[1] axis = {{1}}> {{
        [p] p = Softmax(x) [w] w = Mul(o, o) [t] r = ReduceSum(w, axis) [m] m = Mul(g, g)
        [s] y = com.microsoft.{node} }}"""
    findings = softmax(read(text).view, frozenset())
    assert [*findings.classes] == []
    assert findings.contained == {Use("s", 0)}


def test_attention_probabilities_do_not_taint_what_they_weigh(problem_from):
    text = """(float[4,8] q, float[8,4] k, float[4,6] v) => (float[4,6] y) {
        [scores] s = MatMul(q, k)
        [power] t = Exp(s)
        [p] p = Softmax(t)
        [half] r = Tanh(p)
        [out] y = MatMul(r, v)
    }"""
    problem = problem_from(text)
    assert taint(problem.view, problem.classification) == {"p"}


def test_the_gradient_of_softmax(read):
    """y * (dy - sum(y * dy)): the row sum is a statistic that is broadcast back."""
    text = """(float[4,8] y, float[4,8] dy) => (float[4,8] dx) <int64[1] axis = {1}> {
        [m] t = Mul(y, dy)
        [sum] s = ReduceSum(t, axis)
        [back] r = Mul(y, s)
        [d] dx = Sub(t, r)
    }"""
    findings = normalization(read(text).view, frozenset())
    assert {name: op_class for name, (op_class, _) in findings.classes.items()} == {"sum": OpClass.INFER}
    assert findings.contained == {Use("back", 1)}


def test_a_whole_softmax_in_pieces_is_free_of_taint(problem_from):
    text = """(float[4,8] q, float[8,8] k, float[8,6] v) => (float[4,6] y) <int64[1] axis = {1}> {
        [scores] x = MatMul(q, k)
        [m] m = ReduceMax(x, axis)
        [s] s = Sub(x, m)
        [e] e = Exp(s)
        [z] z = ReduceSum(e, axis)
        [p] p = Div(e, z)
        [out] y = MatMul(p, v)
    }"""
    problem = problem_from(text)
    classes = {name: problem.op_class(name) for name in ("m", "s", "e", "z", "p")}
    assert OpClass.DENY not in classes.values()
    assert taint(problem.view, problem.classification) == set()
