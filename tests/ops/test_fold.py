from typing import Any

import numpy as np
import pytest
from onnx import helper

from campo_onnx.ops.fold import MAX_ELEMENTS, evaluated, fold, is_small, may_fold


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def scalar(value: int) -> np.ndarray:
    return np.array(value, dtype=np.int64)


def folded(
    op_type: str, *values: Any, opset: int = 17, outputs: int = 1, shapes=None, domain="", **attributes
):
    """Fold a node whose inputs have these values; None is an omitted input."""
    names = [f"i{i}" if value is not None else "" for i, value in enumerate(values)]
    node = helper.make_node(op_type, names, [f"o{i}" for i in range(outputs)], domain=domain, **attributes)
    shapes = shapes or [None if value is None else value.shape for value in values]
    assert may_fold(node)
    return fold(node, shapes, values, opset)


@pytest.mark.parametrize(
    ("op_type", "values", "attributes", "expected"),
    [
        ("Identity", [scalar(3)], {}, scalar(3)),
        ("Gather", [ints(4, 5, 6), scalar(-1)], {}, scalar(6)),
        ("Unsqueeze", [scalar(3), ints(0)], {}, ints(3)),
        ("Squeeze", [ints(3)], {}, scalar(3)),
        ("Concat", [ints(1), ints(2, 3)], {"axis": 0}, ints(1, 2, 3)),
        ("Slice", [ints(1, 2, 3, 4), ints(0), ints(9), None, ints(2)], {}, ints(1, 3)),
        ("Add", [ints(1, 2), scalar(1)], {}, ints(2, 3)),
        ("Sub", [ints(1, 2), scalar(1)], {}, ints(0, 1)),
        ("Mul", [ints(1, 2), scalar(3)], {}, ints(3, 6)),
        ("Div", [ints(-7, 7), scalar(2)], {}, ints(-3, 3)),  # truncates toward zero
        ("Cast", [np.array([1.5, 2.5])], {"to": 7}, ints(1, 2)),
        ("Range", [scalar(1), scalar(7), scalar(3)], {}, ints(1, 4)),
        ("Reshape", [ints(1, 2), ints(-1, 1)], {}, np.array([[1], [2]])),
        ("Where", [np.array([True, False]), ints(1, 2), ints(3, 4)], {}, ints(1, 4)),
        ("Equal", [ints(1, 2), ints(1, 3)], {}, np.array([True, False])),
        ("ReduceProd", [ints(2, 3, 4)], {"keepdims": 0}, scalar(24)),
        ("Expand", [scalar(1), ints(2)], {}, ints(1, 1)),
        ("ConstantOfShape", [ints(2)], {"value": helper.make_tensor("", 7, [1], [9])}, ints(9, 9)),
    ],
)
def test_shape_arithmetic(op_type, values, attributes, expected):
    (value,) = folded(op_type, *values, **attributes)
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == expected.dtype
    assert value.shape == expected.shape


def test_the_opset_decides_what_attributes_mean():
    np.testing.assert_array_equal(
        folded("ReduceSum", ints(1, 2), opset=11, axes=[0], keepdims=0)[0], scalar(3)
    )
    np.testing.assert_array_equal(folded("ReduceSum", ints(1, 2), ints(0), keepdims=0)[0], scalar(3))


def test_an_omitted_output_keeps_its_position():
    node = helper.make_node("Split", ["x"], ["", "b"], axis=0)
    first, second = fold(node, [(2,)], [ints(1, 2)], 13)
    assert first is None
    np.testing.assert_array_equal(second, ints(2))


@pytest.mark.parametrize(
    ("attributes", "expected"), [({}, [2, 3, 4]), ({"start": 1}, [3, 4]), ({"start": -3, "end": -1}, [2, 3])]
)
def test_shape_needs_no_value(attributes, expected):
    (value,) = folded("Shape", None, shapes=[(2, 3, 4)], **attributes)
    np.testing.assert_array_equal(value, ints(*expected))


def test_size_needs_no_value():
    (value,) = folded("Size", None, shapes=[(2, 3)])
    np.testing.assert_array_equal(value, scalar(6))


def test_nothing_follows_from_unknown_inputs():
    node = helper.make_node("Add", ["a", "b"], ["c"])
    assert fold(node, [(1,), (1,)], [ints(1), None], 17) == ()
    assert fold(helper.make_node("Shape", ["a"], ["b"]), [None], [None], 17) == ()


@pytest.mark.parametrize(
    ("op_type", "values"),
    [
        ("Div", [ints(1), ints(0)]),
        ("Gather", [ints(1, 2), scalar(5)]),
        ("Reshape", [ints(1, 2), ints(3)]),
    ],
)
def test_values_that_do_not_fit_fold_to_nothing(op_type, values):
    assert folded(op_type, *values) == ()


@pytest.mark.parametrize("op_type", ["RandomUniform", "Multinomial", "Bernoulli", "Dropout", "MatMul", "If"])
def test_random_and_other_ops_are_not_folded(op_type):
    assert not may_fold(helper.make_node(op_type, ["x"], ["y"]))


def test_ops_of_other_domains_are_not_mistaken_for_standard_ones():
    assert not may_fold(helper.make_node("Add", ["x"], ["y"], domain="com.microsoft"))


def test_concat_training_also_gives_lengths():
    joined, lengths = folded("ConcatTraining", ints(1), ints(2, 3), outputs=2, domain="com.microsoft", axis=0)
    np.testing.assert_array_equal(joined, ints(1, 2, 3))
    np.testing.assert_array_equal(lengths, ints(1, 2))


def test_concat_training_lengths_need_shapes_only():
    node = helper.make_node("ConcatTraining", ["a", "b"], ["c", "d"], domain="com.microsoft", axis=1)
    joined, lengths = fold(node, [(2, 3), (2, 4)], [None, None], 17)
    assert joined is None
    np.testing.assert_array_equal(lengths, ints(3, 4))


@pytest.mark.parametrize(
    ("a", "b", "a_axes", "b_axes"),
    [
        ((2, 3), (2, 3), [], []),
        ((2, 3), (3,), [], [0]),
        ((3,), (4, 2, 3), [1, 0], []),
        ((2, 1, 3), (2, 5, 1), [1], [2]),
        ((1, 3), (1, 3), [], []),
        ((1,), (1, 1), [0], []),
        ((), (2, 3), [1, 0], []),
    ],
)
def test_broadcast_gradient_args(a, b, a_axes, b_axes):
    values = (ints(*a), ints(*b))
    first, second = folded("BroadcastGradientArgs", *values, outputs=2, domain="com.microsoft")
    assert (first.tolist(), second.tolist()) == (a_axes, b_axes)
    assert first.dtype == second.dtype == np.int64


def test_small_is_up_to_the_limit():
    assert is_small((MAX_ELEMENTS,))
    assert not is_small((MAX_ELEMENTS + 1,))
    assert is_small(())
    assert is_small((0, 10**9))


def test_lookups_in_more_rows_than_numpy_chooses_among() -> None:
    table = np.arange(300, dtype=np.float32).reshape(100, 3)
    rows = np.asarray([[99, 0, 50], [1, -1, 98]])
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=0)
    x, i, y = (helper.make_empty_tensor_value_info(name) for name in "xiy")
    result = evaluated(helper.make_graph([node], "lookup", [x, i], [y]), {"x": table, "i": rows}, 20)
    assert np.array_equal(result[0], np.take_along_axis(table, rows, 0))
