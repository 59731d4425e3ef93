"""Signatures: nodes that are the same, and versions of one in low precision or at other sizes."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, Operand, Signature, decides, make_signature

DATA = Path(__file__).parent.parent / "data"
INT = int(TensorProto.INT64)


def matmul(m: int = 4, **facts) -> Signature:
    return make_signature(OpKey("", "MatMul"), [(FLOAT, (m, 8)), (FLOAT, (8, 2))], [(FLOAT, (m, 2))], **facts)


def reduction(axes) -> Signature:
    return make_signature(
        OpKey("", "ReduceSum"),
        [(FLOAT, (4, 8)), (INT, (len(axes),))],
        [(FLOAT, (1, 8))],
        constants={1: np.asarray(axes)},
    )


def constant(values) -> Signature:
    return make_signature(OpKey("", "Constant"), [], [(INT, (len(values),))], attributes={"value": values})


SQUARE = Signature(
    op=OpKey("", "Mul"),
    opset=20,
    inputs=(Operand("x0", FLOAT, (3,)), Operand("x0", FLOAT, (3,))),
    outputs=(Operand("y0", FLOAT, (3,)),),
)
PRODUCT = make_signature(OpKey("", "Mul"), [(FLOAT, (3,)), (FLOAT, (3,))], [(FLOAT, (3,))])
DIFFERENT = [
    matmul(),
    matmul(5),
    matmul(opset=13),
    matmul(attributes={"transA": 1}),
    reduction([0]),
    reduction([1]),
    constant(np.arange(100)),
    constant(np.arange(100) % 99),  # the last element
    constant([1, 2]),
    SQUARE,
    PRODUCT,
]


def test_equality_hash_and_key_tell_the_same_apart() -> None:
    for i, a in enumerate(DIFFERENT):
        for j, b in enumerate(DIFFERENT):
            assert (a == b) is (i == j), (a.key, b.key)
            assert (a.key == b.key) is (i == j)
    assert matmul() == matmul()
    assert hash(constant(np.arange(100))) == hash(constant(np.arange(100)))


def test_key_is_one_readable_line() -> None:
    assert reduction([0]).key == (
        '{"op": "ReduceSum", "opset": 20, "attributes": {}, '
        '"inputs": "float32[4,8] int64[1]=[0]", "outputs": "float32[1,8]"}'
    )


def test_nodes_of_a_layer_that_repeats_share_a_signature() -> None:
    view = import_model(DATA / "bert2_mlm_sdpa.onnx").view
    objects = {id(view.signature(node.name)) for node in view.nodes}
    keys = {view.signature(node.name).key for node in view.nodes}
    assert len(objects) == len(keys) < len(view.nodes) / 3


def test_what_decides_is_a_constant_and_what_is_data_is_not() -> None:
    assert decides(np.asarray([0, 2])) is True
    assert decides(np.asarray(2.0)) is True
    assert not decides(np.asarray([0.1, 0.2]))
    assert not decides(np.arange(65))


def test_low_version_keeps_integers() -> None:
    ports = ports_of(reduction([0]), Precision.FP16)
    low = lowered(reduction([0]), ports, Precision.FP16)
    assert low is not None
    assert low.input_types == "float16[4,8] int64[1]=[0]"
    assert low.output_types == "float16[1,8]"


def test_no_low_version_of_integers() -> None:
    negation = make_signature(OpKey("", "Neg"), [(INT, (3,))], [(INT, (3,))])
    assert lowered(negation, ports_of(negation, Precision.FP16), Precision.FP16) is None


def test_other_shapes() -> None:
    assert matmul().with_shapes({0: (5, 8)}, {0: (5, 2)}) == matmul(5)
    assert matmul().with_shapes({0: (4, 8)}) == matmul()
    # read twice at one size it is one tensor, at two sizes two
    assert SQUARE.with_shapes({0: (3,), 1: (3,)}) == SQUARE
    assert SQUARE.with_shapes({1: (4,)}).input(1).name == "x1"


@pytest.mark.parametrize(
    ("signature", "alone"),
    [
        (matmul(), True),
        (matmul(0), False),
        (make_signature(OpKey("", "Relu"), [(FLOAT, None)], [(FLOAT, (3,))]), False),
        (make_signature(OpKey("", "Relu"), [(0, (3,))], [(FLOAT, (3,))]), False),
    ],
)
def test_what_stands_alone(signature: Signature, alone: bool) -> None:
    assert signature.stands_alone is alone


def test_positions_that_are_not_there() -> None:
    assert matmul().input(7) == matmul().output(1) == Operand("")
    assert reduction([0]).ints(1) == (0,)
    assert reduction([0]).ints(0) is None
