from dataclasses import replace

import pytest

from campo_onnx.optimize.lists.classify import classify
from campo_onnx.optimize.lists.oplists import OpClass, preset
from campo_onnx.optimize.lists.patterns.bias_gradient import bias_gradient
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.optimize.updates import weight_update

SOFTMAX = """(float[4,8] x) => (float[4,8] y) <int64[1] axis = {1}> {
    [max] m = ReduceMax(x, axis)
    [shift] s = Sub(x, m)
    [exp] e = Exp(s)
    [sum] z = ReduceSum(e, axis)
    [div] y = Div(e, z)
    [other] u = com.microsoft.Fancy (x)
}"""


def classes(view, lists, update=frozenset()):
    return classify(view, preset(lists), update).classes


def test_lists_speak_of_operators_and_patterns_of_nodes(read):
    node_classes = classes(read(SOFTMAX).view, "campo")
    assert {name: c.op_class.value for name, c in node_classes.items()} == {
        "max": "clear",
        "shift": "infer",
        "exp": "infer",
        "sum": "infer",
        "div": "infer",
        "other": "unknown",
    }
    assert node_classes["exp"].finding is Finding.SOFTMAX_EXP
    assert node_classes["shift"].finding is None


def test_plain_lists_have_no_patterns(read):
    node_classes = classes(read(SOFTMAX).view, "tf115")
    assert node_classes["exp"].op_class is OpClass.DENY
    assert node_classes["sum"].op_class is OpClass.DENY


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


def test_a_mask_of_minus_infinity_in_disguise_is_followed(problem_from):
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
    assert assignment.low == {"a1", "a2"}
    assert problem.fixed["hide"].decided_by is Reason.OVERFLOW
    assert problem.fixed["scale"].decided_by is Reason.VALUE_OVERFLOW
    assert problem.fixed["scale"].facts["source"] == "low"


@pytest.mark.parametrize(("lists", "through"), [("campo", False), ("tf115", True), ("tf2", True)])
def test_whether_decisions_carry_is_the_lists_word(read, lists, through):
    assert classify(read(SOFTMAX).view, preset(lists), frozenset()).taint_through_decisions is through


@pytest.mark.parametrize("order", [("careless", "careful"), ("careful", "careless")])
def test_of_two_rules_the_more_careful_one_is_right_in_any_order(order, read, monkeypatch):
    view = read("(float[2,3] x) => (float[2,3] y) { [n] y = Exp(x) }").view

    def saying(op_class, reason):
        return lambda *_: Findings(classes={"n": (op_class, reason)})

    rules = {"careless": saying(OpClass.CLEAR, "moves"), "careful": saying(OpClass.INFER, "computes")}
    monkeypatch.setattr("campo_onnx.optimize.lists.classify.PATTERN_RULES", rules)
    monkeypatch.setattr("campo_onnx.optimize.lists.oplists.PATTERNS", tuple(rules))
    node_class = classify(view, replace(preset("campo"), patterns=order), frozenset()).classes["n"]
    assert (node_class.op_class, node_class.finding) == (OpClass.INFER, "computes")
