"""The onnx package's own backend cases, optimized: ``make test-onnx-cases``.

About 1,900 graphs of one node or a few, of every operator and opset there is, with inputs. They are
made in memory, which takes some seconds, and so are not part of the ordinary run.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, TypeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from campo_onnx import Precision
from tests.random_graphs.builder import RandomGraph, run
from tests.random_graphs.oracles import Setting, check
from tests.random_graphs.raised import OracleError, Runner

pytestmark = pytest.mark.onnx_cases

EXPECTED_REFUSALS = ("has no tensor in FP_, FP_ or BF_",)

IMPOSSIBLE = {
    "test_mvn",  # onnx's own checker refuses it in full
    # The lowest FP32 number fills what is masked of the scores, which are an output: FP16 has none such.
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
}


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, RandomGraph, Runner | None]]:
    """Name, graph with data, and what runs it, of every case."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # onnx's generators of cases divide by zero and cast NaN
        from onnx.backend.test.case.model import collect_testcases as of_models
        from onnx.backend.test.case.node import collect_testcases as of_nodes

        testcases = [*of_nodes(None), *of_models()]
    entries = []
    for case in testcases:
        if case.model is None:
            continue  # to be downloaded
        inputs = case.data_sets[0][0] if case.data_sets else ()
        model, feeds = sized(case.model, inputs), feeds_of(case.model, inputs)
        graph = RandomGraph(seed=0, model=model, feeds=feeds, values={})
        entries.append((case.name, graph, runner_of(graph)))
    return entries


def feeds_of(model: ModelProto, inputs: Sequence[Any]) -> dict[str, Any]:
    names = [value.name for value in model.graph.input]
    return {name: array_of(value) for name, value in zip(names, inputs, strict=False)}


def array_of(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (int, float, np.generic)) else value


def sized(model: ModelProto, inputs: Sequence[Any]) -> ModelProto:
    """Give symbolic dimensions of inputs the sizes that the data has."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for value, data in zip(copy.graph.input, inputs, strict=False):
        sample = data[0] if isinstance(data, list) and data else data
        shape = tensor_of(value.type).shape.dim
        for dim, size in zip(shape, getattr(sample, "shape", ()), strict=False):
            if not dim.HasField("dim_value"):
                dim.dim_value = size
    return copy


def tensor_of(type_: TypeProto) -> TypeProto.Tensor:
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return tensor_of(type_.sequence_type.elem_type)
    if kind == "optional_type":
        return tensor_of(type_.optional_type.elem_type)
    return type_.tensor_type


def runner_of(graph: RandomGraph) -> Runner | None:
    """Runner of a graph as it is: ONNX Runtime, or onnx's reference, which knows every type."""
    for runner in (run, evaluated):
        with suppress(Exception), np.errstate(all="ignore"):
            runner(graph.model, graph.feeds)
            return runner
    return None


def evaluated(model: ModelProto, feeds: Any) -> dict[str, Any]:
    inputs = {value.name for value in model.graph.input}
    names = [value.name for value in model.graph.output]
    values = ReferenceEvaluator(model).run(None, {k: v for k, v in feeds.items() if k in inputs})
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    ("strategy", "low"),
    [
        ("fine-grained", Precision.FP16),
        ("optimal", Precision.FP16),
        ("fine-grained", Precision.BF16),
    ],
    ids=lambda value: getattr(value, "value", value),
)
def test_every_case_stays_valid_and_right(cases, strategy, low):
    setting = Setting(strategy=strategy, lists="campo", low=low, device="h200", cost_seed=5)
    outcomes: Counter[str] = Counter()
    broken = {}
    for name, graph, runner in cases:
        if name in IMPOSSIBLE:
            continue
        try:
            outcome = check(graph, setting, runner)
        except OracleError as error:
            broken[name] = str(error)
            continue
        except Exception as error:
            broken[name] = repr(error)[:200]
            continue
        outcomes[outcome] += 1
        if outcome.startswith("refused") and not any(words in outcome for words in EXPECTED_REFUSALS):
            broken[name] = outcome
    assert not broken, "\n".join(f"{name}: {why}" for name, why in broken.items())
    # What reads a graph's inputs stays FP32 where data in units of its own would break it: of a few
    # nodes alone, that is often all of them (normalizations, a softmax written out).
    assert outcomes["ok"] > (200 if strategy == "optimal" else 400), outcomes
