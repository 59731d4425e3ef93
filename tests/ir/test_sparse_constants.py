"""Sparse constants: whoever reads one reads it whole."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.importer import import_model


def sparse_model(indices, values=(2.0, -3.0), size=4, *, is_initializer=False):
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [len(values)], values),
        helper.make_tensor("indices", TensorProto.INT64, list(np.shape(indices)), np.ravel(indices)),
        [size, size],
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "xy")
    nodes = [
        helper.make_node("Constant", [], ["w"], name="c", sparse_value=sparse),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
    ]
    stored = [sparse] if is_initializer else []
    graph = helper.make_graph(nodes[is_initializer:], "g", [x], [y], sparse_initializer=stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("is_initializer", [False, True], ids=["of a node", "of the graph"])
@pytest.mark.parametrize("indices", [[1, 14], [[0, 1], [3, 2]]], ids=["counted through", "by axis"])
def test_a_product_with_one_goes_low_and_computes_the_same(lower, run, indices, is_initializer):
    sparse = sparse_model(indices, is_initializer=is_initializer)
    lowered = lower(sparse, ["product"])
    onnx.checker.check_model(lowered.model, full_check=True)
    (low,) = lowered.model.graph.initializer
    expected = np.zeros((4, 4), np.float16)
    expected[0, 1], expected[3, 2] = 2.0, -3.0
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(low), expected)
    feeds = {"x": np.arange(16, dtype=np.float32).reshape(4, 4)}
    np.testing.assert_array_equal(run(lowered.model, feeds)["y"], run(sparse, feeds)["y"])


def test_one_in_a_body_is_written_out_as_well():
    model = sparse_model([1, 14])
    body = helper.make_graph(list(model.graph.node), "body", [], list(model.graph.output))
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)]
    inputs = [*model.graph.input, helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, list(model.graph.output))
    outer = helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)
    (branch, _) = import_model(outer).model.graph.node[0].attribute
    assert branch.g.node[0].attribute[0].t.dims == [4, 4]


def test_its_values_count(lower):
    large = lower(sparse_model([1, 14], values=(2.0, 1e5)), [])
    assert large.imported.digest != lower(sparse_model([1, 14]), []).imported.digest
    assert np.max(large.imported.view.values["w"]) == 1e5


def test_they_are_bounded_together():
    model = sparse_model([1, 14], size=1 << 11, is_initializer=True)
    assert import_model(model).constants["w"].dims == [1 << 11, 1 << 11]
    for number in range(4):  # each a quarter of what all may have
        sparse = model.graph.sparse_initializer.add()
        sparse.CopyFrom(model.graph.sparse_initializer[0])
        sparse.values.name = f"more.{number}"
    with pytest.raises(UnsupportedModelError, match=r"with it they have 20,971,520 elements"):
        import_model(model)


@pytest.mark.parametrize("dims", [(-4, 4), (-4, -4), (0, 1 << 62)])
def test_sizes_that_no_constant_has(dims):
    for is_initializer in (False, True):
        model = sparse_model([1, 14], is_initializer=is_initializer)
        sparse = (
            model.graph.sparse_initializer[0]
            if is_initializer
            else model.graph.node[0].attribute[0].sparse_tensor
        )
        sparse.dims[:] = dims
        with pytest.raises((ModelError, UnsupportedModelError), match="the sparse constant 'w' has"):
            import_model(model)


@pytest.mark.parametrize("indices", [[1, -1], [[0, 1], [-1, 2]], 3])
def test_places_that_it_has_not(indices):
    model = sparse_model(indices, values=(2.0,) if indices == 3 else (2.0, -3.0))
    with pytest.raises(ModelError):
        import_model(model)


def test_one_that_is_damaged_too_large_or_outside_the_file_is_refused():
    with pytest.raises(ModelError):
        import_model(sparse_model([1, 16]))
    with pytest.raises(UnsupportedModelError, match="the sparse constant 'w' has"):
        import_model(sparse_model([1, 14], size=1 << 13))
    outside = sparse_model([1, 14], is_initializer=True)
    outside.graph.sparse_initializer[0].values.data_location = TensorProto.EXTERNAL
    with pytest.raises(UnsupportedModelError, match="outside the model file"):
        import_model(outside)
