"""The onnx package's cases of single operators, of which ONNX Runtime runs those that are asked for here."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from onnx import ModelProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

from campo_onnx.errors import UnsupportedModelError
from tests.onnx_cases.test_onnx_cases import array_of
from tests.runtime.torch.translation.beside import as_array, on_onnxruntime, on_torch

pytestmark = pytest.mark.slow

_DRAW = ("test_training_dropout", "test_bernoulli", "test_randomuniform", "test_randomnormal")
"""Beginnings of the names of cases whose results are drawn: torch has a generator of its own."""
REFUSALS = (
    ValueError,
    *(error for error in vars(state).values() if isinstance(error, type) and issubclass(error, Exception)),
)
"""Errors of ONNX Runtime's for types and operators that it does not have: they have no base of their own."""
_LEAST = 0.95  # share of the cases that must give the right values


def runnable() -> list[tuple[str, ModelProto, dict[str, Any], list[Any], list[Any]]]:
    """Name, model, inputs, ONNX's results and ONNX Runtime's of every case."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # onnx's generators of cases divide by zero and cast NaN
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
        entries = []
        for case in cases:
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


def test_every_case_gives_the_right_values_or_is_refused():
    outcomes: Counter[str] = Counter()
    wrong = []
    for name, model, feeds, *truths in runnable():
        if name.startswith(_DRAW):
            continue
        try:
            results = [as_array(value) for value in on_torch(model, feeds)]
        except UnsupportedModelError:
            outcomes["refused"] += 1
            continue
        # ONNX Runtime differs from ONNX in few forms (indices of MaxUnpool); graphs are run as it runs them.
        if any(all(map(is_close, results, truth)) for truth in truths):
            outcomes["right"] += 1
        else:
            wrong.append(name)
    assert not wrong
    assert outcomes["right"] > _LEAST * outcomes.total(), outcomes


def test_ready_made_results_are_held_against():
    ones = np.ones(3, np.float32)
    assert is_close(ones, ones)
    assert not is_close(ones, ones.astype(np.float64))
    assert not is_close(ones, np.array([1, 1, 1.001], np.float32))
    assert not is_close([ones], [ones, ones])
