import pytest

from campo_onnx.errors import UsageError
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.optimize.eligibility import fixed_nodes
from campo_onnx.optimize.plan.reason import REFUSED, Reason, Verdict
from campo_onnx.targets.target import target


@pytest.fixture
def fixed(read):
    """Who fixed which node, and why, in a graph as text."""

    def ask(text, *, low=Precision.FP16, provider="cuda", protected=None, keep_fp32=()):
        imported = read(text)
        ports = {node.name: ports_of(imported.view.signature(node.name), low) for node in imported.view.nodes}
        verdicts = fixed_nodes(
            imported,
            ports,
            low=low,
            target=target({"cuda": "h200", "cpu": "cpu"}[provider]),
            protected=protected or {},
            keep_fp32=keep_fp32,
        )
        return {name: (verdict.decided_by, verdict.reason) for name, verdict in verdicts.items()}

    return ask


GRAPH = """(float[4] x, float lr, int64[4] i, float16[4] h)
           => (float[4] y, int64[4] j, float16[4] g, int64[1] s) {
    [free] t = Tanh(x)
    [scalar] y = Mul(t, lr)
    [integer] j = Neg(i)
    [given] g = Neg(h)
    [shape] s = Shape(t)
}"""


def test_a_choice_is_made_in_the_precision_of_what_is_compared(fixed):
    text = """(float[4] x) => (float[4] y, bool[4] m, bool[4] n) <float one = {1.0}> {
        [fp32] a = Tanh(x)
        [free] b = Tanh(a)
        [clip] y = Min(a, one)
        [again] m = LessOrEqual(a, one)
        [other] n = LessOrEqual(b, one)
    }"""
    verdicts = fixed(text, protected={"fp32": Reason.LOSS})
    assert {name: reason for name, (reason, _) in verdicts.items()} == {
        "fp32": Reason.LOSS,
        "again": Reason.COMPARED,
    }


def test_what_is_handed_on_between_fp32_nodes_is_not_rounded_on_the_way(fixed):
    text = """(float[4,4] x) => (float[4,4] y, float[4,4] z) {
        [fp32] a = Tanh(x)
        [copy] b = Identity(a)
        [turned] c = Transpose<perm = [1, 0]>(b)
        [late] y = Tanh(c)
        [out] z = Identity(a)
        [branch] d = Identity(a)
        [free] e = Sigmoid(d)
        [last] f = Tanh(e)
    }"""
    verdicts = fixed(text, protected={"fp32": Reason.LOSS, "late": Reason.LOSS})
    assert {name: reason for name, (reason, _) in verdicts.items()} == {
        "fp32": Reason.LOSS,
        "copy": Reason.HANDED_ON,
        "turned": Reason.HANDED_ON,
        "late": Reason.LOSS,
        "out": Reason.HANDED_ON,
    }


def test_constants_that_are_computed_for_fp32_nodes_alone_stay_fp32(fixed):
    text = """(float[4] x) => (float[4] y, float[4] z) <int64[1] four = {4}> {
        [fill] a = ConstantOfShape<value = float[1] {10000.0}>(four)
        [turned] b = Neg(a)
        [fp32] y = Pow(b, x)
        [shared] c = ConstantOfShape<value = float[1] {3.0}>(four)
        [reads] d = Pow(c, y)
        [free] z = Pow(c, d)
    }"""
    verdicts = fixed(text, protected={"fp32": Reason.LOSS, "reads": Reason.LOSS})
    assert {name: reason for name, (reason, _) in verdicts.items()} == {
        "fill": Reason.HANDED_ON,
        "turned": Reason.HANDED_ON,
        "fp32": Reason.LOSS,
        "reads": Reason.LOSS,
    }


def test_each_kind_of_verdict(fixed):
    assert fixed(GRAPH) == {
        "scalar": (Reason.SCALAR_INPUT, "reads the scalar input 'lr', whose size the graph does not tell"),
        "integer": (Reason.NO_FP32, "computes no FP32"),
        "given": (Reason.ALREADY_LOW, "low already in the given graph"),
        "shape": (Reason.SHAPE_ONLY, "reads only the shape"),
    }


def test_numbers_for_each_row_round_alike_and_stay_fp32(fixed):
    """Of one loss scale: so rounded, they are off by the same in all rows."""
    text = """(float[4,8] x, float s, bool[4,1] m) => (float[4,8] y, float[4,8] z) <float o = {0.0}> {
        [row] r = Where(m, s, o)
        [turned] n = Neg(r)
        [free] y = Mul(x, n)
        [whole] z = Sigmoid(y)
    }"""
    assert {name: reason for name, (reason, _) in fixed(text).items()} == {
        "row": Reason.SCALAR_INPUT,
        "turned": Reason.SCALAR_INPUT,
    }


def test_protected_nodes_keep_their_reason(fixed):
    assert fixed(GRAPH, protected={"free": Reason.LOSS})["free"] == (Reason.LOSS, "computes the loss")


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [("free", True), ("fr.*", True), ("Tanh", True), ("Tan", False), ("fre", False), ("re", False)],
)
def test_a_pattern_matches_a_whole_name_or_operator(fixed, pattern, kept):
    assert (fixed(GRAPH, keep_fp32=(pattern,)).get("free") == (Reason.USER, "named by --keep-fp32")) is kept


def test_a_contrib_operator_is_named_with_its_domain(fixed):
    text = "(float[4] x) => (float[4] y) { [g] y = com.microsoft.Gelu (x) }"
    assert fixed(text, keep_fp32=("Gelu",)) == {}
    assert fixed(text, keep_fp32=("com.microsoft:Gelu",))["g"][0] is Reason.USER


def test_a_bad_pattern_is_refused(fixed):
    with pytest.raises(UsageError, match=r"'\(' is not a regular expression") as caught:
        fixed(GRAPH, keep_fp32=("(",))
    assert caught.value.why


@pytest.mark.parametrize(
    ("value", "by", "reason"),
    [
        ("-3e38", Reason.OVERFLOW, "overflows fp16"),
        ("70000.0", Reason.OVERFLOW, "overflows fp16"),
        ("0.00001", Reason.UNDERFLOW, "too small for fp16"),
        ("0.5", None, None),
        ("0.0", None, None),
        ("65504.0", None, None),
    ],
)
def test_constants_the_low_precision_loses(fixed, value, by, reason):
    text = f"(float[4] x) => (float[4] y) <float c = {{{value}}}> {{ [n] y = Max(x, c) }}"
    refusals = fixed(text)
    if by is None:
        assert refusals == {}
    else:
        assert refusals["n"][0] == by
        assert reason in refusals["n"][1]
    assert Reason.OVERFLOW not in {by for by, _ in fixed(text, low=Precision.BF16).values()}


@pytest.mark.parametrize(
    ("value", "by"),
    [("-1e38", Reason.VALUE_OVERFLOW), ("1e-7", Reason.VALUE_UNDERFLOW), ("0.0", None), ("2.0", None)],
)
def test_a_fill_the_low_precision_loses(fixed, value, by):
    text = f"""(int64[1] unused) => (float[4] y) <int64[1] four = {{4}}> {{
        [f] y = ConstantOfShape<value = float[1] {{{value}}}>(four)
    }}"""
    assert fixed(text).get("f", (None,))[0] == by


def test_no_kernel_no_low_precision(fixed):
    text = "(float[2,8] x) => (float[2,8] y) { [n] y = Tanh(x) }"
    assert fixed(text) == {}
    assert fixed(text, low=Precision.BF16, provider="cpu")["n"] == (
        *(Reason.KERNEL, "the cpu provider has no bf16 kernel for Tanh"),
    )


def test_control_flow_and_what_it_captures(fixed):
    text = """(bool c, float[4] x) => (float[4] y) {
        [t] t = Tanh(x)
        [k] y = If(c) <
            then_branch = then () => (float[4] p) { p = Neg(t) },
            else_branch = other () => (float[4] q) { q = Abs(t) }
        >
    }"""
    assert fixed(text) == {"k": (Reason.CONTROL_FLOW, "control flow: bodies and what they capture stay FP32")}


def test_what_an_operator_says_of_itself_is_a_reason_with_its_data():
    assert {reason.sentence for reason in REFUSED.values()} == {refused.value for refused in Refused}
    verdict = Verdict.refused(Refused.NO_VARIANT.of(op="MatMul", low="bf16"))
    assert (verdict.decided_by, verdict.facts) == (Reason.NO_VARIANT, {"op": "MatMul", "low": "bf16"})
    assert verdict.reason == "MatMul has no bf16 variant in this opset"
    assert str(Refused.UNKNOWN_TYPE.of(what="input", position=2)).startswith("the type of input 2 is unknown")


def test_reasons_of_earlier_plans_are_read():
    assert Verdict(decided_by=Reason("operator"), facts={"why": "a constant"}).reason == "a constant"
