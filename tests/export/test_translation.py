"""The loop that all translators share: its tables, its order, and what it refuses."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.translate import Constant, Operation, TracedStep, refuse_unknown, translate_step
from campo_onnx.export.translation import Expected, Table, UntranslatableError, merged, table

_FLOAT = int(TensorProto.FLOAT)
VECTOR = Expected(dtype=_FLOAT, shape=(3,))


def _add(g: Graph, expected: Expected, a: Value, b: Value) -> Value:
    return g.op("Add", a, b)


def _halves(g: Graph, expected: Expected, x: Value) -> list[Value | None]:
    return [None, g.op("Mul", x, g.scalar(0.5, x.dtype))]


def _odd(g: Graph, expected: Expected, x: Value) -> Value:
    raise UntranslatableError("an odd number")


TOY = table((("add", "plus"), _add), ("halves", _halves), ("odd", _odd))


def operation(kind: str, *operands: str, results: Any = ("y",), place: str = "", **options: Any) -> Operation:
    return Operation(
        kind=kind,
        place=place,
        arguments=lambda read: ([read(name) for name in operands], {}),
        expected=options.get("expected", [VECTOR] * len(results)),
        results=results,
    )


def model(*body: Constant | Operation, rows: Table = TOY, **outputs: str) -> onnx.ModelProto:
    step = TracedStep(
        inputs={"x": ("x", VECTOR)}, body=body, outputs=outputs or {"out": "y"}, outermost="the toy"
    )
    return translate_step(step, rows, opset=20, optional_inputs=frozenset())


def run(graph: onnx.ModelProto) -> Mapping[str, Any]:
    x = np.array([1, 2, 3], np.float32)
    return dict(
        zip([v.name for v in graph.graph.output], ReferenceEvaluator(graph).run(None, {"x": x}), strict=True)
    )


def test_operations_read_inputs_constants_and_each_other() -> None:
    one = Constant(ref="one", array=np.float32(1))
    steps = (
        one,
        operation("add", "x", "one", results=("more",), place="first"),
        operation("plus", "more", "x", place="second"),
    )
    graph = model(*steps, out="y", middle="more")
    assert [node.name for node in graph.graph.node] == ["first/Add", "second/Add"]
    outputs = run(graph)
    np.testing.assert_array_equal(outputs["middle"], [2, 3, 4])
    np.testing.assert_array_equal(outputs["out"], [3, 5, 7])


def test_a_result_that_nothing_reads_may_be_missing() -> None:
    graph = model(operation("halves", "x", results=(None, "y")))
    np.testing.assert_array_equal(run(graph)["out"], [0.5, 1, 1.5])
    with pytest.raises(UnsupportedModelError, match=r"result 0 of halves \(in the toy\) comes out as None"):
        model(operation("halves", "x", results=("y", None)))


def test_an_output_that_is_an_input_can_be_left_out() -> None:
    step = TracedStep(
        inputs={"x": ("x", VECTOR)},
        body=[operation("add", "x", "x")],
        outputs={"x_out": "x", "out": "y"},
        outermost="the toy",
    )
    kept = translate_step(step, TOY, opset=20, optional_inputs=frozenset())
    left_out = translate_step(step, TOY, opset=20, optional_inputs=frozenset(), unchanged={"x_out": "x"})
    assert [value.name for value in kept.graph.output] == ["x_out", "out"]
    assert [value.name for value in left_out.graph.output] == ["out"]


@pytest.mark.parametrize("place", ["", "encoder.query/grad"])
def test_refusals_say_which_operation_and_where(place: str) -> None:
    where = rf"odd \(in {place or 'the toy'}\) cannot be translated: an odd number"
    with pytest.raises(UnsupportedModelError, match=where):
        model(operation("odd", "x", place=place))


def test_a_result_of_another_shape_is_refused() -> None:
    wrong = operation("add", "x", "x", expected=[Expected(dtype=_FLOAT, shape=(4,))])
    with pytest.raises(UnsupportedModelError, match=r"comes out as \(1, \(3,\)\) instead of \(1, \(4,\)\)"):
        model(wrong)


def test_every_unknown_operation_is_named_with_its_first_place() -> None:
    operations = [("sub", "a"), ("add", "a"), ("sub", "b"), ("pow", "")]
    with pytest.raises(UnsupportedModelError, match=r"no translation for sub \(in a\), pow \(in the toy\)\."):
        refuse_unknown(operations, TOY, "the toy")
    refuse_unknown([("add", "a")], TOY, "the toy")


def test_no_operation_is_translated_twice() -> None:
    with pytest.raises(ValueError, match="add has two translations"):
        table(("add", _add), (("mul", "add"), _odd))
    with pytest.raises(ValueError, match="odd has two translations"):
        merged([TOY, table(("odd", _add))])
    assert set(merged([TOY, table(("mul", _add))])) == {"add", "plus", "halves", "odd", "mul"}
    with pytest.raises(TypeError):
        TOY["add"] = _odd  # type: ignore[index]
