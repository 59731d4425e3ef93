"""Nodes that write new weights, state and statistics, and the inputs that outputs are new versions of."""

import pytest

from campo_onnx.optimize.updates import earlier_versions, weight_update


def update_of(read, text):
    return weight_update(read(text).view)


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        ("[d] d = Mul(gt, lr) [n] new = Sub(w, d)", "d n"),
        ("[s] s = Mul(v, mu) [v2] nv = Add(s, gt) [d] d = Mul(nv, lr) [n] new = Sub(w, d)", "s v2 d n"),
        ('[d] d = Einsum<equation="ab,->ab">(gt, lr) [n] new = Sub(w, d)', "d n"),
        # JAX spreads the learning rate first, and keeps the old weight where a gradient is not finite.
        (
            "[e] l = Expand(lr, shape) [d] d = Mul(gt, l) [n0] nw = Sub(w, d) [n] new = Where(ok, nw, w)",
            "d n0 n",
        ),
    ],
)
def test_stochastic_gradient_descent(read, rule, nodes):
    velocity = ", float[8,6] nv" if "nv" in rule else ""
    text = f"""(float[8,4] xt, float[4,6] g, float[8,6] w, float[8,6] v, float lr, bool ok)
               => (float[8,6] new{velocity}) <float mu = {{0.9}}, int64[2] shape = {{8, 6}}> {{
        [grad] gt = MatMul(xt, g)
        {rule}
    }}"""
    assert update_of(read, text) == set(nodes.split())


def test_adam(read):
    text = """(float[8,4] xt, float[4,6] g, float[8,6] w, float[8,6] m, float[8,6] v, float t, float lr)
              => (float[8,6] new_w, float[8,6] new_m, float[8,6] new_v, float new_t)
              <float b1 = {0.9}, float c1 = {0.1}, float b2 = {0.99}, float c2 = {0.01},
               float one = {1.0}, float eps = {0.001}> {
        [grad] gt = MatMul(xt, g)
        [m1] m1 = Mul(m, b1)
        [m2] m2 = Mul(gt, c1)
        [m3] new_m = Add(m1, m2)
        [v1] v1 = Mul(v, b2)
        [v2] gg = Mul(gt, gt)
        [v3] v2 = Mul(gg, c2)
        [v4] new_v = Add(v1, v2)
        [t1] new_t = Add(t, one)
        [p] p = Pow(b2, new_t)
        [q] q = Sub(one, p)
        [hat] vh = Div(new_v, q)
        [root] r = Sqrt(vh)
        [safe] re = Add(r, eps)
        [step] s = Div(new_m, re)
        [rate] sl = Mul(s, lr)
        [n] new_w = Sub(w, sl)
    }"""
    everything = {node.name for node in read(text).view.nodes}
    assert update_of(read, text) == everything - {"grad"}


def test_running_statistics(read):
    text = """(float[4,8,3] x, float[8] running) => (float[8] new, float[4,8,3] y)
              <int64[2] axes = {0, 2}, float keep = {0.9}, float take = {0.1}, int64[3] shape = {1, 8, 1}> {
        [mean] m = ReduceMean<keepdims=0>(x, axes)
        [k] kept = Mul(running, keep)
        [t] taken = Mul(m, take)
        [n] new = Add(kept, taken)
        [r] mr = Reshape(m, shape)
        [c] y = Sub(x, mr)
    }"""
    # `c` counts, too: its result has the shape of `x`, which it reads. In FP32 it is right.
    assert update_of(read, text) >= {"k", "t", "n"}
    assert not update_of(read, text) & {"mean", "r"}


def test_running_statistics_that_are_updated_together(read):
    text = """(float[4,3,8] x, float[3] ra, float[3] rb) => (float[3] na, float[3] nb, float[8] first)
              <int64[2] axes = {0, 2}, float keep = {0.9}, float take = {0.1}, int64[2] sizes = {3, 3},
               int64[2] others = {0, 1}> {
        [ma] a = ReduceMean<keepdims=0>(x, axes)
        [mb] b = ReduceMax<keepdims=0>(x, axes)
        [before] r = Concat<axis=0>(ra, rb)
        [k] kept = Mul(r, keep)
        [now] m = Concat<axis=0>(a, b)
        [t] taken = Mul(m, take)
        [n] new = Add(kept, taken)
        [cut] na, nb = Split<axis=0>(new, sizes)
        [other] first = ReduceMean<keepdims=0>(x, others)
    }"""
    assert update_of(read, text) == {"before", "k", "t", "n", "cut"}
    assert earlier_versions(read(text).view) == {"na": ("ra",), "nb": ("rb",)}


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        # stored in another order of axes than it is updated in
        ("[t] wt = Transpose(w) [g] gt = Transpose(g) [n] u = Sub(wt, gt) [b] new = Transpose(u)", "t n b"),
        # cut apart, and joined again
        (
            """[c] w0, w1 = Split<axis=0, num_outputs=2>(w) [d] g0, g1 = Split<axis=0, num_outputs=2>(g)
            [n0] u0 = Sub(w0, g0) [n1] u1 = Sub(w1, g1) [j] new = Concat<axis=0>(u0, u1)""",
            "c n0 n1 j",
        ),
        # rows of a table
        ("[r] r = Gather(w, id) [n] u = Sub(r, gr) [p] new = ScatterND(w, at, u)", "r n p"),
        # rows that are added to
        (
            """[r] r = Mul(gr, lr) [n] n = Neg(r) [p] new = ScatterND<reduction="add">(w, at, n)""",
            "r n p",
        ),
        # scaled before it is moved
        (
            """[d] dt = MatMul(yt, x) [r] r = Mul(dt, lr) [t] t = Transpose(r) [n] new = Sub(w, t)""",
            "r t n",
        ),
        # SM3: the largest of each row
        (
            """[q] gg = Mul(g, g) [s] v = Add(s, gg) [n] ns = ReduceMax(v, axis)
            [i] d = Div(g, v) [u] new = Sub(w, d)""",
            "q s n i u",
        ),
        # a weight that is kept below a norm
        (
            """[d] wd = Sub(w, g) [q] qq = Mul(wd, wd) [t] t = ReduceSum(qq, axis) [r] r = Sqrt(t)
            [m] m = Max(r, one) [n] new = Div(wd, m)""",
            "d q t r m n",
        ),
        # projected: small elements are zero, a mask below the diagonal
        ("[n] u = Sub(w, g) [b] new = Shrink<bias=0.1, lambd=0.1>(u)", "n b"),
        ("[n] u = Sub(w, g) [b] new = Trilu<upper=0>(u)", "n b"),
        # a mean of two weights
        ("[n] u = Sub(w, g) [b] new = Mean(w, u)", "n b"),
        # an average of weights that are joined first, by constant and by computed shares
        (
            """[n] u = Sub(w, g) [a] ru = Unsqueeze(u, axis) [b] rw = Unsqueeze(w, axis)
            [j] both = Concat<axis=1>(ru, rw) [m] m = Mul(both, shares)
            [s] new = ReduceSum<keepdims=0>(m, axis)""",
            "n a b j m s",
        ),
        (
            """[n] u = Sub(w, g) [a] ru = Unsqueeze(u, axis) [b] rw = Unsqueeze(w, axis)
            [j] both = Concat<axis=1>(ru, rw) [c] c = Concat<axis=0>(decay, decay) [p] p = Softmax(c)
            [e] new = Einsum<equation="k,ikj->ij">(p, both)""",
            "n a b j c p e",
        ),
        # left out where a gradient is not finite
        (
            """[r] r = Mul(g, lr) [n] u = Sub(w, r) [i] new = If (ok) <
            then_branch = step () => (float[8,6] a) { a = Identity(u) },
            else_branch = skip () => (float[8,6] b) { b = Identity(w) }>""",
            "r n i",
        ),
        (
            """[r] r = Mul(g, lr) [i] new = If (ok) <
            then_branch = step () => (float[8,6] a) { a = Sub(w, r) },
            else_branch = skip () => (float[8,6] b) { b = Identity(w) }>""",
            "r i",
        ),
        # in a loop
        (
            """[r] r = Mul(g, lr) [n] u = Sub(w, r) [l] new = Loop (count, ok, u) <
            body = turn (int64 i, bool go, float[8,6] old) => (bool on, float[8,6] next) {
            on = Identity(go) next = Sub(old, r) }>""",
            "r n l",
        ),
    ],
)
def test_an_update_of_weights_that_are_moved_measured_or_chosen(read, rule, nodes):
    state = ", float[8,1] ns" if "ns =" in rule else ""
    text = f"""(float[8,4] xt, float[4,6] dy, float[8,6] w, float[8,1] s, float[1,6] gr, int64[1] id,
        int64[1,1] at, float lr, float[6,4] yt, float[4,8] x, bool ok, int64 count, float[1] decay)
        => (float[8,6] new{state})
        <int64[1] axis = {{1}}, float one = {{1.0}}, float[1,2,1] shares = {{0.001, 0.999}}> {{
        [grad] g = MatMul(xt, dy)
        {rule}
    }}"""
    assert update_of(read, text) == set(nodes.split())


@pytest.mark.parametrize(
    "step",
    [
        "[c] c = Concat<axis=1>(x, h) [p] y = MatMul(c, u) [n] new = Tanh(y)",
        """[a] a = Add(x, b) [s] s = Sub(h, b) [c] c = Concat<axis=0>(a, s)
        [p] new = ReduceSum<keepdims=0>(c, axis)""",
    ],
)
def test_what_is_joined_and_multiplied_or_summed_over_a_batch_is_no_average_of_weights(read, step):
    shape = "[4,6]" if "MatMul" in step else "[6]"
    text = f"""(float[4,6] x, float[4,6] h, float[12,6] u, float[6] b) => (float{shape} new)
              <int64[1] axis = {{0}}> {{ {step} }}"""
    assert update_of(read, text) == set()


def test_a_factor_computed_of_gradients_leaves_the_network_outside(read):
    """Gradients that are small beside the weights: their norm, and the network they come from."""
    text = """(float[8,4] xt, float[4,64] dy, float[8,64] w, float[4,2] a, float[2,4] b, float lr)
        => (float[8,64] new) {
        [grad] g = MatMul(xt, dy) [small] h = MatMul(b, a) [act] k = Relu(h) [square] q = Mul(k, k)
        [norm] n = ReduceSum<keepdims=0>(q) [root] s = Sqrt(n) [rate] r = Div(lr, s)
        [decay] u = Mul(w, r) [step] new = Sub(u, g)
    }"""
    assert update_of(read, text) == {"decay", "step", "rate", "root"}


@pytest.mark.parametrize("rectifier", ["Relu", "LeakyRelu<alpha=0.1>", "ThresholdedRelu<alpha=0.0>"])
def test_a_rectifier_projects_new_weights_and_activates_a_network(read, rectifier):
    step = f"""(float[4,6] x, float[6,6] w, float[4,6] h, float[6,6] g) => (float loss, float[4,6] hn,
              float[6,6] new) {{
        [p] y = MatMul(x, w) [a] z = Add(h, y) [r] hn = {rectifier}(z) [l] loss = ReduceMean<keepdims=0>(hn)
        [s] u = Sub(w, g) [b] new = {rectifier}(u)
    }}"""
    assert update_of(read, step) == {"s", "b"}
    assert (
        update_of(read, step.replace("float loss, ", "").replace("[l] loss = ReduceMean<keepdims=0>(hn)", ""))
        == set()
    )


def test_a_gradient_that_a_scatter_adds_up_is_no_update(read):
    text = """(float[4,6] dy, float[8,6] w, int64[4] id, int64[4,1] at) => (float[8,6] gw)
              <int64[2] shape = {8, 6}> {
        [rows] r = Gather(w, id)
        [dr] dr = Mul(r, dy)
        [zero] z = ConstantOfShape(shape)
        [add] gw = ScatterND<reduction="add">(z, at, dr)
    }"""
    assert update_of(read, text) == set()


def test_a_gradient_is_no_update(read):
    text = """(float[8,4] xt, float[4,6] g, float[8,6] w) => (float[8,6] gw, float[6] gb)
              <int64[1] axis = {0}> {
        [a] t = MatMul(xt, g)
        [s] gw = Relu(t)
        [b] gb = ReduceSum<keepdims=0>(g, axis)
    }"""
    assert update_of(read, text) == set()
