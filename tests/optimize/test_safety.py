import pytest

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.safety import loss, protected
from campo_onnx.optimize.updates import weight_update

CAMPO = preset("campo")


def loss_of(read, text):
    return loss(read(text).view, CAMPO)


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
