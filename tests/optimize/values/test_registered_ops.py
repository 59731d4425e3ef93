"""The analyses see every operator that is registered, also for the length of a block."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx.ops.key import OpKey, op_keys
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.registry import RANDOM, also, current, having, spec
from campo_onnx.ops.spec import Family, OpSpec
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.values import sum_ops
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.loss_scale import loss_scaling
from campo_onnx.optimize.values.ranges import value_ranges
from campo_onnx.optimize.values.sums import squares_summed

PACKAGE = Path(__file__).parents[3] / "campo_onnx"
FUSED = OpKey("my.domain", "FusedSum")


@pytest.mark.parametrize(
    ("ops", "trait"),
    [
        (sum_ops.SUMS, Trait.SUM),
        (sum_ops.MOVES, Trait.MOVES),
        (sum_ops.CARRIERS_OF_SQUARES, Trait.MOVES),
        (sum_ops.MOVES_AND_SIGNS, Trait.SIGN),
        (having(Trait.EXACT), Trait.EXACT),
        (sum_ops.CARRIERS, Trait.SCALES),
        (sum_ops.PARTS, Trait.PART),
        (sum_ops.SHARES, Trait.SHARES),
    ],
)
def test_a_registered_operator_is_in_the_sets_of_its_traits(ops, trait):
    before = {*ops}
    assert FUSED not in ops
    with also(OpSpec(key=FUSED, family=Family.REDUCTION, traits=frozenset({trait}))):
        assert FUSED in ops
        assert {*ops} == before | {FUSED}
    assert {*ops} == before


def test_accuracy_is_asked_through_every_operator_on_elements_of_floats():
    obsolete = op_keys("Affine ImageScaler ParametricSoftplus ScaledTanh")
    of_other_values = op_keys("BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor IsInf IsNaN")
    copies = op_keys("MemcpyFromHost MemcpyToHost")
    standard = {
        key for key, spec in current().specs.items() if spec.family is Family.ELEMENTWISE and not key.domain
    }
    silent = {key for key in standard if current().spec(key).passes_accuracy is None}
    assert silent == obsolete | of_other_values | copies


def test_a_registered_source_of_random_numbers_draws():
    with also(OpSpec(key=FUSED, family=Family.RANDOM, draws=True)):
        assert FUSED in RANDOM
    assert FUSED not in RANDOM


def test_a_registered_update_is_denied_by_every_list():
    with also(OpSpec(key=FUSED, family=Family.UPDATE)):
        assert preset("campo").class_of(FUSED) is OpClass.DENY
    assert preset("campo").class_of(FUSED) is OpClass.UNKNOWN


def asked_at_import(path: Path) -> Iterator[str]:
    """Statements of a module that ask the shipped registry while it is imported."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            reads = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == "REGISTRY"]
            if reads and not any(isinstance(n, ast.Lambda) for n in ast.walk(statement)):
                yield f"{path.relative_to(PACKAGE)}:{statement.lineno}"


def test_no_module_keeps_what_the_registry_said_at_import():
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "registry.py"]
    assert not [line for path in modules for line in asked_at_import(path)]


def spelt_out(path: Path) -> Iterator[str]:
    """Lists of operators in a module that name all operators of a trait, one by one."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "op_keys":
            labels = call.args[0]
            ops = op_keys(labels.value) if isinstance(labels, ast.Constant) else frozenset()
            for trait in Trait:
                if {*having(trait)} <= ops:
                    yield f"{path.name}:{call.lineno} lists {trait.name}"


def test_no_module_lists_the_operators_of_a_trait(tmp_path):
    modules = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "ops")]
    assert not [line for path in modules for line in spelt_out(path)]
    (tmp_path / "a.py").write_text('SCALES = op_keys("Add Div Mul")')
    assert [*spelt_out(tmp_path / "a.py")] == ["a.py:1 lists SCALES"]


def test_a_sum_that_is_registered_is_seen_by_the_search_for_sums_of_squares(read):
    fused = OpKey("com.microsoft", "FusedSum")
    imported = read(
        "(float[64,4096] x) => (float[64,1] y) { [m] s = Mul(x, x) [n] y = com.microsoft.FusedSum(s) }"
    )

    def summed():
        return squares_summed(
            GraphValues(
                view=imported.view,
                ports={},
                ranges=value_ranges(imported),
                low=Precision.FP16,
                scaling=loss_scaling(imported.view),
            )
        )

    assert "n" not in summed()
    with also(replace(spec(OpKey("", "ReduceSum")), key=fused)):
        assert "n" in summed()
