"""Ranges of values: bounds hold for what is computed, and extreme values are found and named."""

import math

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.values.choices import first_input
from campo_onnx.ops.values.registry import registered
from campo_onnx.optimize.values.ranges import DeclaredRange, value_ranges

HEADER = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>'
X = "float[4,8] x, float[4,8] z"


def model_of(body, outputs, constants=None, inputs=X):
    model = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => ({outputs}) {{ {body} }}")
    for name, value in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def ranges(body, outputs="float[4,8] y", constants=None, declared=None, inputs=X):
    imported = import_model(model_of(body, outputs, constants, inputs))
    bounds = {name: DeclaredRange(lowest=low, highest=high) for name, (low, high) in (declared or {}).items()}
    return value_ranges(imported, bounds)


UNARY = (
    *("Abs", "Ceil", "Clip", "Cos", "Erf", "Exp", "Floor", "Gelu", "HardSwish", "Identity", "LogSoftmax"),
    *("Mish", "Neg", "ReduceMax", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softsign", "Tanh"),
    *("ThresholdedRelu", "Trilu"),
)
BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum")
SUMS = ("CumSum", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "MatMul", "Gemm")


def node_of(op):
    if op in BINARY:
        return f"y = {op}(x, z)"
    if op == "Clip":
        return "y = Clip(x, least)"
    if op == "ThresholdedRelu":
        return "y = ThresholdedRelu<alpha=-3.0>(x)"
    if op == "CumSum":
        return "y = CumSum(x, axis)"
    if op == "MatMul":
        return "t = Transpose<perm=[1,0]>(z) y = MatMul(x, t)"
    if op == "Gemm":
        return "y = Gemm<transB=1, alpha=0.5, beta=2.0>(x, z, bias)"
    return f"y = {op}(x)"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", [*UNARY, *BINARY, *SUMS])
def test_proved_bounds_hold(op, seed):
    random = np.random.default_rng(seed)
    bounds = {name: tuple(sorted(random.normal(size=2) * 10 ** random.uniform(-2, 1))) for name in "xz"}
    constants = {"least": np.float32(-0.5), "axis": np.int64(1), "bias": np.float32(3.0)}
    shape = {"ReduceMax": "[1,1]", "MatMul": "[4,4]", "Gemm": "[4,4]"}.get(op, "[4,8]")
    shape = "[1,1]" if op.startswith("Reduce") else shape
    model = model_of(node_of(op), f"float{shape} y", constants)
    feeds = {n: random.uniform(*bounds[n], size=(4, 8)).astype(np.float32) for n in "xz"}
    feeds["x"][0, :2] = bounds["x"]
    interval = value_ranges(
        import_model(model), {n: DeclaredRange(lowest=low, highest=high) for n, (low, high) in bounds.items()}
    )["y"]
    with np.errstate(all="ignore"):
        actual = ReferenceEvaluator(model).run(None, feeds)[0]
    slack = 1e-5 * (1.0 + np.abs(actual).max())
    assert interval.lowest - slack <= actual.min()
    assert actual.max() <= interval.highest + slack


def test_nothing_is_known_of_an_activation_and_it_stays_moderate():
    bounds = ranges(
        "a = Mul(x, z) b = Add(a, x) c = MatMul(b, w) y = Tanh(c)",
        constants={"w": np.eye(8)[:, :8].astype("f")},
    )
    assert bounds["b"].magnitude == 1.0
    assert math.isinf(bounds["c"].highest)
    assert (bounds["y"].lowest, bounds["y"].highest) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int64(-(10**9)), -1e9), (np.float64(-3.4e38), -3.4e38), (np.float16(-6e4), -6e4)],
)
def test_a_constant_of_any_type_is_seen_through_what_computes_it(value, expected):
    bounds = ranges(
        "c = Cast<to=1>(fill) e = Expand(c, shape) y = Mul(x, e)",
        constants={"fill": value, "shape": np.array([4, 8])},
    )
    assert bounds["y"].extreme == pytest.approx(abs(expected))
    assert bounds["y"].source == "fill"


def test_a_large_constant_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr("campo_onnx.ir.constants._CHUNK_ELEMENTS", 8)
    values = np.ones(32, np.float32)
    values[29] = -1e9
    bounds = ranges("y = Add(x, c)", constants={"c": values.reshape(4, 8)})
    assert (bounds["c"].lowest, bounds["c"].highest) == (-1e9, 1.0)
    assert bounds["y"].source == "c"


def test_a_softmax_ends_what_a_mask_began():
    bounds = ranges("a = Add(x, c) y = Softmax(a)", constants={"c": np.float32(-1e9)})
    assert bounds["a"].expected_lowest <= -1e9 + 1
    assert (bounds["y"].expected_lowest, bounds["y"].expected_highest) == (0.0, 1.0)


def test_the_pieces_of_a_softmax_do_so_too():
    bounds = ranges(
        "a = Add(x, c) m = ReduceMax(a, axes) d = Sub(a, m) e = Exp(d) s = ReduceSum(e, axes) y = Div(e, s)",
        constants={"c": np.float32(-1e9), "axes": np.array([1])},
    )
    assert (bounds["e"].lowest, bounds["e"].highest) == (0.0, 1.0)
    assert (bounds["y"].lowest, bounds["y"].highest) == (0.0, 1.0)


def test_an_epsilon_is_followed_to_where_it_is_large():
    bounds = ranges(
        "s = Mul(x, x) v = ReduceMean(s, axes) a = Add(v, e) r = Sqrt(a) i = Reciprocal(r) y = Mul(x, i)",
        constants={"e": np.float32(1e-12), "axes": np.array([1])},
    )
    assert bounds["a"].smallest == pytest.approx(1e-12)
    assert bounds["i"].magnitude == pytest.approx(1e6)
    assert bounds["i"].source == "e"
    assert bounds["y"].magnitude == 1.0  # where it is large, what it scales vanishes


def test_sizes_and_counts_are_known():
    bounds = ranges(
        "n = Shape(x) i = Size(x) f = Cast<to=1>(i) b = Less(x, z) m = Cast<to=1>(b)"
        " s = ReduceSum<keepdims=0>(m) y = Div(x, s)"
    )
    assert (bounds["f"].lowest, bounds["f"].highest) == (32.0, 32.0)
    assert (bounds["s"].lowest, bounds["s"].highest) == (0.0, 32.0)
    assert bounds["s"].from_integers
    assert not bounds["y"].from_integers


def test_a_declared_range_is_that_of_an_input():
    with pytest.raises(UsageError, match="'y', which is not an input"):
        ranges("y = Relu(x)", declared={"y": (0, 1)})
    with pytest.raises(UsageError, match=r"range 1:0 is empty"):
        ranges("y = Relu(x)", declared={"x": (1, 0)})


def test_infinite_constants_are_infinite_in_every_precision():
    bounds = ranges("y = Where(b, x, c)", constants={"c": np.float32(-np.inf)}, inputs=X + ", bool[4,8] b")
    assert bounds["y"].magnitude == 1.0


def test_an_operator_has_one_rule():
    with pytest.raises(ValueError, match="Neg has two rules"):
        registered([(first_input, "Abs Neg"), (first_input, "Neg")])


def test_an_operator_without_a_rule_bounds_nothing():
    bounds = ranges("a = Add(x, c) y = Sinh(a)", constants={"c": np.float32(-1e9)})
    assert bounds["y"].magnitude >= 1e9
    assert bounds["y"].source == "c"


def test_a_product_of_moved_batches_has_as_many_terms_as_are_summed():
    body = "y = com.microsoft.FusedMatMul<transA = 1, transBatchA = 1>(p, q)"
    inputs = "float[40,2,8] x, float[2,40,3] z"
    bounds = ranges(f"p = Sigmoid(x) q = Sigmoid(z) {body}", "float[2,8,3] y", inputs=inputs)
    assert bounds["y"].highest == 40.0


@pytest.mark.parametrize(("streams", "highest"), [(1, 2 * 3 + 1 * 5), (2, np.inf)])
def test_a_mix_of_one_stream_is_a_sum_of_two_terms(streams, highest):
    share, gate = np.full((4, streams, streams), 3.0, np.float32), np.full((4, streams), 5.0, np.float32)
    constants = {"a": np.full((4, 8 * streams), 2.0, np.float32), "c": gate, "s": share}
    body = f"y = com.microsoft.HyperConnectionPostMix<num_branches = {streams}>(a, p, c, s)"
    bounds = ranges(f"p = Sigmoid(x) {body}", f"float[4,{8 * streams}] y", constants=constants)
    assert bounds["y"].highest == highest


LARGEST = {
    "itself": "m = ReduceMax(x, last)",
    "beside NaN": "l = ReduceMax(x, last) n = IsNaN(l) m = Where(n, nan, l)",
    "beside an infinity": "l = ReduceMax(x, last) m = Max(infinity, l)",
}
OTHERS = {
    "of another axis": "m = ReduceMax(x, first)",
    "of another tensor": "m = ReduceMax(z, last)",
    "at least a number": "l = ReduceMax(x, last) m = Max(five, l)",
}
ROWS = {"last": np.array([1]), "first": np.array([0]), "five": np.float32(5.0)}
ROWS |= {"nan": np.float32(np.nan), "infinity": np.float32(-np.inf)}


@pytest.mark.parametrize(("case", "lowest"), [*((c, 1.0) for c in LARGEST), *((c, 0.0) for c in OTHERS)])
def test_a_sum_of_exponentials_below_their_largest_is_at_least_one(case, lowest):
    nodes = {**LARGEST, **OTHERS}[case]
    body = f"{nodes} d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)"
    assert ranges(body, constants=ROWS)["s"].lowest == lowest


FINITE = {
    "0 where its magnitude is infinite": "a = Abs(l) i = Equal(a, infinite) m = Where(i, zero, l)",
    "0 where it is infinite": "i = IsInf(l) m = Where(i, zero, l)",
    "itself where it is finite": "i = IsInf(l) n = IsNaN(l) b = Or(i, n) f = Not(b) m = Where(f, l, zero)",
    "itself where x - x is 0": "d = Sub(l, l) f = Equal(d, zero) m = Where(f, l, zero)",
    "itself where its magnitude is below infinity": "a = Abs(l) f = Less(a, infinite) m = Where(f, l, zero)",
}
NOT_FINITE = {
    "itself where it is infinite": "i = IsInf(l) m = Where(i, l, zero)",
    "itself where it is below 5": "f = Less(l, five) m = Where(f, l, zero)",
    "0 where another is infinite": "k = ReduceMax(z, last) i = IsInf(k) m = Where(i, zero, l)",
    "itself where x - z is 0": "d = Sub(l, z) f = Equal(d, zero) m = Where(f, l, zero)",
    "itself where it is not above its magnitude": "a = Abs(l) f = GreaterOrEqual(a, l) m = Where(f, l, zero)",
}
WHERE = ROWS | {"infinite": np.float32(np.inf), "zero": np.float32(0.0)}


@pytest.mark.parametrize(
    ("case", "highest"), [*((c, 0.0) for c in FINITE), *((c, math.inf) for c in NOT_FINITE)]
)
def test_what_is_below_its_largest_is_negative(case, highest):
    body = f"l = ReduceMax(x, last) {(FINITE | NOT_FINITE)[case]} y = Sub(x, m)"
    assert ranges(body, constants=WHERE)["y"].highest == highest


LOGARITHMS = {
    "in parts": ("d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) g = Log(s) t = Add(g, m)", 0.0),
    "the other way round": ("d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) g = Log(s) t = Add(m, g)", 0.0),
    "without a shift": ("e = Exp(x) s = ReduceSum(e, last) t = Log(s)", 0.0),
    "in one": ("t = ReduceLogSumExp(x, last)", 0.0),
    "with another shift": (
        "d = Sub(x, m) e = Exp(d) s = ReduceSum(e, last) g = Log(s) t = Add(g, five)",
        math.inf,
    ),
    "of another tensor": (
        "d = Sub(z, m) e = Exp(d) s = ReduceSum(e, last) g = Log(s) t = Add(g, m)",
        math.inf,
    ),
    "of a mean": ("d = Sub(x, m) e = Exp(d) s = ReduceMean(e, last) g = Log(s) t = Add(g, m)", math.inf),
}


@pytest.mark.parametrize("case", LOGARITHMS)
def test_what_is_below_the_logarithm_of_its_sum_is_negative(case):
    body, highest = LOGARITHMS[case]
    bounds = ranges(f"m = ReduceMax(x, last) {body} y = Sub(x, t)", constants=ROWS)
    assert bounds["y"].highest == highest
    bounds = ranges(f"m = ReduceMax(x, last) {body} d2 = Sub(x, t) y = Exp(d2)", constants=ROWS)
    assert bounds["y"].highest == (1.0 if highest == 0.0 else math.inf)


SQUARE = "float[8,8] x"
MEETING = {
    "row by row": ("m = ReduceMax(x, last)", 0.0),
    "spread out": ("l = ReduceMax(x, last) m = Expand(l, shape)", 0.0),
    "as a row, of columns": ("m = ReduceMax<keepdims = 0>(x, first)", 0.0),
    "as a row, of rows": ("m = ReduceMax<keepdims = 0>(x, last)", math.inf),
    "transposed": ("l = ReduceMax(x, last) m = Transpose(l)", math.inf),
}


@pytest.mark.parametrize("case", MEETING)
def test_a_square_is_not_below_the_largest_of_other_rows(case):
    nodes, highest = MEETING[case]
    constants = ROWS | {"first": np.array([0]), "shape": np.array([8, 8])}
    bounds = ranges(f"{nodes} y = Sub(x, m)", "float[8,8] y", constants=constants, inputs=SQUARE)
    assert bounds["y"].highest == highest
