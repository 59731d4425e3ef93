"""Exported training steps, FP32 and mixed, run by torch's operations beside ONNX Runtime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.runtime.torch.translation import translate
from tests.runtime.torch.translation.beside import TOLERANCE, on_torch, worst_deviation

pytestmark = pytest.mark.slow


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.words(x))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = (
            nn.LSTM(8, 8, batch_first=True, bidirectional=True),
            nn.GRU(16, 8, batch_first=True),
        )

    def forward(self, x: Any) -> Any:
        return self.gru(self.lstm(x)[0])[0][:, -1]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 6, 3, 2, output_padding=1), nn.Hardswish(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(54, 10),
    )  # fmt: skip


def sequences() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 6, 3, padding=1), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(6, 6, 3, groups=6),
        nn.LayerNorm(6), nn.Flatten(), nn.Linear(36, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))


def words(*shape: int, count: int) -> Any:
    return torch.randint(0, count, shape)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Any]]]] = {
    "perceptron": (perceptron, lambda: (torch.randn(16, 64), words(16, count=10))),
    "convolutions": (convolutions, lambda: (torch.randn(8, 3, 16, 16), words(8, count=10))),
    "sequences": (sequences, lambda: (torch.randn(8, 4, 16), words(8, count=10))),
    "attention": (Attention, lambda: (words(4, 6, count=50), words(24, count=50))),
    "recurrent": (Recurrent, lambda: (torch.randn(4, 5, 8), words(4, count=8))),
}


def step_of(name: str, **options: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    torch.manual_seed(0)
    build, draw = NETWORKS[name]
    module, (x, y) = build(), draw()
    model = export_training_step(module, F.cross_entropy, x, y, loss_scale=False, **options)
    feeds = {key: np.array(value) for key, value in first_state(module, model).items()}
    names = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    feeds |= {key: value.numpy() for key, value in zip(names, (x, y), strict=True)}
    return model, feeds


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_onnx_runtime(name):
    model, feeds = step_of(name)
    assert worst_deviation(model, feeds) < TOLERANCE


def test_weights_are_updated_as_onnx_runtime_does():
    model, feeds = step_of("convolutions", optimizer="adamw")
    for value in (v for v in model.graph.input if v.name not in feeds):  # learning rate, number of the step
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.full([d.dim_value for d in value.type.tensor_type.shape.dim], 0.5).astype(kind)
    assert worst_deviation(model, feeds) < TOLERANCE


@pytest.mark.parametrize("name", ["convolutions", "attention"])
@pytest.mark.parametrize(
    ("device", "runtime", "low"),
    [("v100", "onnxruntime", Precision.FP16), ("zen5", "openvino", Precision.BF16)],
    ids=["v100", "zen5"],
)
def test_mixed_steps_run_in_the_types_that_are_written(name, device, runtime, low):
    model, feeds = step_of(name)
    chosen = target(device, runtime)
    options = Options(target=chosen, lists=oplists("campo"), low=low, strategy="fine-grained")
    mixed = optimize_model(model, options).model
    kinds = {
        attribute.i for node in mixed.graph.node for attribute in node.attribute if attribute.name == "to"
    }
    assert low.onnx_dtype in kinds
    names = [value.name for value in model.graph.output]
    exact = dict(zip(names, on_torch(model, feeds), strict=True))
    rounded = dict(zip([v.name for v in mixed.graph.output], on_torch(mixed, feeds), strict=True))
    loss = next(name for name in names if "loss" in name)
    assert rounded[loss].dtype == torch.float32
    assert abs(rounded[loss] - exact[loss]) < 0.02 * abs(exact[loss])
    for key in (key for key in names if key.startswith("grad")):
        assert rounded[key].dtype == exact[key].dtype
        error = (rounded[key] - exact[key]).norm() / (exact[key].norm() + 0.01)
        assert error < 0.1, key


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_step_is_traced_into_one_graph_of_torchs_operations(mode):
    model, feeds = step_of("convolutions")
    translation = translate(model)
    inputs = [torch.from_numpy(np.array(feeds[name])) for name in translation.inputs]
    with torch.no_grad():
        traced = make_fx(translation, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)
        expected, actual = translation(*inputs), traced(*inputs)
    targets = [str(node.target) for node in traced.graph.nodes]
    # Three convolutions have weights, and each weight a gradient.
    assert targets.count("aten.convolution_backward.default") == 3
    assert targets.count("aten.max_pool2d_with_indices_backward.default") == 2
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(one, other)
