import onnx
import pytest
from onnx import TypeProto, helper, parser

from campo_onnx.errors import UsageError
from campo_onnx.ir.dims import bind_type, check_dims, static_shape


def graph(inputs: str) -> onnx.GraphProto:
    return parser.parse_graph(f"g ({inputs}) => (float[OUT, 2] y) {{ y = Relu(x) }}")


@pytest.mark.parametrize(
    ("inputs", "dims"),
    [
        ("float[2, 3] x", {}),
        ("float x", {}),  # a scalar has nothing to bind
        ("float[N, 3] x, float[N] z", {"N": 2}),
        ("float[N, ?] x", {"N": 2, "x[1]": 3}),
        ("float[2] x", {"OUT": 5}),  # a symbol that only an output has
        ("seq(float[N]) x", {}),
        ("float[] x", {"x[0]": 2, "x[1]": 3}),
    ],
)
def test_complete_dims_are_accepted(inputs, dims):
    check_dims(graph(inputs), dims)


def test_a_missing_size_is_named_with_its_inputs():
    with pytest.raises(UsageError) as caught:
        check_dims(graph("float[N, ?] x, float[N, N] z, float[M] w"), {"M": 1})
    assert caught.value.why == "N (of x, z); x[1] (of x)"
    assert "--dim N=SIZE --dim x[1]=SIZE" in caught.value.remedy


def test_an_input_without_rank_needs_at_least_one_size():
    with pytest.raises(UsageError, match=r"--dim x\[0\]=SIZE\."):
        check_dims(graph("float[] x"), {})


def test_the_given_sizes_of_an_input_without_rank_must_not_have_gaps():
    with pytest.raises(UsageError, match=r"unknown: x\[1\] \(of x\)"):
        check_dims(graph("float[] x"), {"x[0]": 2, "x[2]": 3})


def test_an_initializer_that_is_also_an_input_needs_no_size():
    model = graph("float[N] x")
    model.initializer.append(helper.make_tensor("x", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    check_dims(model, {})


def test_a_misspelled_dimension_gets_a_suggestion():
    with pytest.raises(UsageError, match=r"no dimension 'bacth'. Did you mean 'batch'\?"):
        check_dims(graph("float[batch] x"), {"batch": 2, "bacth": 2})


def test_an_unknown_dimension_gets_the_list():
    with pytest.raises(UsageError, match="It has N, OUT"):
        check_dims(graph("float[N] x"), {"N": 2, "zzzzzz": 2})


def test_a_dimension_of_a_fixed_graph_is_refused():
    fixed = parser.parse_graph("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="leave --dim out"):
        check_dims(fixed, {"N": 2})


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_must_be_positive(size):
    with pytest.raises(UsageError, match=f"'N' cannot have size {size}"):
        check_dims(graph("float[N] x"), {"N": size})


def test_binding_replaces_symbols_and_drops_unbound_ones():
    declared = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["N", 3, "M", None])
    assert static_shape(bind_type(declared, {"N": 2, "M": 4, "x[3]": 5}, "x")) == (2, 3, 4, 5)
    partial = bind_type(declared, {"N": 2})
    assert static_shape(partial) is None
    assert [dim.dim_value for dim in partial.tensor_type.shape.dim] == [2, 3, 0, 0]
    assert not any(dim.dim_param for dim in partial.tensor_type.shape.dim)
    assert declared.tensor_type.shape.dim[0].dim_param == "N"


def test_minus_one_means_open():
    declared = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [-1, 0])
    assert static_shape(declared) is None
    assert static_shape(bind_type(declared, {"x[0]": 7}, "x")) == (7, 0)


def test_an_input_without_rank_gets_the_given_one():
    declared = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    assert static_shape(declared) is None
    assert static_shape(bind_type(declared, {"x[0]": 2, "x[1]": 3}, "x")) == (2, 3)


def test_other_types_are_copied():
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ["N"]))
    bound = bind_type(sequence, {"N": 2})
    assert bound == sequence
    assert static_shape(bound) is None
    assert static_shape(TypeProto()) is None
