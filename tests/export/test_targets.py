"""The forms that targets of their own get, against torch, with ONNX Runtime's optimizer on and off."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import against_torch
import torch.nn.functional as F
from against_torch import TOLERANCE, Function, weighted_sum, worst_deviation
from torch import nn

from campo_onnx.export.torch import export_training_step
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.traffic import traffic

_LEVEL = onnxruntime.GraphOptimizationLevel
LEVELS = (_LEVEL.ORT_DISABLE_ALL, _LEVEL.ORT_ENABLE_ALL)


class Normalized(nn.Module):
    """Batch and group normalization of images that are far from zero, with strides and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1, stride=2)
        self.batch, self.group = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.small = nn.BatchNorm2d(8, eps=1e-3, affine=False)

    def forward(self, x: Any) -> Any:
        x = self.group(F.relu(self.batch(self.first(x) + 3)))
        return self.small(self.second(x).tanh())


class Attention(nn.Module):
    """Attention with dropouts and a mask, a layer normalization and a GELU."""

    def __init__(self, *, p: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm, self.p = nn.LayerNorm(16), p

    def forward(self, x: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            f(x).view(batch, length, 2, -1).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        weights = F.dropout((q / 3 @ k.transpose(-1, -2) + mask).softmax(-1), self.p, self.training)
        y = self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x * self.out.bias + F.dropout(y, self.p, self.training)
        x = x + F.dropout(F.gelu(self.query(x)), self.p, self.training)
        return self.norm(x + F.gelu(self.key(x)))


class Branches(nn.Module):
    """Branches that end in rectifiers, some in a Concat of their own, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(3))
        self.both, self.last = nn.Conv2d(12, 5, 1), nn.Conv2d(5, 3, 1)

    def forward(self, x: Any) -> Any:
        a, b, c = (F.relu(part(x)) for part in self.parts)
        x = torch.cat([a, torch.cat([b, c], 1)], 1)
        y = F.relu(self.both(x))
        return torch.cat([y, self.last(y)], 1)


CASES = {
    "branches": (Branches, [(2, 3, 5, 5)]),
    "normalized": (Normalized, [(4, 3, 8, 8)]),
    "attention": (lambda: Attention(p=0.0), [(3, 12, 16), (3, 1, 1, 12)]),
    "attention_of_all": (lambda: Attention(p=0.0), [(3, 12, 16), (12, 12)]),
    "attention_with_dropout": (lambda: Attention(p=0.4), [(3, 12, 16), (3, 1, 1, 12)]),
}


def in_parts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write what has no kernel on a CPU as the standard operators that it stands for."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in plain.graph.value_info}
    shapes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in plain.graph.input}
    del plain.graph.node[:]
    for node in model.graph.node:
        first = f"{node.output[0]}.sum"
        add = onnx.helper.make_node("Add", node.input[:2], [first])
        if node.op_type == "BiasDropout":
            dropped = f"{node.output[0]}.dropped"
            drop = onnx.helper.make_node("Dropout", [first, *node.input[3:]], [dropped, *node.output[1:]])
            parts = [add, drop, onnx.helper.make_node("Add", [dropped, node.input[2]], node.output[:1])]
        else:
            parts = [node]
        plain.graph.node.extend(parts)
    return plain


@pytest.mark.parametrize("target", ["v100", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_every_gradient_is_torchs(case: str, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shapes = CASES[case]
    module, inputs = make(), [torch.randn(shape) for shape in shapes]
    for level in LEVELS:
        monkeypatch.setattr(against_torch, "session", lambda model, level=level: session(model, level))
        assert worst_deviation(module, weighted_sum, inputs, [], target=target) < TOLERANCE


class Doubles(nn.Module):
    """A part in double precision."""

    def __init__(self, *, activates: bool) -> None:
        super().__init__()
        self.inner, self.activates = nn.Linear(4, 4), activates

    def forward(self, x: Any) -> Any:
        y = self.inner(x).double()
        y = (y @ y.transpose(-1, -2) / 3).softmax(-1) @ y
        y = F.max_pool2d(F.gelu(y) if self.activates else y, 2)
        return y.float()


@pytest.mark.parametrize("target", [None, "v100", "cpu"])
def test_doubles_meet_no_operator_without_a_kernel_for_them(target: Any) -> None:
    x = torch.randn(2, 3, 6, 4)
    assert worst_deviation(Doubles(activates=False), weighted_sum, [x], [], target=target) < TOLERANCE
    model = export_training_step(Doubles(activates=True), weighted_sum, x, target=target)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    read = [types.get(name) for node in model.graph.node if node.domain for name in node.input]
    assert onnx.TensorProto.DOUBLE not in read


@pytest.mark.parametrize("target", [None, "v100", "cpu"])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0,)])
def test_empty_tensors(shape: tuple[int, ...], target: Any) -> None:
    module = Function(lambda x: F.gelu(x).softmax(-1).reshape(shape[::-1]), *shape)
    assert worst_deviation(module, weighted_sum, [torch.randn(shape)], [], target=target) == 0


def session(model: onnx.ModelProto, level: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 2
    options.log_severity_level = 3
    plain = in_parts(model).SerializeToString()
    return onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])


def test_each_target_moves_less_than_the_one_before() -> None:
    moved_bytes = {}
    for target in (None, "cpu", "v100"):
        model = export_training_step(
            Attention(p=0.1),
            weighted_sum,
            [torch.randn(8, 64, 16), torch.randn(8, 1, 1, 64)],
            target=target,
        )
        moved_bytes[target] = traffic(import_model(model).view).total.moved_bytes
        domains = {node.domain for node in model.graph.node}
        assert domains == ({"", "com.microsoft"} if target else {""})
    assert moved_bytes["v100"] < moved_bytes["cpu"] < moved_bytes[None]


def test_sums_of_many_rows_are_as_exact_as_torchs_on_a_cpu() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 64), torch.randn(4096, 8)
    gradient = torch.randn(4096, 64)
    exact = gradient.double().sum(0).numpy()

    def error(actual: Any) -> float:
        return float(np.linalg.norm(actual - exact) / np.linalg.norm(exact))

    errors = {}
    for target in (None, "cpu", "v100"):
        step = export_training_step(layer, lambda y, g: (y * g).sum(), x, gradient, target=target)
        feeds = {
            "param.weight": layer.weight,
            "param.bias": layer.bias,
            "input.input": x,
            "target.g": gradient,
        }
        arrays = {n: t.detach().numpy() for n, t in feeds.items()} | {"loss_scale": np.array(1, np.float32)}
        names = [i.name for i in step.graph.input]
        loaded = session(step, _LEVEL.ORT_ENABLE_ALL)
        (actual,) = loaded.run(["grad.bias"], {n: arrays[n] for n in names})
        errors[target] = error(actual)
    assert max(errors[None], errors["cpu"]) < 2 * error(gradient.sum(0).numpy()) < errors["v100"]


def test_one_mask_serves_all_rectifiers_whose_results_are_joined() -> None:
    shape = (2, 3, 5, 5)
    step = export_training_step(Branches(), weighted_sum, (torch.empty(shape),), (), optimizer=None)
    masks = [node for node in step.graph.node if node.op_type == "Greater"]
    # One of the three branches, nested as they are; one of the rectifier that is read twice.
    assert {node.input[0] for node in masks} == {"Concat_1", "Relu_3"}
