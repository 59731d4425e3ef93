import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir.shapes import TensorTypes, infer

F32, F16, I64 = (int(t) for t in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64))


def model(graph: str, opset: int = 17) -> onnx.ModelProto:
    imports = f'"": {opset}, "com.microsoft": 1, "org.pytorch.aten": 1'
    return parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {graph}")


def types(graph: str, **dims: int) -> TensorTypes:
    return infer(model(graph), dims)


# --- binding ---


def test_bound_symbols_reach_every_tensor():
    tensors = types(
        "g (float[N, 3] x, float[3, M] w) => (float[N, M] y) { h = MatMul(x, w) y = Relu(h) }", N=8, M=5
    )
    assert tensors.shapes == {"x": (8, 3), "w": (3, 5), "h": (8, 5), "y": (8, 5)}
    assert set(tensors.dtypes.values()) == {F32}


def test_an_unbound_input_is_refused():
    with pytest.raises(UsageError, match="--dim N=SIZE"):
        types("g (float[N] x) => (float[N] y) { y = Relu(x) }")


def test_a_nameless_dimension_is_bound_by_position():
    tensors = infer(model("g (float[?, 3] x) => (float y) { y = Relu(x) }"), {"x[0]": 8})
    assert tensors.shapes["y"] == (8, 3)


def test_an_internal_symbol_may_be_bound_or_left():
    graph = "g (float[2] x) => (float[2] y) <float[K] h> { h = com.microsoft.Mystery(x) y = Relu(x) }"
    assert types(graph).shapes["h"] is None
    assert types(graph, K=4).shapes["h"] == (4,)


def test_the_initializer_decides_over_the_input_of_the_same_name():
    graph = "g (float[N] w) => (float y) <float[2] w = {1, 2}> { y = Relu(w) }"
    assert types(graph).shapes == {"w": (2,), "y": (2,)}


# --- contradictions ---


def test_operands_that_disagree_are_a_model_error_with_node_and_shapes():
    graph = "g (float[2, 3] a, float[4, 5] b) => (float y) { [product] y = MatMul(a, b) }"
    with pytest.raises(ModelError) as caught:
        types(graph)
    assert "'product' (MatMul)" in caught.value.what
    assert "Incompatible dimensions" in caught.value.why
    assert "a: FLOAT 2x3, b: FLOAT 4x5" in caught.value.why
    assert "InferenceError" not in str(caught.value)


def test_a_contradiction_asks_about_the_sizes_given():
    with pytest.raises(ModelError, match="Are these sizes meant: --dim N=7"):
        types("g (float[2, N] a, float[4, 5] b) => (float y) { [m] y = MatMul(a, b) }", N=7)


def test_training_ops_that_disagree_are_a_model_error():
    graph = "g (float[2, 3] a, float[4, 5] b) => (float y) { [m] y = com.microsoft.FusedMatMul(a, b) }"
    with pytest.raises(ModelError, match="inner dimensions differ: 3 and 4"):
        types(graph)


def test_a_domain_that_is_not_imported_is_a_model_error():
    with pytest.raises(ModelError, match="No opset import for domain nowhere"):
        types("g (float[2] x) => (float y) { y = nowhere.Relu(x) }")


def test_a_damaged_constant_is_a_model_error():
    damaged = model("g (float[2] x) => (float y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    damaged.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=F32, dims=[2], raw_data=b"abc"))
    with pytest.raises(ModelError, match="Constant 'w' is damaged"):
        infer(damaged, {})


def test_an_assumed_shape_that_does_not_fit_accuses_nobody():
    graph = """g (float[2, 3] x) => (float[2, 9] y) <float[7] h>
               { h = com.microsoft.Mystery(x) s = MatMul(x, h) y = Relu(s) }"""
    assert types(graph).shapes == {"x": (2, 3), "h": (7,), "s": None, "y": (2, 9)}


# --- what wins ---


def test_inference_wins_over_a_stale_declaration():
    graph = "g (float[N, 3] x) => (float[32, 3] y) <float[32, 3] h> { h = Neg(x) y = Relu(h) }"
    assert types(graph, N=8).shapes == {"x": (8, 3), "h": (8, 3), "y": (8, 3)}


def test_inference_wins_over_the_naming_rule():
    tensors = types("g (float[2, 3] x) => (float y) { x_grad = Transpose(x) y = Relu(x_grad) }")
    assert tensors.shapes["x_grad"] == (3, 2)


def test_a_gradient_has_the_shape_of_its_tensor_where_nothing_else_is_known():
    graph = """g (float[1, 3, 8, 8] x) => (float y) <float[9] x_grad>
               { dy, i = MaxPool<kernel_shape = [2, 2]>(x) x_grad = MaxPoolGrad(dy, i) y = Relu(x_grad) }"""
    tensors = types(graph)
    assert tensors.shapes["x_grad"] == tensors.shapes["y"] == (1, 3, 8, 8)


def test_a_declaration_serves_where_nothing_else_is_known():
    graph = "g (float[N] x) => (float y) <float16[N, 3] h> { h = com.microsoft.Mystery(x) y = Relu(h) }"
    tensors = types(graph, N=8)
    assert (tensors.dtypes["h"], tensors.shapes["h"]) == (F16, (8, 3))
    assert (tensors.dtypes["y"], tensors.shapes["y"]) == (F16, (8, 3))


def test_aten_types_come_from_the_declaration_and_shapes_from_the_rule():
    graph = """g (float[50, 32] w, int64[N, 8] ids) => (float y) <float16[4, 8, 32] h>
               { h = org.pytorch.aten.ATen<operator = "embedding">(w, ids) y = Identity(h) }"""
    tensors = types(graph, N=2)
    assert (tensors.dtypes["h"], tensors.shapes["h"]) == (F16, (2, 8, 32))
    assert (tensors.dtypes["y"], tensors.shapes["y"]) == (F16, (2, 8, 32))


# --- training ops between standard ones ---


def test_standard_ops_behind_training_ops():
    graph = """g (float[N, 3] x, float[3, 4] w) => (float y)
               { a = com.microsoft.Gelu(x) b = MatMul(a, w) c = com.microsoft.ReluGrad(b, b)
                 d = Transpose(c) y = Softmax(d) }"""
    assert types(graph, N=2).shapes["y"] == (4, 2)


def test_omitted_outputs_are_skipped():
    graph = """g (float[2, 8, 6, 6] dy, float[2, 3, 8, 8] x, float[8, 3, 3, 3] w) => (float dw)
               { "", dw, db = com.microsoft.ConvGrad(dy, x, w) }"""
    bare = model(graph.replace('"", dw', "dx, dw"))
    bare.graph.node[0].output[0] = ""
    tensors = infer(bare, {})
    assert tensors.shapes["dw"] == (8, 3, 3, 3)
    assert tensors.shapes["db"] == (8,)
    assert "" not in tensors.shapes


def test_shape_arithmetic_behind_a_training_op_becomes_static():
    graph = """g (float[N, 12] x) => (float y) <int64 zero = {0}, int64[1] axis = {0}, int64[2] tail = {3, 4}>
               { h = com.microsoft.Gelu(x) s = Shape(h) n = Gather(s, zero) m = Unsqueeze(n, axis)
                 t, lengths = com.microsoft.ConcatTraining<axis = 0>(m, tail) y = Reshape(h, t) }"""
    tensors = types(graph, N=5)
    assert tensors.shapes["y"] == (5, 3, 4)
    assert tensors.values["t"].tolist() == [5, 3, 4]
    assert tensors.values["lengths"].tolist() == [1, 2]


def test_gather_grad_takes_its_shape_from_a_value():
    graph = """g (float[50, 32] w, int64[8] ids, float[8, 32] dy) => (float dw)
               { s = Shape(w) dw = com.microsoft.GatherGrad(s, ids, dy) }"""
    assert types(graph).shapes["dw"] == (50, 32)


def test_broadcast_gradient_args_decide_a_reduction():
    graph = """g (float[N, 3] a, float[1, 3] b, float[N, 3] dy) => (float db)
               { p = com.microsoft.Gelu(a) sa = Shape(p) sb = Shape(b)
                 ra, rb = com.microsoft.BroadcastGradientArgs(sa, sb)
                 db = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(dy, rb)
                 da = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(dy, ra) }"""
    tensors = types(graph, N=4)
    assert tensors.shapes["ra"] == (0,)
    assert tensors.values["rb"].tolist() == [0]
    assert tensors.shapes["da"] == (4, 3)
    assert tensors.shapes["db"] == (1, 3)


def test_a_body_may_read_what_only_a_rule_types():
    graph = """g (float[2, 3] x, bool c) => (float z)
               { w = com.microsoft.Gelu(x)
                 y = If (c) <then_branch = t () => (float[A, B] u) { u = Relu(w) },
                             else_branch = e () => (float[C, D] v) { v = Neg(w) }>
                 z = Transpose(y) }"""
    assert types(graph).shapes["z"] == (3, 2)


# --- values ---


def test_small_constants_of_any_type_are_known_and_large_ones_are_not():
    graph = """g (float[2] x) => (float y) <float16[2] h = {1, 2}>
               { c = Constant<value_float = 0.5>() y = Mul(x, c) }"""
    proto = model(graph)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1025, np.float32), "large"))
    tensors = infer(proto, {})
    assert tensors.values["c"] == np.float32(0.5)
    assert tensors.values["h"].dtype == np.float16
    assert "large" not in tensors.values
    assert tensors.shapes["large"] == (1025,)
    assert tensors.dtypes["large"] == F32


def test_computed_values_are_integers_of_limited_size():
    graph = """g (float[64, 64] x) => (float y)
               <int64 zero = {0}, int64 n = {1024}, int64 m = {1025}, int64 one = {1}, float half = {0.5}>
               { y = Relu(x) few = Range(zero, n, one) many = Range(zero, m, one) sum = Add(half, half) }"""
    tensors = types(graph)
    assert tensors.values["few"].shape == tensors.shapes["few"] == (1024,)
    assert "many" not in tensors.values
    assert tensors.shapes["many"] == (1025,)
    assert "sum" not in tensors.values


def test_external_data_is_not_read():
    proto = model("g (float[2] x) => (float y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    external = TensorProto(name="w", data_type=F32, dims=[2], data_location=TensorProto.EXTERNAL)
    external.external_data.add(key="location", value="does_not_exist.bin")
    proto.graph.initializer[0].CopyFrom(external)
    tensors = infer(proto, {})
    assert tensors.shapes["w"] == tensors.shapes["y"] == (2,)
    assert "w" not in tensors.values


def test_the_model_is_not_modified():
    proto = model(
        "g (float[N] x) => (float[N] y) <float[N] h, float[2] w = {1, 2}> { h = Add(x, w) y = Relu(h) }"
    )
    before = proto.SerializeToString(deterministic=True)
    infer(proto, {"N": 2})
    assert proto.SerializeToString(deterministic=True) == before


# --- everything else ---


def test_sequences_have_neither_type_nor_shape():
    graph = """g (seq(float[N]) q, float[2, 3] x) => (float[2, 3] y)
               { r = SequenceInsert(q, x) n = SequenceLength(r) y = Relu(x) }"""
    tensors = types(graph)
    assert tensors.dtypes["q"] == tensors.dtypes["r"] == 0
    assert tensors.shapes["q"] is tensors.shapes["r"] is None
    assert (tensors.dtypes["n"], tensors.shapes["n"]) == (I64, ())


def test_an_unknown_op_leaves_its_outputs_unknown():
    tensors = types("g (float[2] x) => (float[2] y) { h = com.microsoft.Mystery(x) k = Neg(h) y = Relu(x) }")
    for name in ("h", "k"):
        assert (tensors.dtypes[name], tensors.shapes[name]) == (0, None)


def test_data_dependent_sizes_stay_unknown():
    tensors = types(
        "g (float[2, 3] x) => (float y) { i = NonZero(x) t = Transpose(i) s = Shape(t) y = Relu(x) }"
    )
    assert (tensors.dtypes["i"], tensors.shapes["i"], tensors.shapes["t"]) == (I64, None, None)
    assert tensors.shapes["s"] == (2,)


def test_old_models_that_list_initializers_as_inputs():
    proto = model("g (float[2] x, float[2] w) => (float y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    proto.ir_version = 3
    assert infer(proto, {}).shapes["y"] == (2,)
