import pytest

from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.lists.patterns.gelu import gelu

HEAD = """(float[4] x, float[4] z) => (float[4] y)
          <float half = {0.5}, float minus_half = {-0.5},
           float two = {2.0}, float minus_two = {-2.0}, float three = {3.0}> {"""


def classes_of(read, body):
    findings = gelu(read(f"{HEAD} {body} [e] y = Exp(t) }}").view, frozenset())
    return {name: op_class for name, (op_class, _) in findings.classes.items()}


@pytest.mark.parametrize(
    "body",
    [
        "[q] s = Mul(x, x) [k] t = Mul(s, minus_half)",
        "[q] s = Mul(x, x) [k] t = Mul(minus_half, s)",
        "[q] s = Pow(x, two) [k] t = Mul(s, minus_half)",
        "[q] s = Pow(x, two) [k] t = Div(s, minus_two)",
        "[q] s = Mul(x, x) [k] t = Neg(s)",
        "[q] s = Mul(x, x) [k] r = Mul(half, s) [n] t = Neg(r)",
        "[q] s = Mul(x, x) [k] r = Div(s, two) [n] t = Neg(r)",  # as JAX writes a normal density
        "[q] s = Mul(x, x) [n] r = Neg(s) [k] t = Mul(r, half)",
        "[q] s = Mul(x, x) [n] r = Neg(s) [k] p = Mul(r, minus_half) [m] t = Neg(p)",
        "[q] s = Mul(x, x) [k] t = Sub(half, s)",  # a factor of the result, as the exporter writes it
        "[q] s = Mul(x, x) [k] r = Mul(s, half) [m] t = Sub(half, r)",
    ],
)
def test_minus_a_square(read, body):
    assert classes_of(read, body) == {"e": OpClass.INFER}


@pytest.mark.parametrize(
    "body",
    [
        "[k] t = Neg(x)",
        "[q] s = Mul(x, x) [k] t = Sub(three, s)",  # up to 20
        "[q] s = Mul(x, x) [k] t = Sub(s, half)",
        "[q] s = Mul(x, x) [k] r = Sub(half, s) [m] t = Mul(r, three)",
        "[q] s = Mul(x, x) [n] r = Neg(s) [k] t = Sub(half, r)",
        "[q] t = Mul(x, x)",
        "[q] s = Mul(x, x) [k] t = Mul(s, half)",
        "[q] s = Mul(x, x) [n] r = Neg(s) [k] t = Neg(r)",
        "[q] s = Mul(x, z) [k] t = Mul(s, minus_half)",
        "[q] s = Mul(x, x) [k] t = Mul(s, z)",
        "[q] s = Mul(x, x) [k] t = Div(minus_two, s)",
        "[q] s = Pow(x, three) [k] t = Neg(s)",
        "[q] s = Mul(x, x) [n] r = Neg(s) [a] t = Add(r, half)",
    ],
)
def test_near_misses(read, body):
    assert classes_of(read, body) == {}


def test_a_scale_of_both_signs_is_no_minus(read):
    text = """(float[2] x) => (float[2] y) <float[2] c = {-1.0, 1.0}> {
        [q] s = Mul(x, x)
        [k] t = Mul(s, c)
        [e] y = Exp(t)
    }"""
    assert gelu(read(text).view, frozenset()).classes == {}


def test_gelu_in_an_exported_graph(exported):
    view = exported("mlp")
    ((name, (op_class, reason)),) = gelu(view, frozenset()).classes.items()
    assert view.node[name].op.op_type == "Exp"
    assert op_class is OpClass.INFER
    assert "GELU" in reason


@pytest.mark.parametrize(
    ("base", "square", "is_found"), [(0.4, "x", True), (1.2, "x", False), (0.4, "z", False)]
)
def test_a_power_of_a_square(read, base, square, is_found):
    text = f"""(float[2] x, float[2] z) => (float[2] y) <float base = {{{base}}}> {{
        [s] s = Mul(x, {square}) [p] y = Pow(base, s) }}"""
    classes = gelu(read(text).view, frozenset()).classes
    assert {name: op_class for name, (op_class, _) in classes.items()} == (
        {"p": OpClass.INFER} if is_found else {}
    )
