"""Holding a translated graph, run as it is, against ONNX Runtime."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from campo_onnx.runtime.torch.translation import translate

Arrays = Mapping[str, NDArray[Any]]
TOLERANCE = 1e-5


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def on_onnxruntime(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def as_tensor(value: Any) -> Any:
    if isinstance(value, list):
        return [as_tensor(item) for item in value]
    if value is None:
        return None
    array = np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(value: Any) -> Any:
    if isinstance(value, list):
        return [as_array(item) for item in value]
    if value is None:
        return None
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def on_torch(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    translation = translate(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of operators in their first release
        return list(translation(*(as_tensor(feeds.get(name)) for name in translation.inputs)))


def worst_deviation(model: onnx.ModelProto, feeds: Arrays) -> float:
    """Largest difference of an output, over its largest element, or all gradients' where it is nearly 0."""
    names = [value.name for value in model.graph.output]
    truth = dict(zip(names, on_onnxruntime(model, feeds), strict=True))
    results = dict(zip(names, map(as_array, on_torch(model, feeds)), strict=True))
    largest = max((np.abs(a).max(initial=0) for n, a in truth.items() if n.startswith("grad")), default=1.0)
    return max(_deviation(results[n], array, largest) for n, array in truth.items())


def _deviation(actual: NDArray[Any], expected: NDArray[Any], largest: float) -> float:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind != "f":
        assert np.array_equal(actual, expected)
        return 0.0
    own = np.abs(expected).max(initial=0)
    scale = own if own > TOLERANCE * largest else largest
    return float(np.abs(actual - expected).max(initial=0) / (scale or 1))
