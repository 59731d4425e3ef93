"""Operators, each once: what is registered fits itself and real graphs, and one more is one value."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import output_types, ports_of, work_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import NO_FP32, Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.registry import REGISTRY, Registry, also, current, spec
from campo_onnx.ops.signature import FLOAT, TensorType, make_signature
from campo_onnx.ops.spec import (
    EVERY,
    FP16_KERNELS,
    SAME_AS_FIRST,
    Ask,
    Family,
    FixedPorts,
    Movement,
    OpSpec,
    ShapedBy,
)
from campo_onnx.ops.values.bounded import bounded_by
from campo_onnx.ops.values.propagate import propagated
from campo_onnx.ops.values.range import exactly
from campo_onnx.ops.values.traits import Trait
from campo_onnx.ops.work import HOST_ONLY, Gemm, Stream, WorkKind
from campo_onnx.optimize.lists.oplists import OpClass, preset, with_overrides
from campo_onnx.planning.pipeline import Options, optimize
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
GRAPHS = sorted(DATA.glob("*training*.onnx"))
SPECS = list(REGISTRY.specs.values())

TWICE = OpSpec(
    key=OpKey("toy.domain", "Twice"),
    family=Family.ELEMENTWISE,
    work=Stream(3),
    ports=FixedPorts((0,)),
    shapes=SAME_AS_FIRST,
    training_kernels=FP16_KERNELS,
)


def test_an_operator_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"the operator toy\.domain:Twice is registered twice"):
        Registry((TWICE, replace(TWICE, family=Family.LOSS)))
    with pytest.raises(ValueError, match="Conv is registered twice"), also(spec(OpKey("", "Conv"))):
        pass


def test_traits_follow_from_what_an_operator_moves_and_from_its_bounds() -> None:
    assert spec(OpKey("", "Transpose")).traits == {Trait.MOVES}
    assert spec(OpKey("", "Tanh")).traits == {Trait.AT_MOST_ONE, Trait.BOUNDED, Trait.NEAR_ZERO}
    assert not spec(OpKey("", "Gather")).traits & {Trait.MOVES, Trait.BOUNDED}  # it selects
    assert all(REGISTRY.having(trait) for trait in Trait)
    assert REGISTRY.having(Trait.AT_MOST_ONE) < REGISTRY.having(Trait.BOUNDED)


def test_who_reads_a_mask_is_found_by_what_it_asks() -> None:
    assert REGISTRY.asking(Ask.MASK)[OpKey("com.microsoft", "BiasSoftmax")] == (1,)


def test_of_an_unknown_operator_nothing_is_known() -> None:
    operator = spec(OpKey("my.domain", "Fancy"))
    assert not operator.is_known
    assert (operator.work, operator.ports, operator.shapes) == (None, None, None)
    assert all(entry.is_known for entry in SPECS)


def test_a_temporary_operator_leaves_with_its_block() -> None:
    with also(TWICE):
        assert spec(TWICE.key) is TWICE
    assert current() is REGISTRY
    assert not spec(TWICE.key).is_known


def test_every_fact_of_a_toy_operator_is_one_value() -> None:
    signature = make_signature(TWICE.key, [(FLOAT, (2, 3))], [(FLOAT, (2, 3))])
    large = (exactly(70000.5),)
    before = ports_of(signature, Precision.FP16), work_of(signature), output_types(signature)
    assert propagated(signature, large)[0].expected_highest == 70000.5  # large values pass through
    with also(replace(TWICE, values=bounded_by(0.0, 2.0))):
        assert propagated(signature, large)[0].highest == 2.0
    with also(TWICE):
        assert ports_of(signature, Precision.FP16) == Ports(
            low_inputs=frozenset({0}), low_outputs=frozenset({0})
        )
        assert work_of(signature).flops == 18
        assert output_types(signature) == [TensorType(FLOAT, (2, 3))]
    assert (ports_of(signature, Precision.FP16), work_of(signature), output_types(signature)) == before
    assert before[0].refusal == Refused.NO_SCHEMA.of()


def test_a_graph_with_a_toy_operator_is_planned() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20, "toy.domain": 1]>
        g (float[512, 512] x, float[512, 512] w) => (float[512, 512] y) {
            [before] a = MatMul(x, w) [toy] b = toy.domain.Twice(a) [after] y = MatMul(b, w)
        }""")
    options = Options(
        target=replace(target("v100"), launch_us=1e-6, host_us=1e-6),
        lists=with_overrides(preset("campo"), infer=["toy.domain:Twice"]),
    )
    with also(TWICE):
        result = optimize(model, options)
        assert result.imported.view.shape("b") == (512, 512)
        assert result.problem.op_class("toy") is OpClass.INFER
        assert result.plan.low_nodes == {"before", "toy", "after"}
    assert "toy" not in optimize(model, options).plan.low_nodes


def test_every_operator_is_well_formed() -> None:
    for operator in SPECS:
        check_form(operator)


def check_form(operator: OpSpec) -> None:
    if isinstance(operator.ports, FixedPorts):
        for positions in (operator.ports.inputs, operator.ports.outputs):
            assert positions is EVERY or list(positions) == sorted(set(positions)), operator.key
        # What ONNX knows, its schema says.
        newest = onnx.defs.onnx_opset_version()
        assert not onnx.defs.has(operator.key.op_type, newest, operator.key.domain), operator.key
    if operator.training_kernels:
        assert isinstance(operator.ports, FixedPorts), operator.key
    if isinstance(operator.shapes, ShapedBy):
        assert operator.shapes.shape != operator.shapes.dtype, operator.key
    if operator.work is WorkKind.VIEW and not operator.key.domain:
        assert operator.movement is Movement.VIEW, operator.key
    if isinstance(operator.work, Gemm):
        families = (Family.MATRIX_PRODUCT, Family.CONVOLUTION, Family.RECURRENT)
        assert operator.family in families, operator.key


def test_elementwise_operators_move_their_bytes() -> None:
    each = [
        operator for operator in SPECS if operator.family is Family.ELEMENTWISE and operator.work is not None
    ]
    assert each
    assert not [operator.key.label for operator in each if operator.work in HOST_ONLY]


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_listed_positions_hold_fp32_in_real_graphs(path: Path, dims_of) -> None:
    view = import_model(path, dims_of(path)).view
    listed = [(node, rule) for node in view.nodes if isinstance(rule := spec(node.op).ports, FixedPorts)]
    assert listed
    for node, rule in listed:
        ports = ports_of(view.signature(node.name), Precision.FP16)
        if ports == NO_FP32:
            continue  # such as a concatenation of shapes
        assert ports.low_inputs == {i for i, t in enumerate(node.inputs) if t and i in rule.inputs}, node.name
        assert ports.low_outputs, node.name


def test_what_operators_ask_of_their_inputs_and_which_draw() -> None:
    asks_of = {operator.key.label: dict(operator.asks) for operator in SPECS if operator.asks}
    assert asks_of["Div"] == {1: Ask.POSITIVE}
    assert asks_of["RoiAlign"] == {2: Ask.INDEX_ALONG_AXIS}
    assert asks_of["com.microsoft:GatherGrad"] == {1: Ask.INDEX_OF_SHAPE}
    assert {ask for asks in asks_of.values() for ask in asks.values()} == set(Ask)
    drawing = {operator.key.label for operator in SPECS if operator.draws}
    assert drawing > {key.label for key in REGISTRY.of_family(Family.RANDOM)} | {"Dropout"}
