from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies.tf_amp import tf_amp


def test_golden_tf_amp(golden):
    assert golden.answer() == golden.expected


MASK = """(float[2,8] x, bool[8,4] mask, bool[2,8] other) => (float[2,4] y, float[8,4] z) {
    [k] w = Cast<to=1>(mask)
    [a] y = MatMul(x, w)
    [d] z = Exp(w)
}"""


def test_a_conversion_with_an_fp32_reader_is_flooded_like_any_clear_node(problem_from):
    assignment = tf_amp(problem_from(MASK))
    assert assignment.low == {"k", "a"}
    assert assignment.verdicts["k"].decided_by is Reason.CLEAR_NEIGHBOUR


def test_a_conversion_that_the_caller_reads_too_is_not_retargeted(problem_from):
    text = """(float[2,8] x, bool[8,4] mask) => (float[2,4] y{output}) {{
        [k] w = Cast<to=1>(mask)
        [a] y = MatMul(x, w)
    }}"""
    assert tf_amp(problem_from(text.format(output=""), lists="tf115")).low == {"k", "a"}
    assert tf_amp(problem_from(text.format(output=", float[8,4] w"), lists="tf115")).low == {"a"}


def test_every_free_node_has_a_verdict_with_its_pass(problem_from):
    text = """(float[2,8] x, float[8,8] w1, float[8,4] w2) => (float[2,4] y, float[2,8] z) {
        [a1] t1 = MatMul(x, w1)
        [i1] t2 = Tanh(t1)
        [a2] t3 = MatMul(t2, w2)
        [c1] y = Relu(t3)
        [d1] t4 = Exp(x)
        [i2] t5 = Tanh(t4)
        [i3] z = Tanh(t1)
    }"""
    by = {
        name: verdict.decided_by
        for name, verdict in tf_amp(problem_from(text, lists="tf115")).verdicts.items()
    }
    assert by == {
        "a1": Reason.ALLOW_LIST,
        "i1": Reason.BETWEEN,
        "a2": Reason.ALLOW_LIST,
        "c1": Reason.CLEAR_NEIGHBOUR,
        "d1": Reason.DENY_LIST,
        "i2": Reason.DOWNSTREAM_OF_DENY,
        "i3": Reason.NOT_BETWEEN,
    }


def test_a_fixed_node_is_no_way_for_low_paint(problem_from):
    text = """(float[2,8] x, float[8,8] w1, float[8,4] w2) => (float[2,4] y) {
        [a1] t1 = MatMul(x, w1)
        [i1] t2 = Tanh(t1)
        [i2] t3 = Tanh(t2)
        [a2] y = MatMul(t3, w2)
    }"""
    assert tf_amp(problem_from(text, lists="tf115")).low == {"a1", "i1", "i2", "a2"}
    assert tf_amp(problem_from(text, lists="tf115", keep_fp32=("i2",))).low == {"a1", "a2"}
