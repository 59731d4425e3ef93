"""Times of nodes in a step: their parts, and factors fitted to steps made from known ones."""

import math
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.measured.factors import ALONE, LEAST, MeasuredStep, error_of, fit_in_step, step_us
from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import shipped_folder
from campo_onnx.calibrate.in_step import InStep, Part
from campo_onnx.costs.parts import parts_of, relaid
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView

KNOWN = {Part.PRODUCTS: 0.8, Part.FUSED: 0.2, Part.CASTS: 1.5}


def view_of(*nodes: onnx.NodeProto, inputs: dict[str, Sequence[int]], output: Sequence[int]) -> GraphView:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    shape = onnx.numpy_helper.from_array(np.asarray([2, -1]), "shape")
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, output)
    graph = helper.make_graph(list(nodes), "g", values, [last], [shape])
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])).view


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def test_a_view_of_what_a_convolution_made_is_a_change_of_layout() -> None:
    view = view_of(
        node("Conv", "x w", "conv"),
        node("Relu", "conv", "relu"),
        node("Reshape", "relu shape", "flat"),
        node("Reshape", "flat shape", "again"),
        inputs={"x": (2, 8, 5, 5), "w": (4, 8, 3, 3)},
        output=(2, 36),
    )
    assert dict(parts_of(view)) == {
        "conv": Part.CONVOLUTIONS,
        "relu": Part.ELEMENTWISE,
        "flat": Part.LAYOUTS,
        "again": Part.VIEWS,
    }
    transpose = relaid(view.signature("flat"))
    assert transpose.input(0).shape == (2, 3, 3, 4)
    assert transpose.output(0).shape == (2, 4, 3, 3)


def test_element_wise_nodes_behind_others_are_told_from_the_first() -> None:
    view = view_of(
        node("MatMul", "x w", "product"),
        node("Relu", "product", "relu"),
        node("Neg", "relu", "neg"),
        node("Transpose", "neg", "turned"),
        node("Abs", "turned", "abs"),
        node("ReduceSum", "abs", "sum", keepdims=0),
        inputs={"x": (4, 8), "w": (8, 16)},
        output=(),
    )
    assert list(parts_of(view).values()) == [
        Part.PRODUCTS,
        Part.ELEMENTWISE,
        Part.FUSED,
        Part.MOVEMENT,
        Part.ELEMENTWISE,
        Part.REDUCTIONS,
    ]


def steps(count: int, noise: float = 0.0) -> list[MeasuredStep]:
    random = np.random.default_rng(0)
    measured_steps = []
    for number in range(count):
        parts_us = {part: float(np.exp(random.uniform(3, 7))) for part in KNOWN}
        exact_us = sum(KNOWN[part] * time_us for part, time_us in parts_us.items())
        measured_us = exact_us * (1 + noise * float(random.normal()))
        measured_steps.append(
            MeasuredStep(graph=f"g{number // 3}", parts_us=parts_us, measured_us=measured_us)
        )
    return measured_steps


def test_factors_are_found_again_and_predict_graphs_kept_out() -> None:
    fit = fit_in_step(steps(60, noise=0.01))
    assert {part: fit.factor(part) for part in KNOWN} == pytest.approx(KNOWN, abs=0.06)
    assert (fit.steps, fit.graphs) == (60, 20)
    assert fit.error < 0.03 < 0.2 < fit.error_alone
    assert fit.factor(Part.CONVOLUTIONS) == 1.0


def test_few_steps_move_factors_less_than_many() -> None:
    few, many = (abs(fit_in_step(steps(n)).factor(Part.FUSED) - 1) for n in (2, 60))
    assert 0 < few < many


def test_no_part_of_a_step_is_free() -> None:
    """Small steps, whose nodes were timed with inputs of their own, fit element-wise ones to nothing."""
    free = [
        MeasuredStep(
            graph=f"g{number}",
            parts_us={Part.PRODUCTS: 10.0 * number, Part.ELEMENTWISE: 50.0},
            measured_us=10.0 * number,
        )
        for number in range(1, 60)
    ]
    assert fit_in_step(free).factor(Part.ELEMENTWISE) == pytest.approx(LEAST)
    files = [file for file in shipped_folder().iterdir() if file.name.endswith(".json")]
    shipped = [Calibration.from_json(file.read_text()).in_step for file in files]
    factors = [factor for one in shipped if one is not None for factor in one.factors.values()]
    assert min(factors) >= LEAST


def test_alone_changes_nothing() -> None:
    step = MeasuredStep(graph="g", parts_us={Part.PRODUCTS: 3.0, Part.VIEWS: 1.0}, measured_us=8.0)
    assert step_us(ALONE, step.parts_us) == 4.0
    assert error_of(ALONE, step) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"product": 1.0}, "unknown part 'product'"),
        ({"casts": -1.0}, "casts is -1.0"),
        ({"casts": math.nan}, "nan"),
    ],
)
def test_factors_that_cannot_be_are_refused(factors: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InStep(factors=factors)


def test_a_step_takes_time() -> None:
    with pytest.raises(ValueError, match="measured_us is 0"):
        MeasuredStep(graph="g", parts_us={}, measured_us=0.0)
    with pytest.raises(ValueError, match="no measured step"):
        fit_in_step([])
