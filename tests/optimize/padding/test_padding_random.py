"""Random products, convolutions and chains of them compute the same, padded and not."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.optimize.padding.padded import assert_fits, assert_same, assert_valid, emulated, feeds_of

size = st.integers(1, 19)
thrifty = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def typed(name, shape):
    return f"float[{','.join(map(str, shape))}] {name}"


@st.composite
def matmuls(draw):
    """Draw MatMul or FusedMatMul with batch dimensions that broadcast."""
    m, n, k = draw(size), draw(size), draw(size)
    batch = draw(st.lists(st.integers(1, 3), max_size=2))

    def batch_of():
        own = [draw(st.sampled_from([1, dim])) for dim in batch]
        return own[draw(st.integers(0, len(own))) :]

    if draw(st.booleans()):
        return typed("a", [*batch_of(), m, k]), typed("b", [*batch_of(), k, n]), "MatMul(a, b)"
    a, b = draw(st.booleans()), draw(st.booleans())
    op = f"com.microsoft.FusedMatMul<transA = {int(a)}, transB = {int(b)}, alpha = 0.5>(a, b)"
    return (
        typed("a", [*batch_of(), *((k, m) if a else (m, k))]),
        typed("b", [*batch_of(), *((n, k) if b else (k, n))]),
        op,
    )


@thrifty
@given(drawn=matmuls())
def test_random_matmuls_compute_the_same(pad_all, run, drawn):
    a, b, op = drawn
    rank = max(a.count(","), b.count(",")) + 1
    pair = pad_all(f"g ({a}, {b}) => ({typed('y', 'pqrs'[:rank])}) {{ [p] y = {op} }}")
    assert_same(pair)
    assert_fits(pair.model)
    if "Fused" not in op:
        assert_valid(pair.model, run)


@thrifty
@given(
    m=size,
    n=size,
    k=size,
    a=st.booleans(),
    b=st.booleans(),
    bias=st.sampled_from(["", "mn", "n", "1n", "m1", "11", "1", "scalar"]),
    second=st.sampled_from(["", "MatMul(y, r)", "MatMul(l, y)", "Gemm<transA = 1>(y, l)"]),
)
def test_random_gemms_and_what_reads_them_compute_the_same(pad_all, run, m, n, k, a, b, bias, second):
    sizes = {"m": m, "n": n, "1": 1}
    inputs = [typed("a", (k, m) if a else (m, k)), typed("b", (n, k) if b else (k, n))]
    if bias:
        inputs.append("float c" if bias == "scalar" else typed("c", [sizes[axis] for axis in bias]))
    gemm = f"Gemm<transA = {int(a)}, transB = {int(b)}, alpha = 2.0, beta = 3.0>(a, b{', c' if bias else ''})"
    extra = {"MatMul(y, r)": typed("r", (n, 3)), "MatMul(l, y)": typed("l", (3, m))}
    if second.startswith("Gemm"):
        extra[second] = typed("l", (m, 3))
    if second:
        inputs.append(extra[second])
        text = f"g ({', '.join(inputs)}) => (float[p,q] z) {{ y = {gemm} z = {second} }}"
    else:
        text = f"g ({', '.join(inputs)}) => ({typed('y', (m, n))}) {{ y = {gemm} }}"
    pair = pad_all(text)
    assert_same(pair)
    assert_fits(pair.model)
    assert_valid(pair.model, run)


@st.composite
def convolutions(draw):
    """Draw Conv or ConvTranspose of one or two spatial axes."""
    rank = draw(st.integers(1, 2))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    spatial = draw(st.lists(st.integers(4, 7), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    dilations = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    pads = draw(st.lists(st.integers(0, 1), min_size=2 * rank, max_size=2 * rank))
    assume(
        all(p + q < d * (k - 1) + 1 for p, q, d, k in zip(pads, pads[rank:], dilations, kernel, strict=False))
    )
    assume(all(d * (k - 1) < s for d, k, s in zip(dilations, kernel, spatial, strict=True)))
    batch, channels, filters = draw(st.integers(1, 3)), draw(size), draw(size)
    group = draw(st.sampled_from([1, 1, 1, 2]))
    op = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    attributes = f"strides = {strides}, dilations = {dilations}, pads = {pads}, group = {group}"
    weight = [group * filters, channels] if op == "Conv" else [group * channels, filters]
    inputs = [typed("x", [batch, group * channels, *spatial]), typed("w", [*weight, *kernel])]
    if draw(st.booleans()):
        inputs.append(typed("b", [group * filters]))
    names = ", ".join(text.split()[-1] for text in inputs)
    outputs = ",".join("p" * (i + 1) for i in range(rank + 2))
    return f"g ({', '.join(inputs)}) => (float[{outputs}] y) {{ y = {op}<{attributes}>({names}) }}", group


@thrifty
@given(drawn=convolutions())
def test_random_convolutions_compute_the_same(pad_all, run, drawn):
    text, group = drawn
    pair = pad_all(text)
    assert_same(pair)
    if group == 1:
        assert_fits(pair.model)
    else:
        assert pair.plan.pads == ()
    assert_valid(pair.model, run)


class Squares:
    """A graph in the making, of odd squares of small integers, in which everything can be chained."""

    def __init__(self):
        self.lines = []
        self.tensors = ["x", "z", "w"]

    def add(self, line):
        self.tensors.append(f"t{len(self.lines)}")
        self.lines.append(f"[n{len(self.lines)}] {self.tensors[-1]} = {line}")


@st.composite
def square_graphs(draw):
    squares = Squares()
    for _ in range(draw(st.integers(2, 8))):
        a, b = draw(st.sampled_from(squares.tensors)), draw(st.sampled_from(squares.tensors))
        op = draw(
            st.sampled_from(["MatMul({}, {})", "MatMul({}, {})", "Gemm<transB = 1>({}, {})", "Relu({})"])
        )
        squares.add(op.format(a, b))
        if "{}, {}" in op and draw(st.booleans()):
            squares.add(f"Max({squares.tensors[-1]}, minus)")
            squares.add(f"Min({squares.tensors[-1]}, plus)")
    last = squares.tensors[-1]
    outputs = sorted({last, *draw(st.lists(st.sampled_from(squares.tensors[3:]), max_size=2))})
    w = ", ".join(str(i % 5 - 2) for i in range(25))
    return (
        f"g (float[5,5] x, float[5,5] z) => ({', '.join(typed(t, (5, 5)) for t in outputs)}) "
        f"<float[5,5] w = {{{w}}}, float minus = {{-3}}, float plus = {{3}}> {{ {' '.join(squares.lines)} }}"
    )


@thrifty
@given(graph=square_graphs(), data=st.data())
def test_random_chains_compute_the_same(pad_all, run, graph, data):
    def subset(problem):
        names = sorted(name for name, ports in problem.ports.items() if not ports.refusal)
        return data.draw(st.sets(st.sampled_from(names)))

    pair = pad_all(graph, subset)
    feeds = {name: value.clip(-1, 1) for name, value in feeds_of(pair.model).items()}
    expected, actual = (emulated(model, feeds) for model in (pair.unpadded, pair.model))
    for name, value in expected.items():
        # Unbounded products may overflow, and zero times infinity is not zero.
        if np.isfinite(value).all():
            np.testing.assert_array_equal(actual[name], value, err_msg=name)
    assert_valid(pair.model, run)
    keys = [(n.op_type, *n.input) for n in pair.model.graph.node if n.op_type == "Pad"]
    assert len(keys) == len(set(keys)), "a tensor is padded twice to one size"
    wanted = {(part.tensor, part.ends) for p in pair.plan.pads for part in p.inputs}
    for planned in pair.plan.pads:
        is_wanted = planned.output and (planned.output.tensor, planned.output.ends) in wanted
        if is_wanted:  # a Pad behind the Slice of the same amount would undo it
            low = f"{planned.output.tensor}_fp16"
            assert not any(n.op_type == "Pad" and n.input[0] == low for n in pair.model.graph.node)
