"""Operators with the name of a standard one in another domain, and with inputs that they lack."""

import onnx
import pytest
from onnx import TensorProto, defs, helper

from campo_onnx.errors import CampoError, ModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.attributes import least_inputs
from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.registry import current
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

NAMES = sorted(
    {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
    | {key.op_type for key in current().specs}
)
OPTIONS = Options(target=target("v100"), lists=preset("campo"), lowers_any=True)


def model_of(names: list[str], domain: str, inputs: tuple[str, ...], outputs: int) -> onnx.ModelProto:
    """Two products of matrices, and a node of each name between graph inputs and outputs."""
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8])  # noqa: E731
    tensors = [[f"{name}_{i}" for i in range(outputs)] for name in names]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["q"])]
    nodes += [
        helper.make_node(name, inputs, results, name=name, domain=domain)
        for name, results in zip(names, tensors, strict=True)
    ]
    results = [value("q"), *(value(result) for each in tensors for result in each)]
    graph = helper.make_graph(nodes, "g", [value("x"), value("w")], results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def plan_or_refuse(names: list[str], domain: str, inputs: tuple[str, ...], outputs: int) -> int:
    """Plan a graph of all names; where it is refused, each half of them. Returns how many were planned."""
    try:
        optimize(model_of(names, domain, inputs, outputs), OPTIONS)
    except CampoError:
        half = len(names) // 2
        parts = (names[:half], names[half:]) if half else ()
        return sum(plan_or_refuse(part, domain, inputs, outputs) for part in parts)
    return len(names)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [((), 1), (("h",), 0), (("h",), 1), (("", "h"), 1), (("h", "q"), 1)]
)
def test_foreign_operators_are_planned(inputs: tuple[str, ...], outputs: int) -> None:
    """A domain says that a node is not ONNX's, whatever its name: no Loop needs a body there."""
    assert plan_or_refuse(NAMES, "com.example", inputs, outputs) == len(NAMES)


@pytest.mark.parametrize("inputs", [(), ("h",), ("", "h"), ("h", "q")])
def test_operators_of_the_runtime_are_planned_or_refused(inputs: tuple[str, ...]) -> None:
    planned = plan_or_refuse(NAMES, MICROSOFT, inputs, 1)
    assert len(NAMES) // 2 < planned < len(NAMES) + (inputs == ("h", "q"))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ModelError, match=r"'GatedAdd' \(com.microsoft:GatedAdd\) lacks an input of the 3"):
        import_model(model_of(["GatedAdd"], MICROSOFT, ("h", "", "q"), 1))


def test_the_runtime_says_the_same() -> None:
    runtime = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    if not hasattr(runtime, "get_all_operator_schema"):
        pytest.skip("this build does not list its schemas")
    schemas = [s for s in runtime.get_all_operator_schema() if s.domain == MICROSOFT]
    minimums = {s.name: s.min_input for s in schemas if least_inputs(OpKey(MICROSOFT, s.name))}
    assert len(minimums) > 40
    assert minimums == {name: least_inputs(OpKey(MICROSOFT, name)) for name in minimums}
