import pytest

from campo_onnx.optimize.classify import classify
from campo_onnx.optimize.oplists import OpClass, preset
from campo_onnx.optimize.patterns.bias_gradient import bias_gradient
from campo_onnx.optimize.reason import Reason
from campo_onnx.optimize.safety import weight_update
from campo_onnx.optimize.strategies.optimal import optimal

SOFTMAX = """(float[4,8] x) => (float[4,8] y) <int64[1] axis = {1}> {
    [max] m = ReduceMax(x, axis)
    [shift] s = Sub(x, m)
    [exp] e = Exp(s)
    [sum] z = ReduceSum(e, axis)
    [div] y = Div(e, z)
    [other] u = com.microsoft.Fancy (x)
}"""


def classes(view, lists, update=frozenset(), overflowing=None):
    return classify(view, preset(lists), update, overflowing or {}).classes


def test_lists_speak_of_operators_and_patterns_of_nodes(read):
    found = classes(read(SOFTMAX).view, "campo")
    assert {name: c.op_class.value for name, c in found.items()} == {
        "max": "clear",
        "shift": "infer",
        "exp": "infer",
        "sum": "infer",
        "div": "infer",
        "other": "unknown",
    }
    assert found["exp"].reason == "Exp inside a softmax, bounded by 1"
    assert found["shift"].reason == ""


def test_plain_lists_have_no_patterns(read):
    found = classes(read(SOFTMAX).view, "tf115")
    assert found["exp"].op_class is OpClass.DENY
    assert found["sum"].op_class is OpClass.DENY


def test_a_constant_that_overflows_outweighs_lists_and_patterns(read):
    found = classes(read(SOFTMAX).view, "campo", overflowing={"exp": "a reason", "shift": "another"})
    assert (found["exp"].op_class, found["exp"].reason) == (OpClass.DENY, "a reason")
    assert (found["shift"].op_class, found["shift"].reason) == (OpClass.DENY, "another")


def test_of_two_rules_the_one_that_keeps_fp32_is_right(read):
    # A bias gradient to the one rule; a sum of squares, broadcast back, to the other.
    text = """(float[4,8] x, float[4,8] w) => (float[1,8] g, float[4,8] new) <int64[1] axis = {0}> {
        [square] q = Mul(x, x)
        [sum] g = ReduceSum(q, axis)
        [update] new = Sub(w, g)
    }"""
    view = read(text).view
    update = weight_update(view)
    assert bias_gradient(view, update).classes["sum"][0] is OpClass.INFER
    assert classes(view, "campo", update)["sum"].op_class is OpClass.DENY


def test_a_mask_of_minus_infinity_in_disguise_taints(problem_from):
    """-3e38 becomes -inf in FP16; so what is made of it stays FP32 up to where it is harmless."""
    text = """(float[4,8] x, float[8,8] w, float[8,6] v, bool[4,8] mask) => (float[4,6] y)
              <float low = {-3e38}> {
        [a1] t = MatMul(x, w)
        [hide] s = Where(mask, t, low)
        [scale] r = Tanh(s)
        [a2] y = MatMul(r, v)
    }"""
    problem = problem_from(text)
    assignment = optimal(problem)
    assert problem.op_class("hide") is OpClass.DENY
    assert assignment.low == {"a1", "a2"}
    assert assignment.verdicts["scale"].decided_by is Reason.DOWNSTREAM_OF_DENY


@pytest.mark.parametrize(("lists", "through"), [("campo", False), ("tf115", True), ("tf2", True)])
def test_whether_decisions_carry_is_the_lists_word(read, lists, through):
    assert classify(read(SOFTMAX).view, preset(lists), frozenset(), {}).taint_through_decisions is through
