"""The onnx package's cases of single operators, of which ONNX Runtime runs those that are asked for here."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from onnx import ModelProto, TensorProto, checker, helper, shape_inference
from onnxruntime.capi import onnxruntime_pybind11_state as state

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.torch.translation.values import DTYPES
from tests.onnx_cases.test_onnx_cases import array_of
from tests.runtime.torch.translation.beside import as_array, on_onnxruntime, on_torch

pytestmark = pytest.mark.slow

_DRAW = ("test_training_dropout", "test_bernoulli", "test_randomuniform", "test_randomnormal")
"""Beginnings of the names of cases whose results are drawn: torch has a generator of its own."""
REFUSALS = (
    *(ValueError, TypeError, RuntimeError),
    *(error for error in vars(state).values() if isinstance(error, type) and issubclass(error, Exception)),
)
"""Errors of ONNX Runtime's for types and operators that it does not have: they have no base of their own."""
_LEAST = 0.95  # share of the cases that must give the right values


Case = tuple[str, ModelProto, dict[str, Any], list[Any], list[Any]]

_RANGE = ("large_number", "test_tan", "test_reduce_prod_default", "with_output_shape", *_DRAW)
"""Parts of names of cases whose data low precision does not hold, or that ONNX Runtime takes otherwise."""
_SCALES = frozenset({"Cast", "CastLike", "BitCast", "Resize", "Upsample", "DequantizeLinear"})
"""Operators whose other inputs stay FP32, or that say themselves which type comes out."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return runnable()


def runnable() -> list[Case]:
    """Name, model, inputs, ONNX's results and ONNX Runtime's of every case."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # onnx's generators of cases divide by zero and cast NaN
        from onnx.backend.test.case.node import collect_testcases

        entries = []
        for case in collect_testcases(None):
            inputs, outputs = case.data_sets[0]
            names = [value.name for value in case.model.graph.input]
            feeds = dict(zip(names, map(array_of, inputs), strict=False))
            try:
                results = on_onnxruntime(case.model, feeds)
            except REFUSALS:
                continue
            entries.append((case.name, case.model, feeds, list(map(array_of, outputs)), results))
    return entries


def is_close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(is_close, actual, expected))
    if expected is None:
        return actual is None
    if expected.dtype.name == "bfloat16":
        expected = expected.astype(np.float32)
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return False
    if expected.dtype.kind not in "fc":
        return bool(np.array_equal(actual, expected))
    tolerance = 1e-3 if "16" in expected.dtype.name else 1e-5
    finite = np.abs(expected[np.isfinite(expected)])
    return bool(
        np.allclose(
            actual, expected, rtol=tolerance, atol=tolerance * finite.max(initial=1e-2), equal_nan=True
        )
    )


def test_every_case_gives_the_right_values_or_is_refused(cases):
    outcomes: Counter[str] = Counter()
    wrong = []
    for name, model, feeds, *truths in cases:
        if name.startswith(_DRAW):
            continue
        try:
            results = [as_array(value) for value in on_torch(model, feeds)]
        except UnsupportedModelError:
            outcomes["refused"] += 1
            continue
        # ONNX Runtime differs from ONNX in few forms (MaxUnpool); graphs are run as it runs them.
        if any(all(map(is_close, results, truth)) for truth in truths):
            outcomes["right"] += 1
        else:
            wrong.append(name)
    assert not wrong
    assert outcomes["right"] > _LEAST * outcomes.total(), outcomes


def lowered(model: ModelProto, dtype: int) -> ModelProto | None:
    """Give the FP32 inputs and outputs of a single operator another type; None where it takes none such."""
    copy = ModelProto()
    copy.CopyFrom(model)
    if len(copy.graph.node) != 1 or copy.graph.node[0].op_type in _SCALES:
        return None
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = dtype
    try:
        checker.check_model(copy, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError):
        return None
    return copy


@pytest.mark.parametrize("low", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["fp16", "bf16"])
def test_results_in_low_precision_have_the_type_that_is_written(cases, low):
    wrong, count = {}, 0
    for name, model, feeds, truth, _ in cases:
        copy = lowered(model, low)
        if copy is None or any(part in name for part in _RANGE):
            continue
        if not any(getattr(value, "dtype", None) == np.float32 for value in feeds.values()):
            continue
        kind = helper.tensor_dtype_to_np_dtype(low)
        rounded = {
            key: value.astype(kind) if getattr(value, "dtype", None) == np.float32 else value
            for key, value in feeds.items()
        }
        try:
            results = on_torch(copy, rounded)
        except UnsupportedModelError:
            continue
        count += 1
        for value, actual, expected in zip(copy.graph.output, results, truth, strict=True):
            if not isinstance(actual, torch.Tensor):
                continue
            if actual.dtype != DTYPES[value.type.tensor_type.elem_type]:
                wrong[name] = str(actual.dtype)
            elif expected.dtype.kind == "f" and not is_near(as_array(actual), expected):
                wrong[name] = "values"
    assert not wrong
    assert count > len(cases) // 3


def is_near(actual: Any, expected: Any) -> bool:
    finite = np.isfinite(expected)
    largest = np.abs(expected[finite]).max(initial=0.1)
    return bool(np.abs(actual[finite] - expected[finite]).max(initial=0) < 0.05 * largest)


def test_ready_made_results_are_held_against():
    ones = np.ones(3, np.float32)
    assert is_close(ones, ones)
    assert not is_close(ones, ones.astype(np.float64))
    assert not is_close(ones, np.array([1, 1, 1.001], np.float32))
    assert not is_close([ones], [ones, ones])
