import pytest

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.safety import earlier_versions, loss, protected, weight_update

CAMPO = preset("campo")


def loss_of(read, text):
    return loss(read(text).view, CAMPO)


def update_of(read, text):
    return weight_update(read(text).view)


def test_cross_entropy_in_pieces(read):
    text = """(float[4,8] x, float[8,10] w, float[10] b, int64[4,1] target) => (float loss) {
        [mm] t = MatMul(x, w)
        [bias] logits = Add(t, b)
        [lsm] logp = LogSoftmax(logits)
        [pick] nll = GatherElements<axis=1>(logp, target)
        [neg] positive = Neg(nll)
        [mean] loss = ReduceMean<keepdims=0>(positive)
    }"""
    assert loss_of(read, text) == {"lsm", "pick", "neg", "mean"}


def test_cross_entropy_as_jax_writes_it(read):
    text = """(float[4,8] x, float[8,10] w, float[10] b, float[4,10] onehot) => (float loss)
              <int64[1] axis = {1}, float count = {4.0}> {
        [mm] t = MatMul(x, w)
        [bias] logits = Add(t, b)
        [max] m = ReduceMax(logits, axis)
        [shift] s = Sub(logits, m)
        [exp] e = Exp(s)
        [sum] z = ReduceSum(e, axis)
        [log] lz = Log(z)
        [logp] logp = Sub(s, lz)
        [pick] picked = Mul(logp, onehot)
        [total] nll = ReduceSum<keepdims=0>(picked)
        [mean] mean = Div(nll, count)
        [neg] loss = Neg(mean)
    }"""
    assert loss_of(read, text) == {
        *("bias", "max", "shift", "exp", "sum", "log", "logp", "pick", "total", "mean", "neg"),
    }


def test_a_sum_with_what_is_computed_of_targets_is_no_residual_branch(read):
    text = """(float[4,8] x, float[8,10] w, float[4,10] target) => (float loss) {
        [mm] y = MatMul(x, w)
        [size] a = Abs(y)
        [of_target] b = Abs(target)
        [sum] s = Add(a, b)
        [mean] loss = ReduceMean<keepdims=0>(s)
    }"""
    assert loss_of(read, text) == {"size", "of_target", "sum", "mean"}


def test_mean_squared_error(read):
    text = """(float[4,8] x, float[8,10] w, float[4,10] target) => (float loss) {
        [mm] y = MatMul(x, w)
        [diff] d = Sub(y, target)
        [square] q = Mul(d, d)
        [mean] loss = ReduceMean<keepdims=0>(q)
    }"""
    assert loss_of(read, text) == {"diff", "square", "mean"}


def test_the_loss_as_one_operator(read):
    text = """(float[4,8] x, float[8,10] w, int64[4] target) => (float loss) {
        [mm] logits = MatMul(x, w)
        [ce] loss, logp = SoftmaxCrossEntropyLoss(logits, target)
    }"""
    assert loss_of(read, text) == {"ce"}


def test_a_scaled_and_regularized_loss_holds_its_terms(read):
    text = """(float[4,8] x, float[8,10] w, int64[4] target, float scale) => (float loss)
              <float decay = {0.01}> {
        [mm] logits = MatMul(x, w)
        [ce] data = SoftmaxCrossEntropyLoss(logits, target)
        [square] q = Mul(w, w)
        [norm] n = ReduceSum<keepdims=0>(q)
        [weigh] r = Mul(n, decay)
        [add] sum = Add(data, r)
        [scaled] loss = Mul(sum, scale)
    }"""
    assert loss_of(read, text) == {"ce", "square", "norm", "weigh", "add", "scaled"}


def test_a_residual_stream_is_not_swallowed(read):
    text = """(float[4,8] x, float[8,8] w1, float[8,8] w2, float[4,8] target) => (float loss)
              <int64[1] axis = {1}, float eps = {0.00001}> {
        [in] t0 = MatMul(x, w1)
        [act] t1 = Tanh(t0)
        [branch] t2 = MatMul(t1, w2)
        [residual1] t3 = Add(t0, t2)
        [gelu] t4 = Gelu(t3)
        [residual2] t5 = Add(t3, t4)
        [mean] m = ReduceMean(t5, axis)
        [centre] c = Sub(t5, m)
        [square] q = Mul(c, c)
        [var] v = ReduceMean(q, axis)
        [eps] ve = Add(v, eps)
        [std] s = Sqrt(ve)
        [norm] y = Div(c, s)
        [diff] d = Sub(y, target)
        [error] e = Mul(d, d)
        [loss] loss = ReduceMean<keepdims=0>(e)
    }"""
    nodes = loss_of(read, text)
    assert {"loss", "error", "diff", "residual2"} <= nodes
    assert not {"residual1", "gelu", "act", "branch", "in"} & nodes


@pytest.mark.parametrize("norm", ["LayerNormalization<axis=-1>(t, scale, bias)", "Softmax(t)"])
def test_the_walk_ends_at_normalizations_and_heads(read, norm):
    text = f"""(float[4,8] x, float[8] scale, float[8] bias, float[4,8] target) => (float loss) {{
        [act] t = Tanh(x)
        [head] y = {norm}
        [diff] d = Sub(y, target)
        [loss] loss = ReduceSum<keepdims=0>(d)
    }}"""
    assert loss_of(read, text) == {"diff", "loss"} | ({"head"} if norm.startswith("Softmax") else set())


def test_which_output_is_the_loss(read):
    text = """(float[4,8] x, float step)
              => (float next_step, float accuracy, float loss_scale, float total_loss)
              <float one = {1.0}> {
        [count] next_step = Add(step, one)
        [a] accuracy = ReduceMean<keepdims=0>(x)
        [s] loss_scale = ReduceMax<keepdims=0>(x)
        [l] total_loss = ReduceSum<keepdims=0>(x)
    }"""
    assert loss_of(read, text) == {"l"}
    # Without a name that says so: not the counter, which is a new version of an input.
    assert loss_of(read, text.replace("total_loss", "value").replace("loss_scale", "scale")) == {"a"}


def test_a_loss_that_leaves_to_the_framework(read):
    """In ORTModule's gradient graph the outputs are gradients, here one of a single number too."""
    text = """(float[4,8] x, float[8,10] w, float[1] s, float[4,10] target)
              => (float[8,10] w_grad, float[1] s_grad) {
        [mm] y = MatMul(x, w)
        [diff] d = Sub(y, target)
        [square] q = Mul(d, d)
        [mean] mean = ReduceMean<keepdims=0>(q)
        [copy] loss = Identity(mean)
        [yield] loss_grad = com.microsoft.YieldOp(loss)
        [spread] y_grad = Mul(loss_grad, d)
        [dw] w_grad = com.microsoft.FusedMatMul<transA=1>(x, y_grad)
        [ds] s_grad = Mul(s, loss_grad)
    }"""
    assert loss_of(read, text) == {"diff", "square", "mean", "copy"}


def test_a_network_whose_loss_is_elsewhere_has_none(read):
    text = """(float[4,8] x, float[8,10] w, float[1] s) => (float[8,10] w_grad, float[1] s_grad) {
        [mm] y = MatMul(x, w)
        [yield] y_grad = com.microsoft.YieldOp(y)
        [dw] w_grad = com.microsoft.FusedMatMul<transA=1>(x, y_grad)
        [ds] s_grad = Mul(s, s)
    }"""
    assert loss_of(read, text) == set()


def test_a_graph_without_a_scalar_has_no_loss(read):
    assert loss_of(read, "(float[4] x) => (float[4] y) { [a] y = Tanh(x) }") == set()


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        ("[d] d = Mul(gt, lr) [n] new = Sub(w, d)", "d n"),
        ("[s] s = Mul(v, mu) [v2] nv = Add(s, gt) [d] d = Mul(nv, lr) [n] new = Sub(w, d)", "s v2 d n"),
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
    # `y` has the shape of `x` and reads it, but is no update of it worth the name; it stays FP32 too.
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


def test_protected_nodes_say_why(read):
    text = """(float[4,8] x, float[8] b) => (float loss, float[8] new) <int64[1] axis = {0}> {
        [t] y = Tanh(x)
        [s] loss = ReduceSum<keepdims=0>(y)
        [g] g = ReduceSum<keepdims=0>(y, axis)
        [u] new = Sub(b, g)
    }"""
    assert protected(read(text).view, CAMPO) == {
        "t": Reason.LOSS,
        "s": Reason.LOSS,
        "u": Reason.WEIGHT_UPDATE,
    }


@pytest.mark.parametrize(
    ("graph", "updates", "losses"),
    [("resblocks", 84, 8), ("alexnet_like", 0, 8), ("mlp", 0, 8), ("bert2_mlm_sdpa", 0, 8)],
)
def test_exported_graphs(exported, graph, updates, losses):
    view = exported(graph)
    assert len(weight_update(view)) == updates
    nodes = loss(view, CAMPO)
    assert len(nodes) == losses
    assert {"LogSoftmax", "GatherElements"} <= {view.node[name].op.op_type for name in nodes}
