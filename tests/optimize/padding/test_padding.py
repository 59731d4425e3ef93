"""Writing pads: golden graphs per rule, and the same results for random products, padded and not."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from campo_onnx.devices.datasheet import device
from campo_onnx.ir import constants
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import work_of
from campo_onnx.optimize.oplists import preset
from campo_onnx.optimize.padding.alignment import open_axes
from campo_onnx.optimize.padding.choose import PadLimits, pad
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.options import Options
from campo_onnx.pipeline import optimize
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import run as run_once
from campo_onnx.training.numerics import emulate, relative_l2, seeded

ROOT = Path(__file__).parents[3]

FREE_LAUNCH = replace(device("v100"), launch_us=1e-6, host_us=1e-6)

# Tensor cores cost nothing and neither does memory: whatever can be padded is.
GENEROUS = replace(
    FREE_LAUNCH, fp32_flops_per_s=1e6, fp16_tensor_flops_per_s=1e30, memory_bandwidth_bytes_per_s=1e30
)

HERE = machine("cpu", 1)

WEIGHT = "<float[8,2] w = {1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6}>"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same precisions, with pads and without."""

    plan: Plan
    model: onnx.ModelProto
    unpadded: onnx.ModelProto


@pytest.fixture(scope="session")
def pad_all(lower):
    """Lower the named nodes, or all, and pad whatever can be padded."""

    def pad_all(source, low=None, dims=None):
        lowered = lower(source, low, dims=dims)
        limits = PadLimits(
            stored=frozenset(n for n, t in lowered.imported.constants.items() if not is_external(t)),
            open_axes=open_axes(lowered.imported, dims or {}),
        )
        plan = pad(lowered.problem, lowered.plan, GENEROUS, limits)
        return Pair(plan=plan, model=rewrite(lowered.imported, plan), unpadded=lowered.model)

    return pad_all


def text_of(model):
    """Nodes as ``outputs = op(inputs)``, in order, without Casts."""
    nodes = [node for node in model.graph.node if node.op_type != "Cast"]
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in nodes]


def initializers(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def feeds_of(model, seed=0):
    """Small integers, whose sums every order of adding gets right."""
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: generator.integers(
            -3, 4, [dim.dim_value or 5 for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
        if value.name not in constants
    }


def emulated(model, feeds):
    return run_once(seeded(emulate(model)), feeds, HERE)


def assert_same(pair, feeds=None):
    feeds = feeds or feeds_of(pair.model)
    expected = emulated(pair.unpadded, feeds)
    for name, value in emulated(pair.model, feeds).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def assert_valid(model, run):
    onnx.checker.check_model(model, full_check=True)
    run(model)


def assert_fits(model):
    view = import_model(model).view
    for node in view.nodes:
        assert all(gemm.is_aligned(8) for gemm in work_of(view.signature(node.name)).gemms), node.name


# --- one rule each ---


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        pytest.param(
            "g (float[9,16] x, float[16,8] w) => (float[9,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_7_0)",
                "y_fp16_padded = MatMul(x_fp16_padded, w_fp16)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-7, pad_0)",
            ],
            id="only what does not fit",
        ),
        pytest.param(
            "g (float[4,5,8] x, float[8,8] w) => (float[4,5,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_1_0)",
                "y_fp16_padded = MatMul(x_fp16_padded, w_fp16)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-1, pad_1)",
            ],
            id="rows of all batches count together where they share a matrix",
        ),
        pytest.param(
            "g (float[8,9] x, float[9,8] w) => (float[8,8] y) { [p] y = MatMul(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_7)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(x_fp16_padded, w_fp16_padded)",
            ],
            id="a longer sum needs no Slice",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
            ],
            id="a padded output feeds the next product as it is",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y, float[8,9] z)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) [r] z = Relu(h) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_1)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
                "z_fp16 = Relu(h_fp16)",
            ],
            id="and is cut for the others",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9,8] v) => (float[8,8] y, int64[2] s)"
            "{ [p] h = MatMul(x, w) [q] y = MatMul(h, v) s = Shape(h) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "h_fp16_padded = MatMul(x_fp16, w_fp16_padded)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_1)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(h_fp16_padded, v_fp16_padded)",
                "s = Shape(h_fp16)",
            ],
            id="a reader of the shape sees the true one",
        ),
        pytest.param(
            "g (float[8,9] x, float[9,8] w, float[9,8] v) => (float[8,8] y, float[8,8] z)"
            "{ [p] y = MatMul(x, w) [q] z = MatMul(x, v) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_7)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(x_fp16_padded, w_fp16_padded)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_7_0)",
                "z_fp16 = MatMul(x_fp16_padded, v_fp16_padded)",
            ],
            id="one Pad serves all readers",
        ),
        pytest.param(
            "g (float[8,8] x, float[8,9] w, float[9] b) => (float[8,9] y) { [p] y = Gemm(x, w, b) }",
            [
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_7)",
                "b_fp16_padded = Pad(b_fp16, pad_0_7)",
                "y_fp16_padded = Gemm(x_fp16, w_fp16_padded, b_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-7, pad_1)",
            ],
            id="a bias grows with the columns",
        ),
        pytest.param(
            "g (float[9,8] x, float[8,8] w, float[8] b, float[8,9] v) => (float[8,8] y)"
            "{ [p] h = Gemm(x, w, b) [q] y = MatMul(v, h) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_7_0)",
                "h_fp16_padded = Gemm(x_fp16_padded, w_fp16, b_fp16)",
                "h_fp16 = Slice(h_fp16_padded, pad_0, pad_-7, pad_0)",
                "v_fp16_padded = Pad(v_fp16, pad_0_0_0_7)",
                "h_fp16_padded_1 = Pad(h_fp16, pad_0_0_7_0)",
                "y_fp16 = MatMul(v_fp16_padded, h_fp16_padded_1)",
            ],
            id="rows that a bias fills are not zero, so the chain is cut",
        ),
        pytest.param(
            "g (float[2,3,4,4] x, float[5,3,3,3] w, float[5] b) => (float[2,5,2,2] y)"
            "{ [p] y = Conv(x, w, b) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_0_5_0_0)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_0_3_5_0_0)",
                "b_fp16_padded = Pad(b_fp16, pad_0_3)",
                "y_fp16_padded = Conv(x_fp16_padded, w_fp16_padded, b_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-3, pad_1)",
            ],
            id="channels of a convolution",
        ),
        pytest.param(
            "g (float[2,3,4,4] x, float[3,5,3,3] w) => (float[2,5,6,6] y) { [p] y = ConvTranspose(x, w) }",
            [
                "x_fp16_padded = Pad(x_fp16, pad_0_0_0_0_0_5_0_0)",
                "w_fp16_padded = Pad(w_fp16, pad_0_0_0_0_5_3_0_0)",
                "y_fp16_padded = ConvTranspose(x_fp16_padded, w_fp16_padded)",
                "y_fp16 = Slice(y_fp16_padded, pad_0, pad_-3, pad_1)",
            ],
            id="ConvTranspose has its channels the other way round",
        ),
    ],
)
def test_golden(pad_all, run, graph, expected):
    pair = pad_all(graph)
    assert text_of(pair.model) == expected
    assert_valid(pair.model, run)
    assert_same(pair)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[2,6,4,4] x, float[4,3,3,3] w) => (float[2,4,2,2] y) { y = Conv<group = 2>(x, w) }",
        "g (float[2,6,4,4] x, float[6,2,3,3] w) => (float[2,4,6,6] y) { y = ConvTranspose<group = 2>(x, w) }",
        "g (float[2,8,3,3] x, float[16,8,3,3] w) => (float[2,16,1,1] y) { y = Conv(x, w) }",
        "g (float[5] x, float[5,7] w) => (float[7] y) { y = MatMul(x, w) }",
        "g (float[16,5,8] x, float[8,24] w) => (float[16,5,24] y) { y = MatMul(x, w) }",
        "g (float[0,5] x, float[5,7] w) => (float[0,7] y) { y = MatMul(x, w) }",
        "g (float[5,5] x) => (float[5,5] y) { y = Relu(x) }",
    ],
    ids=[
        "grouped",
        "grouped back",
        "channels fit",
        "vector",
        "rows of all batches fit",
        "empty",
        "no product",
    ],
)
def test_what_is_left_alone(pad_all, graph):
    pair = pad_all(graph)
    assert pair.plan.pads == ()
    assert pair.model.SerializeToString(deterministic=True) == pair.unpadded.SerializeToString(
        deterministic=True
    )


def test_a_given_low_version_is_padded_not_converted_anew(pad_all):
    pair = pad_all(
        f"g (float[8,8] x) => (float[8,2] y, float16[8,2] z) {WEIGHT}"
        "{ [c] z = Cast<to = 10>(w) [p] y = MatMul(x, w) }",
        ["p"],
    )
    assert "z_padded = Pad(z, pad_0_0_0_6)" in text_of(pair.model)
    assert_same(pair)


# --- weights ---


def test_an_initializer_is_padded_in_the_file(pad_all, run):
    pair = pad_all(f"g (float[8,8] x) => (float[8,2] y) {WEIGHT} {{ y = MatMul(x, w) }}")
    found = initializers(pair.model)
    assert "w" not in found
    assert "w_fp16" not in found
    assert found["w_fp16_padded"].dtype == np.float16
    assert found["w_fp16_padded"][:, :2].ravel().tolist() == [*range(1, 10), *range(7)]
    assert not found["w_fp16_padded"][:, 2:].any()
    assert [part.by for part in pair.plan.pads[0].inputs] == ["file"]
    assert pair.plan.only_padded == {"w"}
    assert_valid(pair.model, run)
    assert_same(pair)


def test_an_initializer_that_others_read_is_there_in_both_sizes(pad_all):
    pair = pad_all(
        f"g (float[8,8] x) => (float[8,2] y, float[8,2] z) {WEIGHT} {{ y = MatMul(x, w) z = Relu(w) }}"
    )
    assert pair.plan.only_padded == frozenset()
    assert {name: a.shape for name, a in initializers(pair.model).items() if "w" in name} == {
        "w_fp16": (8, 2),
        "w_fp16_padded": (8, 8),
    }
    assert_same(pair)


def test_an_external_weight_is_padded_as_it_runs(pad_all, model_text, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "_SMALL_BYTES", 0)  # small ones are read into the file
    model = model_text(f"g (float[8,8] x) => (float[8,2] y) {WEIGHT} {{ y = MatMul(x, w) }}")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(initializers(model)["w"], "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    pair = pad_all(tmp_path / "m.onnx")
    of_the_line = optimize(tmp_path / "m.onnx", Options(device=GENEROUS, lists=preset("campo"))).plan
    for plan in (pair.plan, of_the_line):
        assert [part.by for part in plan.pads[0].inputs] == ["pad"]
    for name, mixed in (("padded", pair.model), ("unpadded", pair.unpadded)):
        export_model(mixed, tmp_path / f"{name}.onnx", folder=tmp_path)
    loaded = {name: onnx.load(tmp_path / f"{name}.onnx") for name in ("padded", "unpadded")}
    assert_same(Pair(plan=pair.plan, model=loaded["padded"], unpadded=loaded["unpadded"]))


# --- open dimensions ---


def test_axes_with_a_symbol_are_not_padded(pad_all):
    graph = "g (float[N,20] x, float[20,30] w) => (float[N,30] y) { y = MatMul(x, w) }"
    assert pad_all(graph, dims={"N": 5}).plan.pads == ()
    pair = pad_all(graph, dims={"N": 8})
    assert [part.ends for part in pair.plan.pads[0].inputs] == [(0, 4), (4, 2)]
    feeds = {"x": np.ones((3, 20), np.float32), "w": np.eye(20, 30, dtype=np.float32)}
    for model in (pair.model, pair.unpadded):
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
        np.testing.assert_array_equal(run_once(model, feeds, HERE)["y"], feeds["x"] @ feeds["w"])


def test_a_symbol_inside_counts_too(pad_all):
    graph = "g (float[20,N] x, float[20,30] w) => (float[N,30] y) { t = Transpose(x) [p] y = MatMul(t, w) }"
    assert pad_all(graph, dims={"N": 5}).plan.pads == ()
    assert len(pad_all(graph, dims={"N": 16}).plan.pads) == 1


def test_an_initializer_fixes_the_axes_it_shares(pad_all):
    w = f"<float[8,2] w = {{{', '.join('1' * 16)}}}>"
    text = f"g (float[N,M] x) => (float[N,K] y) {w} {{ t = Relu(x) [p] h = MatMul(t, w) y = Neg(h) }}"
    pair = pad_all(text, dims={"N": 8, "M": 8})
    assert [part.ends for part in pair.plan.pads[0].inputs] == [(0, 6)]


@pytest.mark.parametrize(("rows", "expected"), [(16, 1), (15, 0)])
def test_the_whole_line_minds_open_axes(model_text, rows, expected):
    model = model_text("g (float[N,20] x, float[20,30] w) => (float[N,30] y) { y = MatMul(x, w) }")
    options = Options(device=GENEROUS, lists=preset("campo"), dims={"N": rows})
    assert len(optimize(model, options).plan.pads) == expected


# --- random products ---

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
    made = Squares()
    for _ in range(draw(st.integers(2, 8))):
        a, b = draw(st.sampled_from(made.tensors)), draw(st.sampled_from(made.tensors))
        op = draw(
            st.sampled_from(["MatMul({}, {})", "MatMul({}, {})", "Gemm<transB = 1>({}, {})", "Relu({})"])
        )
        made.add(op.format(a, b))
        if "{}, {}" in op and draw(st.booleans()):
            made.add(f"Max({made.tensors[-1]}, minus)")
            made.add(f"Min({made.tensors[-1]}, plus)")
    last = made.tensors[-1]
    outputs = sorted({last, *draw(st.lists(st.sampled_from(made.tensors[3:]), max_size=2))})
    w = ", ".join(str(i % 5 - 2) for i in range(25))
    return (
        f"g (float[5,5] x, float[5,5] z) => ({', '.join(typed(t, (5, 5)) for t in outputs)}) "
        f"<float[5,5] w = {{{w}}}, float minus = {{-3}}, float plus = {{3}}> {{ {' '.join(made.lines)} }}"
    )


@thrifty
@given(graph=square_graphs(), data=st.data())
def test_random_chains_compute_the_same(pad_all, run, graph, data):
    def subset(problem):
        names = sorted(name for name, ports in problem.ports.items() if not ports.refusal)
        return data.draw(st.sets(st.sampled_from(names)))

    pair = pad_all(graph, subset)
    feeds = {name: value.clip(-1, 1) for name, value in feeds_of(pair.model).items()}
    expected, found = (emulated(model, feeds) for model in (pair.unpadded, pair.model))
    for name, value in expected.items():
        # Unbounded products may overflow, and zero times infinity is not zero.
        if np.isfinite(value).all():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert_valid(pair.model, run)
    keys = [(n.op_type, *n.input) for n in pair.model.graph.node if n.op_type == "Pad"]
    assert len(keys) == len(set(keys)), "a tensor is padded twice to one size"
    made = {n.output[0]: n for n in pair.model.graph.node}
    wanted = {(part.tensor, part.ends) for p in pair.plan.pads for part in p.inputs}
    for planned in pair.plan.pads:
        is_wanted = planned.output and (planned.output.tensor, planned.output.ends) in wanted
        if is_wanted:  # a Pad behind the Slice of the same amount would undo it
            low = f"{planned.output.tensor}_fp16"
            assert not any(n.op_type == "Pad" and n.input[0] == low for n in made.values())


# --- real graphs ---


@pytest.mark.parametrize("name", ["mlp", "alexnet_like", "resblocks"])
def test_pads_change_real_graphs_by_accumulation_error_only(name):
    path = ROOT / "tests" / "data" / f"{name}.onnx"
    options = Options(device=FREE_LAUNCH, lists=preset("campo"), keep_fp32=("Random.*",))
    optimized = optimize(path, options)
    assert optimized.plan.pads
    unpadded = rewrite(optimized.imported, replace(optimized.plan, pads=()))
    feeds = synthesize(import_model(path).view)
    expected, found = (emulated(model, feeds) for model in (unpadded, optimized.model))
    for output, value in expected.items():
        assert relative_l2(found[output], value) < 1e-3, output
