"""A mixed graph of another model is refused, whatever the difference is."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from campo_onnx.checking.changes import is_rounded
from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Policy
from campo_onnx.errors import PlanMismatchError, UsageError


def node_of(model, name):
    return next(node for node in model.graph.node if node.name == name)


def rename(model):
    node_of(model, "second").name = "other"


def swap(model):
    node_of(model, "dropped").input.reverse()


def other_operator(model):
    node_of(model, "relu").op_type = "Sigmoid"


def other_attribute(model):
    node_of(model, "transposed_v").attribute[0].ints[:] = [0, 1]


def insert(model):
    output = node_of(model, "square").output[0]
    reader = node_of(model, "mean")
    reader.input[0] = "halved"
    at = list(model.graph.node).index(reader)
    model.graph.node.insert(at, helper.make_node("Abs", [output], ["halved"], name="absolute"))


def other_weights(model):
    tensor = next(t for t in model.graph.initializer if t.name == "b_fp16")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float16(0.5), tensor.name))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (rename, "1 of 15 nodes are missing, for example 'second'"),
        (other_operator, "'relu' is Sigmoid, and Relu in the FP32 model"),
        (other_attribute, "'transposed_v' (Transpose) has different attributes"),
        (insert, "a node 'absolute' (Abs) that is not in the FP32 model"),
        (swap, "input 0 of 'dropped' is connected to a different tensor"),
        (other_weights, "the weights differ: 'b' has different values"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_model_is_refused(step, edit, change, why):
    path = edit(change)
    with pytest.raises(PlanMismatchError) as refusal:
        check(path, step.fp32, Policy())
    assert f"{path} belongs to another model: " in str(refusal.value)
    assert why in str(refusal.value)
    assert refusal.value.exit_code == 7


def test_a_cast_of_the_same_value_is_no_other_model(step, edit):
    edit(lambda model: model.graph.node[0].ClearField("doc_string"))
    assert not check(step.mixed, step.fp32, Policy()).error
    y = next(n for n in onnx.load(step.mixed).graph.node if n.name == "second").output[0]

    def read_the_cast(model):
        square = node_of(model, "square")
        at = list(model.graph.node).index(square)
        square.input[0] = "y_again"
        model.graph.node.insert(at, helper.make_node("Cast", [y], ["y_again"], name="again", to=1))

    edit(read_the_cast)
    assert check(step.mixed, step.fp32, Policy(min_speedup=0)).passed


def test_the_fp32_graph_itself_is_a_mixed_graph_without_casts(step):
    verdicts = check(step.fp32, step.fp32, Policy(max_casts=0, max_drift=0))
    assert verdicts.passed


def test_two_results_are_no_pair(step):
    with pytest.raises(UsageError, match="is itself a result of campo-onnx"):
        check(step.mixed, step.mixed, Policy())


def stored(values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), "t")


@pytest.mark.parametrize(
    ("low", "full", "expected"),
    [
        (stored([0.1, 2.0], np.float16), stored([0.1, 2.0]), True),
        (stored([0.1, 2.0]), stored([0.1, 2.0]), True),
        (stored([0.1, 2.002], np.float16), stored([0.1, 2.0]), False),
        (stored([np.nan, np.inf], np.float16), stored([np.nan, 1e6]), True),
        (stored([[0.1, 0.0], [0.0, 0.0]], np.float16), stored([[0.1]]), True),
        (stored([[0.1, 0.0], [0.0, 1.0]], np.float16), stored([[0.1]]), False),
        (stored([[0.2, 0.0], [0.0, 0.0]], np.float16), stored([[0.1]]), False),
        (stored([0.1], np.float16), stored([0.1, 0.0]), False),
        (stored([0.1], np.float16), stored([[0.1]]), False),
        (stored([], np.float16), stored([]), True),
    ],
)
def test_rounded_and_padded_weights_are_the_same_weights(low, full, expected):
    with np.errstate(over="ignore"):
        assert is_rounded(low, None, full, None) is expected
