"""Nodes that are not refused compute what they compute in ONNX Runtime, in every case of the onnx package."""

import warnings

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from onnx import helper

from campo_onnx.errors import CampoError
from campo_onnx.measure.one_node import one_node_model, one_node_view
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.openvino.kernels import sums_low, support
from campo_onnx.runtime.registry import runtime_called
from scripts import probe_openvino

BF16 = helper.tensor_dtype_to_np_dtype(Precision.BF16.onnx_dtype)
OPENVINO, ORT = runtime_called("openvino"), runtime_called("onnxruntime")
DRAWS = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
LIMITS = {Precision.FP32: 3e-3, Precision.BF16: 0.05}
"""Of the largest value; errors of layers with several steps add up."""


def values_of(runtime, signature, inputs):
    """Outputs of a node alone; None where the runtime does not take it."""
    model = one_node_model(signature, 1)
    feeds = {}
    for value in model.graph.input:
        array = inputs[value.name.rpartition("_")[0]]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = array.astype(dtype) if array.dtype == np.float32 else array
    try:
        return [*runtime.load(model, "cpu", threads=1).run(feeds).values()]
    except CampoError:
        return None


def distance(got, expected):
    """Largest difference over the largest value; infinite where shapes or what is finite differ."""
    if got.dtype.kind not in "fiubV" or not expected.size:
        return 0.0
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    if got.shape != expected.shape or (np.isfinite(got) != finite).any():
        return np.inf
    largest = np.abs(expected, where=finite, out=np.zeros_like(expected)).max()
    return np.abs(np.where(finite, got - expected, 0)).max() / (largest + 1e-6)


def signatures():
    drawn = dict.fromkeys([*probe_openvino.cases(), *probe_openvino.further(), *probe_openvino.sums()])
    return [signature for signature in drawn if signature.op.op_type not in DRAWS]


@pytest.mark.usefixtures("bf16_units")
def test_every_case_that_is_not_refused_computes_what_onnx_runtime_does():
    compared, wrong = 0, []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for signature in signatures():
            try:
                inputs = synthesize(one_node_view(signature))
            except CampoError:
                continue
            inputs = {
                name: array.astype(BF16).astype(np.float32) if array.dtype == np.float32 else array
                for name, array in inputs.items()
            }
            expected = values_of(ORT, signature, inputs)
            for precision in (Precision.FP32, Precision.BF16) if expected is not None else ():
                node = signature if precision is Precision.FP32 else probe_openvino.low(signature)
                is_refused = support(signature, precision) is Support.REFUSED
                if node is None or is_refused or sums_low(signature, precision):
                    continue
                if (got := values_of(OPENVINO, node, inputs)) is None:
                    continue
                compared += 1
                far = max(map(distance, got, expected))
                if not far < LIMITS[precision]:
                    wrong.append((precision.value, far, signature.op.label, dict(signature.attributes)))
    assert not wrong
    assert compared > 2000
