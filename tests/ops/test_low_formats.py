"""A low format that nobody knows yet is registered, planned and written; no code changes for it."""

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import onnx
import pytest
from onnx import TensorProto

from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision, temporary_precision
from campo_onnx.ops.registry import also
from campo_onnx.ops.signature import FLOAT, make_signature
from campo_onnx.ops.spec import SAME_AS_FIRST, Family, FixedPorts, OpSpec
from campo_onnx.ops.work import Stream
from campo_onnx.optimize.lists.oplists import preset, with_overrides
from campo_onnx.planning.pipeline import Options, optimize
from campo_onnx.targets.target import target

TWICE = OpKey("toy.domain", "Twice")


@pytest.fixture
def toy() -> Iterator[Precision]:
    """A format of one byte, and an operator that takes it."""
    info = ml_dtypes.finfo(ml_dtypes.float8_e5m2)
    with temporary_precision(
        "e5m2",
        onnx_dtype=int(TensorProto.FLOAT8E5M2),
        onnx_name="float8e5m2",
        itemsize_bytes=1,
        fraction_bits=int(info.nmant),
        largest=float(info.max),
        smallest_normal=float(info.smallest_normal),
    ) as precision:
        twice = OpSpec(
            key=TWICE,
            family=Family.ELEMENTWISE,
            work=Stream(1),
            ports=FixedPorts((0,)),
            shapes=SAME_AS_FIRST,
            training_kernels=frozenset({precision}),
        )
        with also(twice):
            yield precision


def test_schemas_say_who_takes_it(toy: Precision) -> None:
    product = make_signature(OpKey("", "MatMul"), [(FLOAT, (2, 2))] * 2, [(FLOAT, (2, 2))])
    assert str(ports_of(product, toy).refusal) == "MatMul has no e5m2 variant in this opset"


def test_a_graph_is_planned_and_written_in_it(toy: Precision) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20, "toy.domain": 1]>
        g (float[64, 64] x) => (float[64, 64] y) { [n] y = toy.domain.Twice(x) }""")
    options = Options(
        target=replace(target("v100"), launch_us=1e-6, host_us=1e-6),
        lists=with_overrides(preset("campo"), allow=["toy.domain:Twice"]),
        strategy="torch-amp",
        low=toy,
    )
    result = optimize(model, options)
    assert result.plan.low_nodes == {"n"}
    assert [node.op_type for node in result.model.graph.node] == ["Cast", "Twice", "Cast"]
    assert result.model.graph.node[0].attribute[0].i == toy.onnx_dtype
    onnx.checker.check_model(result.model, full_check=True)
