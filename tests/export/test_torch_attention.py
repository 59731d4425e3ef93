"""Attention, recurrent layers and dropout of exported steps against torch eager."""

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import (
    TOLERANCE,
    Function,
    feeds_of,
    session,
    weighted_sum,
    worst_deviation,
)
from torch import nn

from campo_onnx.export.torch import export_training_step


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project, self.out, self.options = nn.Linear(8, 24), nn.Linear(8, 8), options

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


SEES = torch.tensor(
    [[1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 1]]
).bool()


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": SEES}, {"attn_mask": SEES.float()}],
    ids=["plain", "causal", "scaled", "masked", "added"],
)
def test_attention(options: dict[str, Any]) -> None:
    # One row of the mask sees nothing: torch gives it zeros, a plain softmax would give NaN.
    assert worst_deviation(Attention(**options), weighted_sum, [torch.randn(2, 5, 8)], []) < TOLERANCE


def test_attention_takes_no_reshape_between_its_products() -> None:
    model = export_training_step(Attention(), weighted_sum, torch.randn(2, 5, 8), loss_scale=False)
    products = [n for n in model.graph.node if n.op_type == "MatMul" and "project" not in n.name]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    attention = [n for n in products if len(shapes.get(n.output[0], [])) == 4]
    assert len(attention) == 6  # two forward, four backward


def test_recurrent_layers_are_unrolled() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(4, 5, batch_first=True), nn.GRU(5, 3)

        def forward(self, x: Any) -> Any:
            return self.gru(self.lstm(x)[0])[0]

    assert worst_deviation(Last(), weighted_sum, [torch.randn(3, 6, 4)], []) < TOLERANCE


@pytest.mark.parametrize("layer", [nn.LSTM(32, 32), nn.GRU(32, 32), nn.RNN(32, 32)])
def test_a_recurrent_weight_has_one_product_for_all_time_steps(layer: nn.Module) -> None:
    class States(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    x = torch.randn(20, 4, 32)
    assert worst_deviation(States(), weighted_sum, [x], []) < TOLERANCE
    model = export_training_step(States(), weighted_sum, x, loss_scale=False)
    weights = {v.name for v in model.graph.input if "weight" in v.name}
    read = Counter(name for node in model.graph.node for name in node.input)
    products = sum(node.op_type in ("Gemm", "MatMul") for node in model.graph.node)
    # Of each weight all that reads it, and one more.
    assert products == sum(read[name] for name in weights) + len(weights)
    assert read[next(name for name in weights if "hh" in name)] >= 20


def test_grouped_query_attention() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 32)

        def forward(self, x: Any) -> Any:
            y = self.project(x).view(2, 5, 8, 4).transpose(1, 2)
            return F.scaled_dot_product_attention(y[:, :4], y[:, 4:6], y[:, 6:], enable_gqa=True)

    assert worst_deviation(Grouped(), weighted_sum, [torch.randn(2, 5, 8)], []) < TOLERANCE


def test_multihead_attention_and_layers_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    assert worst_deviation(layer, weighted_sum, [torch.randn(3, 5, 8)], []) < TOLERANCE


def test_dropout_uses_the_forward_mask_in_the_backward_pass() -> None:
    module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 3))
    assert worst_deviation(module, F.cross_entropy, [torch.randn(8, 6)], [torch.arange(8) % 3]) < TOLERANCE


def test_dropout_draws_anew_each_step() -> None:
    model = export_training_step(
        nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5)), weighted_sum, torch.ones(8, 6)
    )
    running = session(model)
    onnxruntime.set_seed(7)  # of 0 and its successor 1 ONNX Runtime's generator makes the same
    feeds = feeds_of(model, nn.Sequential(nn.Linear(6, 40)), [torch.ones(8, 6)], loss_scale=np.float32(1))
    assert running.run(["loss"], feeds)[0] != running.run(["loss"], feeds)[0]


def test_equal_dropouts_draw_apart() -> None:
    module = Function(lambda x: F.dropout(x, 0.5) * F.dropout(x, 0.5), 4, 5)
    model = export_training_step(module, weighted_sum, torch.ones(4, 5))
    assert [node.op_type for node in model.graph.node].count("Dropout") == 2


def test_dropout_is_absent_from_a_module_in_evaluation() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).eval()
    model = export_training_step(module, weighted_sum, torch.ones(8, 6))
    assert "Dropout" not in {node.op_type for node in model.graph.node}


class Heads(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.projection, self.dropout = nn.Linear(8, 24), dropout

    def forward(self, x: Any) -> Any:
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.projection(x).chunk(3, -1)
        )
        weights = F.dropout((query @ key.mT / 2).softmax(-1), self.dropout)
        return (weights @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_the_gradient_of_attention_sums_over_its_shares(dropout: float) -> None:
    module, x = Heads(dropout), torch.randn(3, 12, 8)
    assert worst_deviation(module, weighted_sum, [x], []) < TOLERANCE
    model = export_training_step(module, weighted_sum, [x])
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    sums = [shapes.get(node.input[0]) for node in model.graph.node if node.op_type == "ReduceSum"]
    assert [3, 2, 12, 12] in sums
    assert [3, 2, 12, 4] not in sums  # of the attention's output, which a low precision rounds
    # The factor of dropout goes into products of two matrices.
    scales = {v.name for v in model.graph.initializer if list(v.dims) == []}
    scaled = [n for n in model.graph.node if n.op_type == "Mul" and scales & {*n.input}]
    assert not [node for node in scaled if shapes[node.output[0]][-2:] == [12, 12]]
