"""One-node graphs: what makes two nodes the same, and what becomes of one in low precision."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from campo_onnx.ir.importer import import_model
from campo_onnx.measure.signature import make_signature, one_node_model, signature_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision

DATA = Path(__file__).parent.parent / "data"
F, INT = int(TensorProto.FLOAT), int(TensorProto.INT64)


def matmul(m: int = 4, attributes: Mapping[str, Any] | None = None):
    types = {"x0": (F, (m, 8)), "x1": (F, (8, 2)), "y0": (F, (m, 2))}
    return make_signature(
        OpKey("", "MatMul"), inputs=("x0", "x1"), outputs=("y0",), types=types, attributes=attributes
    )


def reduction(axes: list[int]):
    return make_signature(
        OpKey("", "ReduceSum"),
        inputs=("x0", "x1"),
        outputs=("y0",),
        types={"x0": (F, (4, 8)), "x1": (INT, (1,)), "y0": (F, (1, 8))},
        values={"x1": np.asarray(axes)},
    )


def test_key_tells_shapes_attributes_and_values_apart() -> None:
    assert matmul().key == matmul().key
    assert matmul().key != matmul(5).key
    assert matmul().key != matmul(attributes={"transA": 1}).key
    assert reduction([0]).key != reduction([1]).key


def test_nodes_of_a_layer_that_repeats_share_a_signature() -> None:
    view = import_model(DATA / "bert2_mlm_sdpa.onnx").view
    signatures = [signature_of(node, view) for node in view.nodes]
    keys = {s.key for s in signatures if s is not None}
    assert None not in signatures
    assert len(keys) < len(signatures) / 3


def test_low_version_keeps_integers_and_statistics() -> None:
    low = reduction([0]).lowered(Precision.FP16)
    assert low is not None
    assert low.input_types == "float16[4,8] int64[1]=[0]"
    assert low.output_types == "float16[1,8]"


def test_attribute_that_states_the_type_follows() -> None:
    fill = make_signature(
        OpKey("", "ConstantOfShape"),
        inputs=("x0",),
        outputs=("y0",),
        types={"x0": (INT, (1,)), "y0": (F, (3,))},
        attributes={"value": np.asarray([0.5], np.float32)},
        values={"x0": np.asarray([3])},
    )
    low = fill.lowered(Precision.FP16)
    assert low is not None
    assert low.node.attributes["value"].dtype == np.float16
    onnx.checker.check_model(one_node_model(low, 1), full_check=True)


def test_no_low_version_of_integers() -> None:
    shape = make_signature(
        OpKey("", "Neg"), inputs=("x0",), outputs=("y0",), types={"x0": (INT, (3,)), "y0": (INT, (3,))}
    )
    assert shape.lowered(Precision.FP16) is None


def test_copies_share_constants_but_no_inputs() -> None:
    model = one_node_model(reduction([0]), 3)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["x0_0", "x0_1", "x0_2"]
    assert [tensor.name for tensor in model.graph.initializer] == ["x1"]
    assert len({node.name for node in model.graph.node}) == 3


@pytest.mark.parametrize("name", ["mlp", "alexnet_like", "bert2_mlm_sdpa", "resblocks"])
def test_every_node_of_a_training_graph_makes_a_valid_model(name: str) -> None:
    view = import_model(DATA / f"{name}.onnx").view
    found = {s.key: s for node in view.nodes if (s := signature_of(node, view)) is not None}
    for signature in found.values():
        for version in (signature, signature.lowered(Precision.FP16)):
            if version is not None and version.node.op.op_type != "Constant":
                onnx.checker.check_model(one_node_model(version, 2), full_check=True)
