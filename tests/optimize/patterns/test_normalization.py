from collections import Counter

import pytest

from campo_onnx.ir.view import Use
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.normalization import normalization
from campo_onnx.optimize.passes import taint

INFER, DENY = OpClass.INFER, OpClass.DENY
CONSTANTS = """<int64[1] last = {-1}, int64[2] spatial = {0, 2}, float eps = {0.001}, float two = {2.0},
    float root = {-0.5}, int64[3] column = {1, 8, 1}, int64[3] groups = {4, 2, 12}, int64[3] whole =
    {4, 8, 3}, float momentum = {0.1}, float keep = {0.9}, float n = {8.0}>"""


def findings_of(read, text):
    findings = normalization(read(text).view, frozenset())
    return {name: op_class for name, (op_class, _) in findings.classes.items()}, findings.contained


@pytest.mark.parametrize("square", ["Mul(c, c)", "Pow(c, two)"])
def test_layer_normalization(read, square):
    text = f"""(float[4,8] x, float[8] gamma, float[8] beta) => (float[4,8] y) {CONSTANTS} {{
        [mean] m = ReduceMean(x, last)
        [centre] c = Sub(x, m)
        [square] q = {square}
        [var] v = ReduceMean(q, last)
        [safe] ve = Add(v, eps)
        [std] s = Sqrt(ve)
        [norm] h = Div(c, s)
        [scale] g = Mul(h, gamma)
        [shift] y = Add(g, beta)
    }}"""
    assert findings_of(read, text) == (
        {"mean": INFER, "square": DENY, "var": DENY},
        {Use("centre", 1), Use("norm", 1)},
    )


@pytest.mark.parametrize("square", ["Mul(x, x)", "Pow(x, two)"])
def test_squares_of_rows_that_are_summed_in_runs(read, square):
    """A long sum over rows is written as one of runs of rows, then of those."""
    text = f"""(float[512,8] x) => (float[512,8] y) <int64[1] first = {{0}}, int64[1] second = {{1}},
        int64[3] runs = {{16, 32, 8}}, float two = {{2.0}}, float n = {{512.0}}> {{
        [square] q = {square}
        [shape] r = Reshape(q, runs)
        [part] p = ReduceSum<keepdims = 0>(r, second)
        [sum] s = ReduceSum<keepdims = 0>(p, first)
        [mean] m = Div(s, n)
        [root] d = Sqrt(m)
        [norm] y = Div(x, d)
    }}"""
    assert findings_of(read, text) == ({"square": DENY, "part": DENY, "sum": DENY}, {Use("norm", 1)})


def test_the_gradient_of_layer_normalization(read):
    text = f"""(float[4,8] dy, float[4,8] h, float[4,1] rstd) => (float[4,8] dx) {CONSTANTS} {{
        [a] a = ReduceSum(dy, last)
        [p] p = Mul(dy, h)
        [b] b = ReduceSum(p, last)
        [hb] t = Mul(h, b)
        [nd] s = Mul(dy, n)
        [sub] r = Sub(s, a)
        [sub2] u = Sub(r, t)
        [scale] dx = Mul(u, rstd)
    }}"""
    assert findings_of(read, text) == ({"a": INFER, "b": INFER}, {Use("sub", 1), Use("hb", 1)})


@pytest.mark.parametrize(
    "inverse",
    [
        "[s] s = Sqrt(ve) [r] r = Reciprocal(s) [norm] y = Mul(x, r)",
        "[r] r = Pow(ve, root) [norm] y = Mul(x, r)",
    ],
)
def test_rms_normalization(read, inverse):
    text = f"""(float[4,8] x) => (float[4,8] y) {CONSTANTS} {{
        [square] q = Mul(x, x)
        [mean] v = ReduceMean(q, last)
        [safe] ve = Add(v, eps)
        {inverse}
    }}"""
    assert findings_of(read, text) == ({"square": DENY, "mean": DENY}, {Use("norm", 1)})


@pytest.mark.parametrize("reduce", ["ReduceSumSquare", "ReduceL2"])
def test_reductions_that_square(read, reduce):
    text = f"""(float[4,8] x) => (float[4,8] y) {CONSTANTS} {{
        [norm] v = {reduce}(x, last)
        [back] y = Div(x, v)
    }}"""
    assert findings_of(read, text) == ({"norm": DENY}, {Use("back", 1)})


def test_group_normalization(read):
    text = f"""(float[4,8,3] x) => (float[4,8,3] y) {CONSTANTS} {{
        [in] g = Reshape(x, groups)
        [mean] m = ReduceMean(g, last)
        [centre] c = Sub(g, m)
        [square] q = Mul(c, c)
        [var] v = ReduceMean(q, last)
        [safe] ve = Add(v, eps)
        [std] s = Sqrt(ve)
        [norm] h = Div(c, s)
        [out] y = Reshape(h, whole)
    }}"""
    assert findings_of(read, text) == (
        {"mean": INFER, "square": DENY, "var": DENY},
        {Use("centre", 1), Use("norm", 1)},
    )


def test_batch_normalization_with_running_statistics(read):
    text = f"""(float[4,8,3] x, float[8] running) => (float[4,8,3] y, float[8] new) {CONSTANTS} {{
        [mean] m = ReduceMean<keepdims=0>(x, spatial)
        [wide] mw = Reshape(m, column)
        [centre] c = Sub(x, mw)
        [square] q = Mul(c, c)
        [var] v = ReduceMean<keepdims=0>(q, spatial)
        [safe] ve = Add(v, eps)
        [std] s = Sqrt(ve)
        [inv] r = Reciprocal(s)
        [tall] rw = Reshape(r, column)
        [norm] y = Mul(c, rw)
        [taken] t = Mul(m, momentum)
        [kept] k = Mul(running, keep)
        [update] new = Add(k, t)
    }}"""
    assert findings_of(read, text) == (
        {"mean": INFER, "square": DENY, "var": DENY},
        {Use("centre", 1), Use("norm", 1)},
    )


def test_the_variance_as_jax_writes_it(read):
    """E[x * x] - E[x] ** 2, clipped at zero."""
    text = """(float[4,8] x) => (float[4,8] y)
              <int64[1] last = {-1}, int64[2] col = {4, 1}, float eps = {0.001}, float zero = {0.0}> {
        [mean] m = ReduceMean<keepdims=0>(x, last)
        [square] q = Mul(x, x)
        [mean2] m2 = ReduceMean<keepdims=0>(q, last)
        [mm] mm = Mul(m, m)
        [var] v = Sub(m2, mm)
        [clip] vc = Max(v, zero)
        [safe] ve = Add(vc, eps)
        [std] s = Sqrt(ve)
        [inv] r = Reciprocal(s)
        [mc] mc = Reshape(m, col)
        [rc] rc = Reshape(r, col)
        [centre] c = Sub(x, mc)
        [norm] y = Mul(c, rc)
    }"""
    assert findings_of(read, text) == (
        {"mean": INFER, "square": DENY, "mean2": DENY},
        {Use("centre", 1), Use("norm", 1)},
    )


@pytest.mark.parametrize(
    "text",
    [
        # squeeze and excite: a layer and a sigmoid lie between the mean and what it scales
        """(float[4,8,3] x, float[8,8] w) => (float[4,8,3] y) <int64[1] axis = {2}, int64[1] one = {2}> {
            [mean] m = ReduceMean<keepdims=0>(x, axis)
            [fc] h = MatMul(m, w)
            [gate] s = Sigmoid(h)
            [wide] sw = Unsqueeze(s, one)
            [scale] y = Mul(x, sw)
        }""",
        # the same without a layer
        """(float[4,8,3] x) => (float[4,8,3] y) <int64[1] axis = {2}> {
            [mean] m = ReduceMean(x, axis)
            [gate] s = Sigmoid(m)
            [scale] y = Mul(x, s)
        }""",
        # a mean loss
        """(float[4,8] d) => (float loss) {
            [square] q = Mul(d, d)
            [mean] loss = ReduceMean<keepdims=0>(q)
        }""",
        # attention: no reduction but those inside Softmax
        """(float[4,8] q, float[8,4] k, float[4,6] v, float scale) => (float[4,6] y) {
            [scores] s = MatMul(q, k)
            [scale] t = Mul(s, scale)
            [p] p = Softmax(t)
            [out] y = MatMul(p, v)
        }""",
        # the gradient of a bias, and its momentum
        """(float[4,8] g, float[8] v, float mu) => (float[8] nv) <int64[1] axis = {0}> {
            [sum] s = ReduceSum<keepdims=0>(g, axis)
            [m] t = Mul(v, mu)
            [n] nv = Add(s, t)
        }""",
        # a reduction over one element
        """(float[4,1] x) => (float[4,1] y) <int64[1] axis = {1}> {
            [mean] m = ReduceMean(x, axis)
            [c] y = Sub(x, m)
        }""",
        # a comparison with the mean
        """(float[4,8] x) => (float[4,8] y) <int64[1] axis = {1}> {
            [mean] m = ReduceMean(x, axis)
            [floor] y = Max(x, m)
        }""",
        # a pooled head: its result is joined to something smaller than what was reduced
        """(float[4,8,3] x, float[4,8] z) => (float[4,8] y) <int64[1] axis = {2}> {
            [mean] m = ReduceMean<keepdims=0>(x, axis)
            [join] y = Add(m, z)
        }""",
    ],
    ids=[
        "squeeze-excite",
        "gate",
        "mean loss",
        "attention",
        "bias gradient",
        "one element",
        "floor",
        "pooled head",
    ],
)
def test_near_misses(read, text):
    assert findings_of(read, text) == ({}, frozenset())


def test_blocks_of_an_exported_residual_network(exported):
    view = exported("resblocks")
    findings = normalization(view, frozenset())
    counted = Counter(
        (view.node[name].op.op_type, op_class) for name, (op_class, _) in findings.classes.items()
    )
    # 14 batch normalizations: mean, square and variance forward; two sums and a mean shift backward.
    assert counted["ReduceMean", INFER] == counted["ReduceMean", DENY] == counted["Mul", DENY] == 14
    assert counted["ReduceSum", INFER] >= 28
    assert len(counted) == 4
    for use in findings.contained:
        reader = view.node[use.node]
        sizes = [view.tensors[t].elements for t in reader.inputs]
        assert sizes[use.position] < max(sizes)


def test_pieces_of_a_normalization_do_not_taint_the_tensor(problem_from):
    text = f"""(float[4,8] a, float[8,8] w, float[8,6] v) => (float[4,6] y) {CONSTANTS} {{
        [in] x = MatMul(a, w)
        [mean] m = ReduceMean(x, last)
        [centre] c = Sub(x, m)
        [square] q = Mul(c, c)
        [var] vv = ReduceMean(q, last)
        [safe] ve = Add(vv, eps)
        [std] s = Sqrt(ve)
        [norm] h = Div(c, s)
        [out] y = MatMul(h, v)
    }}"""
    problem = problem_from(text)
    assert taint(problem.view, problem.classification) == {"safe", "std"}


def test_a_statistic_that_is_summed_in_stages(read):
    """Each sample first, then the batch."""
    text = f"""(float[4,8,3] dy, float[1,8,1] k) => (float[8] total, float[4,8,3] dx) {CONSTANTS} {{
        [sample] a = ReduceSum<keepdims=0>(dy, last)
        [batch] total = ReduceSum<keepdims=0>(a, first)
        [column] b = Reshape(total, column)
        [share] m = Mul(b, k)
        [sub] dx = Sub(dy, m)
    }}""".replace("int64[1] last", "int64[1] first = {0}, int64[1] last")
    assert findings_of(read, text) == ({"sample": INFER, "batch": INFER}, {Use("sub", 1)})


def test_squares_that_are_summed_in_stages(read):
    text = f"""(float[4,8,3] x) => (float[4,8,3] y) {CONSTANTS} {{
        [square] q = Mul(x, x)
        [rows] a = ReduceSum<keepdims=1>(q, last)
        [columns] b = ReduceMean<keepdims=1>(a, first)
        [norm] y = Div(x, b)
    }}""".replace("int64[1] last", "int64[1] first = {0}, int64[1] last")
    assert findings_of(read, text) == ({"square": DENY, "rows": DENY, "columns": DENY}, {Use("norm", 1)})
