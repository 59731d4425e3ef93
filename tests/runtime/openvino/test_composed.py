"""Whole graphs compute what they compute in ONNX Runtime: what no node alone shows (test_values.py)."""

import random

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.errors import CampoError, UnsupportedModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.runtime.choice import needs_default
from campo_onnx.runtime.registry import load, machine
from tests.conftest import parse_model
from tests.formulas.oracle import TEMPLATES, Formula
from tests.random_graphs.builder import RejectedError
from tests.random_graphs.generate import random_graph

GRAPHS = range(510_000, 510_060)  # thousands of seeds were tried like this
FORMULAS = range(0, len(TEMPLATES), 8)


def results(model, feeds, runtime):
    here = machine("cpu", 1, runtime)
    graph = as_it_runs(import_model(model, any_type=True), Place.on(here))
    # ONNX Runtime writes running statistics in place, over what it is given.
    return load(graph.model, here).run({name: np.array(value) for name, value in feeds.items()})


def distance(value, expected):
    if not expected.size or value.dtype.kind not in "fiub":
        return 0.0
    value, expected = np.asarray(value, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(expected).all():
        return 0.0  # a NaN does not survive every operator of OpenVINO
    return np.abs(value - expected).max() / (np.abs(expected).max() + 1e-6)


@pytest.mark.parametrize("seed", GRAPHS)
def test_random_graphs(seed):
    try:
        graph = random_graph(seed, 24)
    except RejectedError as error:
        pytest.skip(str(error))
    if needs_default(import_model(graph.model, any_type=True).view):
        pytest.skip("is left to ONNX Runtime")
    try:
        expected = results(graph.model, graph.feeds, "onnxruntime")
        values = results(graph.model, graph.feeds, "openvino")
    except CampoError as error:
        pytest.skip(str(error))
    for name, value in expected.items():
        assert values[name].shape == value.shape, name
        assert distance(values[name], value) < 1e-4, name


@pytest.mark.parametrize("first", ["Conv <pads = [1,1,1,1]> (x, v)", "MaxPool <kernel_shape = [2,3]> (x)"])
@pytest.mark.parametrize("pads", [[0, 1, 0, 1], [0, 1, 0, 0], [1, 0, 0, 2]])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_stride_stays_behind_pads(first, pads, stride):
    """A pass of OpenVINO moves strides of kernels of one number, and took numbers beside those of ONNX."""
    graph = f"""
    agraph (float[2,4,7,9] x, float[4,4,3,3] v, float[6,4,1,1] w) => (float[2,6,M,N] y, float s) {{
      h = {first}
      r = Relu (h)
      y = Conv <strides = [{stride},{stride}], pads = {pads}> (r, w)
      q = Mul (y, y)
      s = ReduceSum <keepdims = 0> (q)
    }}
    """
    rng = np.random.default_rng(0)
    feeds = {"x": (2, 4, 7, 9), "v": (4, 4, 3, 3), "w": (6, 4, 1, 1)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in feeds.items()}
    model = parse_model(graph, 22)
    expected, values = (results(model, feeds, runtime) for runtime in ("onnxruntime", "openvino"))
    for name in expected:
        assert values[name].shape == expected[name].shape
        assert distance(values[name], expected[name]) < 1e-4


@pytest.mark.parametrize("seed", FORMULAS)
def test_formulas(seed):
    formula = Formula(random.Random(f"formula {seed}"), is_computed=False)
    output = TEMPLATES[sorted(TEMPLATES)[seed]](formula)
    model, exact = formula.model([output]), formula.values[output.name]
    try:
        value = results(model, formula.inputs, "openvino")[output.name]
    except UnsupportedModelError as error:
        pytest.skip(str(error))
    of_onnxruntime = results(model, formula.inputs, "onnxruntime")[output.name]
    assert distance(value, exact) < 10 * distance(of_onnxruntime, exact) + 1e-4
