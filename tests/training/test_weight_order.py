"""Parameters kept in the order in which the graph reads them: the same numbers with fewer nodes."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from campo_onnx.errors import UsageError
from campo_onnx.export.optimizers import SGD, Adam
from campo_onnx.ir.importer import import_model
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_order import kept_as_read
from campo_onnx.training.weight_update import WeightUpdate

W, FROZEN, LR = (4, 3, 1, 2), (3, 4), 0.1
PATTERN = np.arange(24, dtype=np.float32).reshape(W) / 24

# As around the products of a convolution: a weight (outputs, channels, 1, 2) read with its channels last, and
# a gradient that is made so. "->" tells shapes of Reshapes, "[]" permutations.
READ = ["a = param.w -> 4 3 2", "b = a [0 2 1]", "c = b -> 4 6", "y = Gemm input.x c"]
FIXED = ["f = param.frozen [1 0]", "z = MatMul y f", "loss = ReduceSum z"]
MADE = ["g = Cos c", "h = g -> 4 2 1 3", "i = h [0 3 2 1]"]
SECOND = ["k = Sin c", "l = k -> 4 2 3", "m = l [0 2 1]", "n = m -> 4 3 1 2"]
CAST = ["o = Cast param.w", "p = o -> 4 3 2", "q = p [0 2 1]", "most = ReduceMax q"]
CAST_AGAIN = ["r = Cast param.w", "s = r -> 4 3 2", "t = s [0 2 1]", "least = ReduceMin t"]
CASES: dict[str, tuple[int, list[str]]] = {  # with how many Transposes are left
    "one gradient": (0, [*READ, *FIXED, *MADE, "grad.w = Identity i"]),
    "two that are added": (0, [*READ, *FIXED, *MADE, *SECOND, "grad.w = Add i n"]),
    "a third that lies otherwise": (
        2, [*READ, *FIXED, *MADE, *SECOND, "o = Sin param.w", "p = Add i n", "grad.w = Add p o"]
    ),
    "read in two orders": (
        1,
        [
            *READ, *FIXED, *MADE, "k = param.w -> 12 2", "l = k [1 0]", "other = ReduceMax l",
            "grad.w = Identity i",
        ],
    ),
    "read as it is too": (
        1, [*READ, *FIXED, *MADE, "o = Sin param.w", "p = ReduceSum o", "grad.w = Identity i"]
    ),
    "scaled": (0, [*READ, *FIXED, *MADE, "j = Mul i half", "grad.w = Identity j"]),
    "made as declared": (1, [*READ, *FIXED, *CAST, "sum = ReduceSum z", "grad.w = Mul pattern sum"]),
    "made of a Cast of the weight": (
        2, [*READ, *FIXED, *CAST, *CAST_AGAIN, "j = Cast param.w", "grad.w = Mul j half"]
    ),
    "names that the graph has": (
        1,
        [
            *READ, *FIXED, *MADE, "param.w/0_1_2_3 = Sin param.w", "i/shape = ReduceSum param.w/0_1_2_3",
            "grad.w/shape = ReduceMax c", "grad.w = Identity i",
        ],
    ),
}  # fmt: skip
KEPT_AS_DECLARED = {
    "a gradient that is read": [*READ, *FIXED, *MADE, "grad.w = Identity i", "most = ReduceMax grad.w"],
    "a gradient that is a view of the weight": [*READ, *FIXED, "e = b [0 2 1]", "grad.w = e -> 4 3 1 2"],
}


def step_model(lines: list[str]) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(a, n) for n, a in (("half", np.float32(0.5)), ("pattern", PATTERN))]
    nodes = []
    for number, line in enumerate(lines):
        output, formula = line.split(" = ")
        name, attributes = f"n{number}", {}
        if "[" in formula:
            operand, perm = formula.rstrip("]").split(" [")
            op_type, inputs, attributes = "Transpose", [operand], {"perm": [*map(int, perm.split())]}
        elif "->" in formula:
            operand, shape = formula.split(" -> ")
            op_type, inputs = "Reshape", [operand, f"{name}_shape"]
            constants.append(numpy_helper.from_array(np.array(shape.split(), np.int64), inputs[1]))
        else:
            op_type, *inputs = formula.split()
            attributes = {"keepdims": 0} if op_type.startswith("Reduce") else {}
            attributes |= {"Gemm": {"transB": 1}, "Cast": {"to": TensorProto.FLOAT}}.get(op_type, {})
        nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
    read = {name for node in nodes for name in node.input}
    shapes = {"param.w": W, "param.frozen": FROZEN, "input.x": (8, 6)}
    unread = [node.output[0] for node in nodes if node.output[0] not in read]
    ends = {name: W if name == "grad.w" else () for name in ("loss", "grad.w", *unread)}

    def infos(tensors: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in tensors.items()]

    graph = helper.make_graph(nodes, "step", infos(shapes), infos(ends), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def first_state() -> dict[str, NDArray[np.float32]]:
    return {"param.w": numbers(*W), "param.frozen": numbers(*FROZEN, seed=1)}


def session(model: onnx.ModelProto, **options: Any) -> TrainingSession:
    update = WeightUpdate(optimizer=SGD(), **options)
    return TrainingSession(
        model, first_state(), update=update, settings={"lr": LR}, provider="cpu", threads=1
    )


def by_hand(model: onnx.ModelProto, steps: int) -> dict[str, NDArray[np.float32]]:
    """Run the graph as it is, and take the steps here."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    graph, state = ort.InferenceSession(model.SerializeToString(), options), first_state()
    for step in range(steps):
        (gradient,) = graph.run(["grad.w"], state | {"input.x": numbers(8, 6, seed=step)})
        state["param.w"] = state["param.w"] - np.float32(LR) * gradient
    return state


@pytest.mark.parametrize("lines", [*(lines for _, lines in CASES.values()), *KEPT_AS_DECLARED.values()])
def test_steps_are_those_of_the_graph_as_it_is(lines: list[str]) -> None:
    model = step_model(lines)
    training = session(model)
    for step in range(3):
        training.step({"input.x": numbers(8, 6, seed=step)})
    state = training.state()
    for name, expected in by_hand(model, 3).items():
        np.testing.assert_allclose(state[name], expected, rtol=1e-6, atol=1e-7)
        assert state[name].flags.c_contiguous


@pytest.mark.parametrize("case", CASES)
def test_transposes_of_parameters_and_gradients_are_gone(case: str) -> None:
    transposes, lines = CASES[case]
    imported = import_model(step_model(lines))
    parameters = {"param.w": "grad.w", "param.frozen": None}
    changed, kept = kept_as_read(imported.model, imported.view, parameters)
    onnx.checker.check_model(changed, full_check=True)
    counts = Counter(node.op_type for node in changed.graph.node)
    assert counts["Transpose"] == transposes
    assert set(kept) == set(parameters)


@pytest.mark.parametrize("case", KEPT_AS_DECLARED)
def test_what_else_reads_a_gradient_finds_it_as_declared(case: str) -> None:
    imported = import_model(step_model(KEPT_AS_DECLARED[case]))
    changed, kept = kept_as_read(imported.model, imported.view, {"param.w": "grad.w"})
    assert not kept
    assert changed is imported.model


def test_checkpoints_hold_parameters_as_declared(tmp_path: Path) -> None:
    training = session(step_model(CASES["one gradient"][1]))
    training.step({"input.x": numbers(8, 6)})
    training.save(tmp_path / "step.ckpt")
    other = session(step_model(KEPT_AS_DECLARED["a gradient that is read"]))
    other.restore(tmp_path / "step.ckpt")
    for _ in range(2):
        batch = {"input.x": numbers(8, 6, seed=3)}
        training.step(batch)
        other.step(batch)
    for name, value in training.state().items():
        np.testing.assert_array_equal(value, other.state()[name])


def test_shared_weights_are_views_of_what_was_declared() -> None:
    model = step_model(CASES["one gradient"][1])
    training = session(model)
    shared = training.shared()
    np.testing.assert_array_equal(shared["param.w"], first_state()["param.w"])
    training.step({"input.x": numbers(8, 6)})
    expected = by_hand(model, 1)["param.w"]
    np.testing.assert_allclose(shared["param.w"], expected, rtol=1e-6)
    change = first_state()["param.w"] - np.float32(LR) * shared["grad.w"]
    np.testing.assert_allclose(change, expected, rtol=1e-6)
    shared["param.w"][1, 2] = 7
    np.testing.assert_array_equal(training.state()["param.w"], shared["param.w"])


def test_an_optimizer_from_elsewhere_finds_elements_in_order() -> None:
    """LBFGS takes ``grad.view(-1)``."""
    model = step_model(CASES["one gradient"][1])
    training = TrainingSession(
        model, first_state(), update=WeightUpdate(optimizer=None), provider="cpu", threads=1
    )
    shared = training.shared()
    assert all(array.flags.c_contiguous for array in shared.values())
    training.step({"input.x": numbers(8, 6)})
    shared["param.w"].reshape(-1)[:] -= np.float32(LR) * shared["grad.w"].reshape(-1)
    np.testing.assert_allclose(training.state()["param.w"], by_hand(model, 1)["param.w"], rtol=1e-6)


def test_a_parameter_that_pairs_freeze_is_not_trained() -> None:
    """Though the graph gives its gradient, which is an output like others then."""
    lines = [*CASES["one gradient"][1], "q = Sin param.frozen", "grad.frozen = Identity q"]
    model = step_model(lines)
    del model.graph.output[-1].type.tensor_type.shape.dim[:]
    for size in FROZEN:
        model.graph.output[-1].type.tensor_type.shape.dim.add(dim_value=size)
    training = TrainingSession(
        model, first_state(), update=WeightUpdate(optimizer=SGD()), settings={"lr": LR}, provider="cpu",
        pairs={"param.frozen": None},
    )  # fmt: skip
    result = training.step({"input.x": numbers(8, 6)})
    after = training.state()
    np.testing.assert_array_equal(after["param.frozen"], first_state()["param.frozen"])
    np.testing.assert_allclose(result.metrics["grad.frozen"], np.sin(after["param.frozen"]), rtol=1e-5)
    assert not np.array_equal(after["param.w"], first_state()["param.w"])


def test_a_negative_count_of_updates_is_refused() -> None:
    model = step_model(CASES["one gradient"][1])
    training = TrainingSession(
        model, first_state(), update=WeightUpdate(optimizer=Adam()), settings={"lr": LR}, provider="cpu"
    )
    with pytest.raises(UsageError, match="'step' is -1"):
        training.load_state({"step": np.asarray(-1, np.int64)})
    assert training.step({"input.x": numbers(8, 6)}).updated
