"""Emulated low precision against ONNX's reference evaluator, op by op, and against whole graphs."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from campo_onnx import Options, Precision, oplists, target
from campo_onnx.emulation.numerics import drift, emulate, relative_l2
from campo_onnx.ir.constants import constants_of
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.shapes import TensorTypes, infer
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.pipeline import decide, problem_of
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.cast_model import CastModel

DATA = Path(__file__).parent.parent / "data"
GRAPHS = ("alexnet_like", "bert2_mlm_sdpa", "mlp", "resblocks")
STRATEGIES = ("tf-amp", "campo", "optimal")
NATIVE = {"Cast", "Constant", "ConstantOfShape"}
CPU = machine("cpu", 2)

# The reference evaluator computes these in FP16 as IEEE says, or moves values: equal to the bit.
IEEE = {"Add", "Div", "Equal", "Expand", "Gather", "GatherElements", "Less", "LessOrEqual", "MaxPool", "Mul"}
IEEE |= {"Neg", "Reciprocal", "Relu", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze"}
IEEE |= {"Where"}
# It sums these in FP16; a GPU sums in FP32 and stores FP16. The values are such that FP32 sums are exact
# in any order, so FP32 and one rounding is one result, to the bit.
SUMS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "ReduceMean", "ReduceSum", "ScatterElements"}
# FP32 functions of two libraries differ in their last bit; where that straddles the middle between two FP16
# numbers, the results are neighbours.
FUNCTIONS = {"BatchNormalization", "Erf", "Exp", "Gelu", "LayerNormalization", "LogSoftmax", "Softmax"}
NEIGHBOURS = 0.01  # share of results that may be neighbours
# Two libraries draw different numbers.
RANDOM = {"RandomUniform"}


OPTIONS = Options(target=target("h200"), lists=oplists("campo"))


@cache
def costless(graph: str) -> tuple[Imported, Problem]:
    """Read a graph as for a device on which Casts cost nothing: small ones are otherwise faster in FP32."""
    imported = import_model(DATA / f"{graph}.onnx")
    problem = problem_of(imported, OPTIONS)
    costs = replace(problem.costs, cast=CastModel(r_us=0.0, c_i_us=0.0))
    return imported, replace(problem, costs=costs)


@cache
def mixed(graph: str, strategy: str) -> onnx.ModelProto:
    imported, problem = costless(graph)
    return rewrite(imported, decide(problem, imported, replace(OPTIONS, strategy=strategy)))


def single(model: onnx.ModelProto, node: onnx.NodeProto, types: TensorTypes) -> onnx.ModelProto:
    """One node as a model; constants stay constants."""
    constants = constants_of(model.graph)
    names = [t for t in dict.fromkeys(node.input) if t]

    def infos(tensors: Iterable[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(t, types.dtypes[t], types.shapes[t]) for t in tensors if t]

    graph = helper.make_graph(
        [node],
        "single",
        infos(t for t in names if t not in constants),
        infos(node.output),
        [constants[t] for t in names if t in constants],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


LowNodes = Mapping[str, tuple[onnx.ModelProto, ...]]


@pytest.fixture(scope="module")
def low_nodes(lower: Callable[..., Any]) -> LowNodes:
    """Small FP16 nodes by operator, with different attributes, of graphs with all low that can be."""
    operators: dict[str, dict[Any, tuple[int, onnx.ModelProto]]] = {}
    for graph in GRAPHS:
        model = lower(DATA / f"{graph}.onnx").model
        types = infer(model, {})
        for node in model.graph.node:
            tensors = [t for t in (*node.input, *node.output) if t]
            if node.op_type in NATIVE or all(types.dtypes[t] != TensorProto.FLOAT16 for t in tensors):
                continue
            if node.op_type == "ConvTranspose" and any(a.name == "group" and a.i > 1 for a in node.attribute):
                continue  # the reference evaluator cannot
            size = sum(int(np.prod(types.shapes[t])) for t in tensors)
            key = (tuple(a.SerializeToString() for a in node.attribute), len(node.input))
            kinds = operators.setdefault(node.op_type, {})
            if key not in kinds or size < kinds[key][0]:
                kinds[key] = (size, single(model, node, types))
    return {
        op: tuple(model for _, model in sorted(kinds.values(), key=lambda kind: kind[0])[:3])
        for op, kinds in operators.items()
    }


def feeds_for(model: onnx.ModelProto, scale: float) -> dict[str, NDArray[Any]]:
    """FP16 multiples of scale/8 up to 8 * scale, now and then subnormal, infinite or a negative zero."""
    (node,) = model.graph.node
    rng = np.random.default_rng(zlib.crc32(node.name.encode()))
    feeds: dict[str, NDArray[Any]] = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        match info.type.tensor_type.elem_type:
            case TensorProto.BOOL:
                feeds[info.name] = rng.integers(0, 2, shape) > 0
            case TensorProto.INT64:
                feeds[info.name] = rng.integers(0, 2, shape)
            case dtype:
                value = np.asarray(rng.integers(-64, 65, shape) / 8 * scale)
                if node.op_type in IEEE:
                    odd = rng.integers(0, 16, shape)
                    value = np.where(odd == 0, rng.integers(-1023, 1024, shape) * 2.0**-24, value)
                    value = np.where(odd == 1, -0.0, value)
                    value = np.where(odd == 2, np.inf, value)
                if node.op_type == "BatchNormalization" and info.name == node.input[4]:
                    value = np.abs(value) + 0.5
                feeds[info.name] = value.astype(helper.tensor_dtype_to_np_dtype(dtype))
    return feeds


def fp32_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same node in FP32."""
    fp32 = onnx.ModelProto()
    fp32.CopyFrom(model)
    for info in (*fp32.graph.input, *fp32.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in fp32.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
            )
    return fp32


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The bits, with one NaN: the sign and payload of a NaN mean nothing."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array).view(f"u{array.dtype.itemsize}")


def log_softmax(x: NDArray[Any], axis: int) -> NDArray[Any]:
    below = x.astype(np.float64) - x.max(axis, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis, keepdims=True)), np.float32)


def references(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    (node,) = model.graph.node
    with np.errstate(all="ignore"):
        if node.op_type in IEEE:
            return list(ReferenceEvaluator(model).run(None, dict(feeds)))
        wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
        if node.op_type == "LogSoftmax":  # the evaluator takes the logarithm of a softmax that became zero
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
            results = [log_softmax(wide[node.input[0]], axis)]
        else:
            results = ReferenceEvaluator(fp32_of(model)).run(None, wide)
        dtypes = [o.type.tensor_type.elem_type for o in model.graph.output]
        return [
            np.asarray(r).astype(helper.tensor_dtype_to_np_dtype(d))
            for r, d in zip(results, dtypes, strict=True)
        ]


CASES = [(op, scale) for op in sorted(IEEE | SUMS | FUNCTIONS) for scale in (1.0, 0.001, 256.0)]


def test_every_op_type_is_checked(low_nodes: LowNodes) -> None:
    assert set(low_nodes) == IEEE | SUMS | FUNCTIONS | RANDOM


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_no_strategy_lowers_an_op_type_that_is_not_checked(graph: str, strategy: str) -> None:
    model = mixed(graph, strategy)
    dtypes = infer(model, {}).dtypes
    low = {n.op_type for n in model.graph.node if any(dtypes.get(t) == TensorProto.FLOAT16 for t in n.output)}
    assert low <= IEEE | SUMS | FUNCTIONS | RANDOM | NATIVE


@pytest.mark.parametrize(("op", "scale"), CASES)
def test_one_node_rounds_like_the_reference(low_nodes: LowNodes, op: str, scale: float) -> None:
    if op in SUMS:
        scale = 2.0 ** round(np.log2(scale))  # a power of two keeps sums exact
    for model in low_nodes[op]:
        feeds = feeds_for(model, scale)
        actual = run(emulate(model), feeds, CPU)
        for info, expected in zip(model.graph.output, references(model, feeds), strict=True):
            got = actual[info.name]
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            different = bits(got) != bits(expected)
            if op in FUNCTIONS and got.dtype == np.float16:
                different &= got != expected  # one library's zero has a sign
                steps = np.abs(bits(got)[different].astype(int) - bits(expected)[different].astype(int))
                assert (steps == 1).all()
                assert different.mean() <= NEIGHBOURS
            elif op in FUNCTIONS:  # FP32 statistics of LayerNormalization
                np.testing.assert_allclose(got, expected, rtol=1e-5)
            else:
                assert not different.any()


def test_overflow_and_subnormals_occur(low_nodes: LowNodes) -> None:
    products = [
        run(emulate(model), feeds_for(model, scale), CPU)[model.graph.output[0].name].astype(np.float32)
        for model in low_nodes["MatMul"]
        for scale in (2.0**-10, 256.0)
    ]
    values = np.concatenate([p.reshape(-1) for p in products])
    assert np.isinf(values).any()
    assert ((values != 0) & (np.abs(values) < Precision.FP16.smallest_normal)).any()


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_casts_round_to_nearest_even(name: str, dtype: Any) -> None:
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[N] x) => (float[N] z) {{
            y = Cast<to={int(TensorProto.FLOAT16 if name == "float16" else TensorProto.BFLOAT16)}>(x)
            r = Identity(y)
            z = Cast<to=1>(r)
        }}""")
    rng = np.random.default_rng(0)
    halves = np.arange(1 << 16, dtype=np.uint32) << 16  # all BF16 numbers, and their middles
    x = np.concatenate(
        [
            rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32),
            np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32),
            (np.arange(1 << 16, dtype=np.uint32) * (1 << 12) + (1 << 30)).view(np.float32),  # middles of FP16
            halves.view(np.float32),
            (halves | 0x8000).view(np.float32),
            (halves | 0x7FFF).view(np.float32),
            np.array([65504, 65519.99, 65520, 2**-24, 2**-25, 2**-25 * 1.001, 3 * 2**-25], np.float32),
        ]
    )
    with np.errstate(all="ignore"):
        expected = x.astype(dtype).astype(np.float32)
    actual = run(emulate(model, {"N": x.size}), {"x": x}, CPU)["z"]
    np.testing.assert_array_equal(bits(actual), bits(expected))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_whole_graphs_keep_their_interface_and_compute_in_fp32(graph: str, strategy: str) -> None:
    model = mixed(graph, strategy)
    emulated = emulate(model)
    onnx.checker.check_model(emulated, full_check=True)
    assert list(emulated.graph.input) == list(model.graph.input)
    assert list(emulated.graph.output) == list(model.graph.output)
    dtypes = infer(emulated, {}).dtypes
    for node in emulated.graph.node:
        if node.op_type not in NATIVE:
            assert all(dtypes[t] != TensorProto.FLOAT16 for t in (*node.input, *node.output) if t)


@pytest.mark.parametrize(
    ("graph", "dims"),
    [
        ("cnn_artifacts_training_model", {"B": 4}),
        ("cnn_optimized_training", {"x_dim0": 4, "x_dim1": 3, "x_dim2": 32, "x_dim3": 32, "y_dim0": 4}),
    ],
)
def test_gradient_operators_of_training_builds(graph: str, dims: Mapping[str, int]) -> None:
    """No wheel runs ConvGrad and its like, so only types are checked."""
    options = Options(target=target("h200"), lists=oplists("campo"), strategy="tf-amp", dims=dims)
    imported = import_model(DATA / f"{graph}.onnx", dims)
    model = rewrite(imported, decide(problem_of(imported, options), imported, options))
    before, after = infer(model, dims).dtypes, infer(emulate(model, dims), dims).dtypes
    assert TensorProto.FLOAT16 in before.values()
    assert all(after[tensor] == dtype for tensor, dtype in before.items())


def feeds_of_mlp(seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for info in onnx.load(DATA / "mlp.onnx").graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            feeds[info.name] = (rng.standard_normal(shape) * 0.2).astype(np.float32)
        else:
            feeds[info.name] = rng.integers(0, 2, shape)
    return feeds


def test_drift_is_that_of_fp16() -> None:
    fp32 = onnx.load(DATA / "mlp.onnx")
    drifts = drift(fp32, mixed("mlp", "tf-amp"), feeds_of_mlp(), threads=2)
    assert set(drifts) == {o.name for o in fp32.graph.output}
    assert 1e-4 < max(drifts.values()) < 1e-2


def test_the_provider_alone_shows_no_drift() -> None:
    """Why the emulation is needed; where this fails, ONNX Runtime has learnt to keep FP16."""
    fp32 = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[4, 8] x, float[8, 4] w) => (float[4, 4] y) { y = MatMul(x, w) }""")
    low = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[4, 8] x, float[8, 4] w) => (float[4, 4] y) {
            a = Cast<to=10>(x)
            b = Cast<to=10>(w)
            c = MatMul(a, b)
            y = Cast<to=1>(c)
        }""")
    rng = np.random.default_rng(0)
    feeds = {t: rng.standard_normal(s).astype(np.float32) for t, s in (("x", (4, 8)), ("w", (8, 4)))}
    assert relative_l2(run(low, feeds, CPU)["y"], run(fp32, feeds, CPU)["y"]) == 0
    assert drift(fp32, low, feeds, threads=2)["y"] > 1e-5


def test_drift_draws_the_same_dropout_masks() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 20]>
        g (float[64] x) => (float[64] y) {
            u = RandomUniform<dtype=DTYPE, shape=[64]>()
            WIDEN
            y = Mul(x, r)
        }"""
    fp32 = parser.parse_model(text.replace("DTYPE", "1").replace("WIDEN", "r = Identity(u)"))
    low = parser.parse_model(text.replace("DTYPE", "10").replace("WIDEN", "r = Cast<to=1>(u)"))
    for model in (fp32, low):
        model.graph.node[0].name = "mask"
    drifts = drift(fp32, low, {"x": np.ones(64, np.float32)}, threads=2)
    assert 0 < drifts["y"] < 1e-3


def test_drift_seeds_a_dropout_operator_too() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        g (float[256] x) => (float[256] y)
        <float half = {0.5}, bool training = {1}> {
            [drop] y = Dropout(x, half, training)
        }""")
    drifts = drift(model, model, {"x": np.ones(256, np.float32)}, threads=2)
    assert drifts["y"] == 0
