"""Graphs of one node, also in low precision: valid, and without anything shared that is timed."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.measure.one_node import one_node_model, one_node_view, standalone
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, make_signature

DATA = Path(__file__).parent.parent / "data"
INT = int(onnx.TensorProto.INT64)
REDUCTION = make_signature(
    OpKey("", "ReduceSum"), [(FLOAT, (4, 8)), (INT, (1,))], [(FLOAT, (1, 8))], constants={1: np.asarray([0])}
)


def low(signature):
    return lowered(signature, ports_of(signature, Precision.FP16), Precision.FP16)


def test_a_node_of_a_training_graph_stands_alone() -> None:
    view = import_model(DATA / "bert2_mlm_sdpa.onnx").view
    assert all(standalone(view, node.name) is view.signature(node.name) for node in view.nodes)


def test_attribute_that_states_the_type_follows() -> None:
    fill = make_signature(
        OpKey("", "ConstantOfShape"),
        [(INT, (1,))],
        [(FLOAT, (3,))],
        attributes={"value": np.asarray([0.5], np.float32)},
        constants={0: np.asarray([3])},
    )
    assert low(fill).attributes["value"].dtype == np.float16
    onnx.checker.check_model(one_node_model(low(fill), 1), full_check=True)


def test_copies_share_constants_but_no_inputs() -> None:
    model = one_node_model(REDUCTION, 3)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["x0_0", "x0_1", "x0_2"]
    assert [tensor.name for tensor in model.graph.initializer] == ["x1"]
    assert len({node.name for node in model.graph.node}) == 3


def test_the_view_of_a_node_has_its_signature() -> None:
    for signature in (REDUCTION, low(REDUCTION)):
        assert one_node_view(signature).signature("node") == signature


@pytest.mark.parametrize("name", ["mlp", "alexnet_like", "bert2_mlm_sdpa", "resblocks"])
def test_every_node_of_a_training_graph_makes_a_valid_model(name: str) -> None:
    view = import_model(DATA / f"{name}.onnx").view
    signatures = {s for node in view.nodes if (s := standalone(view, node.name)) is not None}
    for signature in signatures:
        for version in (signature, low(signature)):
            if version is not None and version.op.op_type != "Constant":
                onnx.checker.check_model(one_node_model(version, 2), full_check=True)
