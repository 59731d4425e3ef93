"""A label or an index of a batch that lies outside never trains."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.errors import IndexOutOfRangeError, UsageError
from campo_onnx.export.optimizers import SGD
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate


def foreign() -> TrainingSession:
    """A graph of somebody else's that looks up rows: there negative indices count from the end."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["w", "input.i"], ["rows"]),
            helper.make_node("ReduceSum", ["rows"], ["loss"], keepdims=0),
            helper.make_node("Sub", ["param.w", "rows"], ["new.w"]),
            helper.make_node("Identity", ["param.w"], ["w"]),
        ],
        "step",
        [value("param.w", TensorProto.FLOAT, [3, 2]), value("input.i", TensorProto.INT64, [3])],
        [value("loss", TensorProto.FLOAT, []), value("new.w", TensorProto.FLOAT, [3, 2])],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return TrainingSession(model, {"param.w": np.ones((3, 2), np.float32)}, provider="cpu")


def test_graphs_of_others_count_from_the_end() -> None:
    training = foreign()
    assert training.step({"input.i": np.asarray([0, -3, -1])}).loss == 6
    before = training.state()
    for outside in (3, -4):
        with pytest.raises(IndexError, match=rf"the index {outside} of 'input.i'.*takes -3 to 2"):
            training.step({"input.i": np.asarray([0, outside, 1])})
    assert np.array_equal(training.state()["param.w"], before["param.w"])


@pytest.fixture
def exported() -> onnx.ModelProto:
    torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")
    from campo_onnx.export.torch import export_training_step

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 5)

        def forward(self, ids: Any, order: Any) -> Any:
            return self.head(self.table(ids).mean(1)[order])

    loss = torch.nn.functional.cross_entropy
    ids, order, y = torch.zeros(3, 2, dtype=torch.int64), torch.arange(3), torch.arange(3)
    return export_training_step(Network(), loss, (ids, order), y, unscale=False)


BATCH = {"input.ids": np.asarray([[0, 6]] * 3), "input.order": np.asarray([2, -1, -3])}
LABELS = np.asarray([0, 4, -100])


@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "mixed"])
@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        *(("input.ids", (1, 1), n) for n in (7, -1, -7)),
        *(("input.order", 1, n) for n in (3, -4)),
        *(("target.target", 1, n) for n in (5, -1, -5)),
    ],
)
def test_exported_steps_take_what_torch_takes(
    exported: onnx.ModelProto, name: str, place: Any, number: int, mixed: bool
) -> None:
    if mixed:
        options = Options(target=target("v100"), lists=oplists("campo"))
        exported = optimize_model(exported, options).model
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in exported.graph.input}
    state = {n: np.ones(s, np.float32) for n, s in shapes.items() if n.startswith("param.")}
    update = WeightUpdate(optimizer=SGD())
    training = TrainingSession(exported, state, update=update, settings={"lr": 0.1}, provider="cpu")
    training.step({**BATCH, "target.target": LABELS})
    before = training.state()
    batch = {n: v.copy() for n, v in {**BATCH, "target.target": LABELS}.items()}
    batch[name][place] = number
    with pytest.raises(
        IndexOutOfRangeError, match=rf"the index {number} of '{name}' is out of range"
    ) as caught:
        training.step(batch)
    assert isinstance(caught.value, UsageError)
    after = training.state()
    assert all(np.array_equal(after[n], v) for n, v in before.items())
    training.step({**BATCH, "target.target": LABELS})
