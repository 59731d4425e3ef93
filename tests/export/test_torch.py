"""Exported steps against torch eager: the loss, every gradient, every buffer, every new parameter."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.importer import import_model

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from campo_onnx.export.torch import SGD, Adam, AdamW, Momentum, export_training_step  # noqa: E402

TOLERANCE = 1e-5

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2  # ScatterND with repeated indices is only wrong on several threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session(model).run(names, feeds), strict=True))


def feeds_of(model: onnx.ModelProto, module: Any, batch: Sequence[Any], **scalars: Any) -> Arrays:
    state = {f"param.{n}": p for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b for n, b in module.named_buffers()}
    names = [v.name for v in model.graph.input if v.name.startswith(("input.", "target."))]
    state |= dict(zip(names, batch, strict=True))
    feeds: Arrays = {n: t.detach().numpy().copy() for n, t in state.items()}
    for value in model.graph.input:
        if value.name.startswith("opt."):
            feeds[value.name] = np.zeros([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
    feeds |= {n: np.asarray(s) for n, s in scalars.items()}
    return {value.name: feeds[value.name] for value in model.graph.input}


def deviation(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    assert actual.shape == expected.shape
    assert np.isfinite(expected).all()
    largest = np.abs(expected).max(initial=0)
    return float(np.abs(actual - expected).max(initial=0) / (largest or 1))


def worst(pairs: dict[str, tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Compare tensor by tensor; one that is zero but for rounding is held against the largest of all.

    The gradient of a key's bias is such a zero, since softmax does not see what all scores share.
    """
    largest = max(
        np.abs(expected).max(initial=0) for n, (_, expected) in pairs.items() if n.startswith("grad.")
    )
    return max(
        float(np.abs(actual - expected).max() / largest)
        if n.startswith("grad.") and np.abs(expected).max(initial=0) < TOLERANCE * largest
        else deviation(actual, expected)
        for n, (actual, expected) in pairs.items()
    )


def worst_deviation(
    module: Any, loss: Callable[..., Any], inputs: Sequence[Any], targets: Sequence[Any], **options: Any
) -> float:
    """Export, run, and compare everything with eager."""
    model = export_training_step(module, loss, inputs, targets, loss_scale=False, **options)
    onnx.checker.check_model(model, full_check=True)
    actual = run(with_masks(model), feeds_of(model, module, [*inputs, *targets]))
    module.zero_grad()
    with replayed(actual, model):
        value = loss(module(*inputs), *targets)
    value.backward()
    expected = {"loss": value}
    expected |= {f"grad.{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    expected |= {f"buf_out.{n}": b for n, b in module.named_buffers() if f"buf_out.{n}" in actual}
    assert {v.name for v in model.graph.output} == set(expected)
    return worst({n: (actual[n], t.detach().numpy()) for n, t in expected.items()})


def masks_of(model: onnx.ModelProto) -> list[str]:
    return [node.output[1] for node in model.graph.node if node.op_type == "Dropout"]


def with_masks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give dropout's masks out as well, so that eager can use the same."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    infos = {value.name: value for value in model.graph.value_info}
    shown.graph.output.extend(infos[name] for name in masks_of(model))
    return shown


def replayed(actual: Arrays, model: onnx.ModelProto) -> Any:
    masks = iter([actual[name] for name in masks_of(model)])

    class Replay(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not F.dropout:
                return func(*args, **(kwargs or {}))
            p = args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5)
            if p == 0:
                return args[0]
            return args[0] * torch.from_numpy(next(masks)) / (1 - p)

    return Replay()


class Function(nn.Module):
    """A parameter times the input, then any function: what its gradient passes through."""

    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) if shape else torch.randn(()))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight * x)


def weighted_sum(y: Any) -> Any:
    """A loss whose gradient differs from element to element."""
    return (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 3, 7, 5)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 8, 7)),
    "avg_pool_ceil": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), (2, 3, 8, 8)),
    "avg_pool_inside": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 8, 7)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 4, 5)),
    "broadcast": (lambda x: x[:, :1] * x - x.mean(0, keepdim=True) / (1 + x[:1] ** 2), (4, 5)),
    "cat_split": (lambda x: torch.cat([part**2 for part in x.split([1, 4], 1)][::-1], 1), (3, 5)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (4, 5)),
    "cumsum": (lambda x: (x * x).cumsum(1), (3, 5)),
    "elu": (F.elu, (4, 5)),
    "flip": (lambda x: x.flip(0, 1) ** 2, (3, 4)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0, 2], [4, 4, 4], [1, 3, 1]])), (3, 5)),
    "gelu": (F.gelu, (4, 5)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (4, 5)),
    "index": (lambda x: x[torch.tensor([0, 2, 2, -1])] ** 2, (3, 5)),
    "index_pair": (lambda x: x[:, torch.tensor([0, 2, 2]), torch.tensor([1, 0, 0])] ** 2, (2, 3, 5)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), (4, 5)),
    "log1p": (lambda x: torch.log1p(x.abs() * 1e-4), (4, 5)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), (4, 5)),
    "logsumexp": (lambda x: x.logsumexp(1), (4, 5)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 8, 7)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 5)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), (3, 5)),
    "permuted_view": (lambda x: x.permute(2, 0, 1).reshape(-1, 6) @ x.reshape(6, -1), (2, 3, 4)),
    "prelu_like": (lambda x: torch.where(x > 0, x, 0.25 * x), (4, 5)),
    "norm": (lambda x: x / x.norm(dim=1, keepdim=True), (4, 5)),
    "fmod": (lambda x: x * torch.fmod(torch.arange(5), 3) + x.roll(2, 1), (4, 5)),
    "sort": (lambda x: x.sort(1, descending=True)[0] ** 2, (4, 5)),
    "topk": (lambda x: x.topk(2, 0)[0] ** 2, (4, 5)),
    "unfold": (lambda x: F.unfold(x, 2) ** 2, (2, 3, 5, 5)),
    "scatter_add": (lambda x: torch.zeros(4, 5).scatter_add(1, torch.eye(4, 5).long(), x * x), (4, 5)),
    "repeat": (lambda x: x.repeat(2, 3) ** 2, (2, 3)),
    "rsqrt": (lambda x: torch.rsqrt(x * x + 1), (4, 5)),
    "sigmoid_tanh": (lambda x: torch.sigmoid(x) * torch.tanh(x), (4, 5)),
    "silu": (F.silu, (4, 5)),
    "slice_step": (lambda x: x[:, 1::2] ** 2, (3, 6)),
    "softmax": (lambda x: F.softmax(x, -1), (4, 5)),
    "softplus": (F.softplus, (4, 5)),
    "stack_unbind": (lambda x: torch.stack([part * part for part in x.unbind(1)]), (3, 4)),
    "std": (lambda x: x.std(1) + x.var(0).sum(), (4, 5)),
    "in_place": (lambda x: (y := x.clone()).__setitem__((slice(None), 0), 0.0) or y * x, (4, 5)),
    "masked_fill": (lambda x: x.masked_fill(torch.eye(4, dtype=torch.bool), 0.0) ** 2, (4, 4)),
}


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_functions(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    module = Function(function, *shape)
    assert worst_deviation(module, weighted_sum, [torch.randn(shape)], []) < TOLERANCE


CONVOLUTIONS = {
    "strided": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "unreached_end": lambda: nn.Conv2d(4, 6, 3, stride=3),
    "pointwise": lambda: nn.Conv2d(4, 6, 1, bias=False),
    "pointwise_strided": lambda: nn.Conv2d(4, 6, 1, stride=2, bias=False),
    "one_by_seven": lambda: nn.Conv2d(4, 6, (1, 7), padding=(0, 3)),
    "dilated": lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "depthwise_dilated": lambda: nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1),
    "transposed_extra": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed_grouped": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
}


@pytest.mark.parametrize("form", ["matmul", "conv"])
@pytest.mark.parametrize("convolution", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_convolutions(convolution: Callable[[], Any], form: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), convolution())
    x = torch.randn(2, 3, 10, 9)
    assert worst_deviation(module, weighted_sum, [x], [], conv_weight_gradient=form) < TOLERANCE


@pytest.mark.parametrize("form", ["matmul", "conv"])
@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Conv1d(3, 4, 5, 2, 2, 2), (2, 3, 20)), (nn.Conv3d(2, 3, (2, 3, 1), (1, 2, 1), 1), (2, 2, 5, 6, 4))],
    ids=["1d", "3d"],
)
def test_convolutions_of_other_ranks(module: Any, shape: tuple[int, ...], form: str) -> None:
    x = torch.randn(shape)
    assert worst_deviation(module, weighted_sum, [x], [], conv_weight_gradient=form) < TOLERANCE


NORMALIZATIONS = {
    "batch": lambda: nn.BatchNorm2d(6),
    "batch_without_weights": lambda: nn.BatchNorm2d(6, affine=False),
    "batch_without_statistics": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "batch_cumulative": lambda: nn.BatchNorm2d(6, momentum=0.3),
    "batch_evaluated": lambda: nn.BatchNorm2d(6).eval(),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
    "layer": lambda: nn.LayerNorm((6, 5, 4)),
    "layer_without_weights": lambda: nn.LayerNorm(4, elementwise_affine=False),
}


@pytest.mark.parametrize("normalization", NORMALIZATIONS.values(), ids=list(NORMALIZATIONS))
def test_normalizations(normalization: Callable[[], Any]) -> None:
    # No bias before a normalization: its gradient is zero but for noise, which says nothing.
    module = nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), normalization(), nn.Tanh())
    assert worst_deviation(module, weighted_sum, [torch.randn(3, 3, 5, 4)], []) < TOLERANCE


LOSSES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "cross_entropy": (F.cross_entropy, lambda: torch.randint(0, 5, (8,))),
    "ignored": (F.cross_entropy, lambda: torch.tensor([1, -100, 3, -100, 0, 0, 4, 2])),
    "smoothed": (
        lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1), lambda: torch.randint(0, 5, (8,))
    ),
    "weighted": (
        lambda y, t: F.cross_entropy(y, t, torch.arange(1.0, 6)), lambda: torch.randint(0, 5, (8,))
    ),
    "summed": (
        lambda y, t: F.cross_entropy(y, t, reduction="sum"), lambda: torch.randint(0, 5, (8,))
    ),
    "per_row": (
        lambda y, t: (F.cross_entropy(y, t, reduction="none") * torch.arange(8)).sum(),
        lambda: torch.randint(0, 5, (8,)),
    ),
    "soft": (F.cross_entropy, lambda: torch.rand(8, 5)),
    "binary": (F.binary_cross_entropy_with_logits, lambda: torch.rand(8, 5)),
    "binary_of_sigmoid": (lambda y, t: F.binary_cross_entropy(y.sigmoid(), t), lambda: torch.rand(8, 5)),
    "huber": (F.smooth_l1_loss, lambda: torch.randn(8, 5)),
    "l1": (F.l1_loss, lambda: torch.randn(8, 5)),
    "mse": (F.mse_loss, lambda: torch.randn(8, 5)),
    "kl": (lambda y, t: F.kl_div(F.log_softmax(y, 1), t, reduction="batchmean"), lambda: torch.rand(8, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "target"), LOSSES.values(), ids=list(LOSSES))
def test_losses(loss: Callable[..., Any], target: Callable[[], Any]) -> None:
    # Silently wrong elsewhere: a mean cross entropy whose gradient is as many times too large as there are
    # rows, because the number of rows never reaches the backward pass.
    assert worst_deviation(nn.Linear(6, 5), loss, [torch.randn(8, 6)], [target()]) < TOLERANCE


def test_cross_entropy_of_pixels() -> None:
    targets = [torch.randint(0, 5, (2, 3, 4))]
    inputs = [torch.randn(2, 6, 3, 4)]
    assert worst_deviation(nn.Conv2d(6, 5, 1), F.cross_entropy, inputs, targets) < TOLERANCE


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


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(2, 16)

    def forward(self, words: Any, types: Any) -> Any:
        return (self.words(words) + self.types(types)).tanh()


def test_embeddings_with_repeated_indices_on_several_threads() -> None:
    inputs = [torch.randint(0, 50, (8, 64)), torch.randint(0, 2, (8, 64))]
    module = Lookup()
    model = export_training_step(module, weighted_sum, inputs, loss_scale=False)
    assert "ScatterND" not in {node.op_type for node in model.graph.node}
    weighted_sum(module(*inputs)).backward()
    running, feeds = session(model), feeds_of(model, module, inputs)
    for _ in range(20):  # the race of ScatterND shows in some runs only
        words, types = running.run(["grad.words.weight", "grad.types.weight"], feeds)
        assert deviation(words, module.words.weight.grad.numpy()) < TOLERANCE
        assert deviation(types, module.types.weight.grad.numpy()) < TOLERANCE


def test_lookups_by_any_index_take_no_scatternd() -> None:
    rows = torch.tensor([0, 1, 1, 0] * 64)
    model = export_training_step(Function(lambda x: x[rows], 2, 8), weighted_sum, torch.ones(2, 8))
    assert "ScatterND" not in {node.op_type for node in model.graph.node}


def test_batch_norm_trains_by_primitives_and_updates_its_statistics() -> None:
    # Silently wrong elsewhere: statistics that pass through unchanged, because the operation hides that
    # it writes them, and a normalization that was switched to inference.
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1))
    x = 5 + 3 * torch.randn(4, 3, 6, 6)
    model = export_training_step(module, weighted_sum, [x], loss_scale=False)
    (norm,) = (node for node in model.graph.node if node.op_type == "BatchNormalization")
    assert "training_mode" not in {attribute.name for attribute in norm.attribute}
    assert len(norm.output) == 1
    actual = run(model, feeds_of(model, module, [x]))
    module(x)
    assert deviation(actual["buf_out.0.running_mean"], module[0].running_mean.numpy()) < TOLERANCE
    assert deviation(actual["buf_out.0.running_var"], module[0].running_var.numpy()) < TOLERANCE
    assert abs(actual["buf_out.0.running_mean"] - 0.5).max() < 0.2
    assert actual["buf_out.0.num_batches_tracked"] == 1


def small_net() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )  # fmt: skip


OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sgd": ("sgd", lambda ps: torch.optim.SGD(ps, 0.05)),
    "sgd_decayed": (SGD(weight_decay=0.1), lambda ps: torch.optim.SGD(ps, 0.05, weight_decay=0.1)),
    "momentum": ("momentum", lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9)),
    "nesterov": (
        Momentum(momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adam": ("adam", lambda ps: torch.optim.Adam(ps, 0.05)),
    "adam_decayed": (Adam(weight_decay=0.1), lambda ps: torch.optim.Adam(ps, 0.05, weight_decay=0.1)),
    "adamw": (AdamW(beta2=0.95), lambda ps: torch.optim.AdamW(ps, 0.05, betas=(0.9, 0.95))),
}


@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_optimizers_step_like_torch(optimizer: Any, reference: Callable[[Any], Any]) -> None:
    # In double and on the same gradients, since Adam's m / sqrt(v) turns the noise of a gradient near
    # zero into a step of full size: only the update itself is compared.
    parameters = {"weight": torch.randn(5, 4), "bias": torch.randn(4)}
    module = nn.Module()
    for name, value in parameters.items():
        module.register_parameter(name, nn.Parameter(value))
    module.forward = lambda x, y: (module.weight * x).sum() + (module.bias * y).sum()
    x, y = torch.zeros(5, 4), torch.zeros(4)
    model = export_training_step(module, lambda loss: loss, [x, y], optimizer=optimizer)
    torch_optimizer = reference(list(module.parameters()))
    running = session(model)
    scalars = {"lr": np.float32(0.05), "loss_scale": np.float32(1024), "step": np.int64(0)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    for step in range(10):
        x, y = torch.randn(5, 4), torch.randn(4)
        module.weight.grad, module.bias.grad = x, y  # the gradients of this module are its inputs
        torch_optimizer.step()
        names = [value.name for value in model.graph.output]
        inputs = dict(zip([n for n in feeds if n.startswith("input.")], (x.numpy(), y.numpy()), strict=True))
        out = dict(zip(names, running.run(names, feeds | inputs), strict=True))
        assert out["grads_finite"]
        for name in parameters:
            assert deviation(out[f"new.{name}"], getattr(module, name).detach().numpy()) < 1e-6, step
        feeds = advanced(feeds, out)


def advanced(feeds: Arrays, out: Arrays) -> Arrays:
    """Feed the new state back."""
    renamed = {"param.": "new.", "buf.": "buf_out.", "opt.": "new_"}
    pairs = {
        name: new + name.removeprefix(old)
        for name in feeds
        for old, new in renamed.items()
        if name.startswith(old)
    } | {"step": "step_out"}
    return feeds | {name: out[new] for name, new in pairs.items() if new in out and name in feeds}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_network_trains_like_torch_over_ten_steps(optimizer: str) -> None:
    module = small_net()
    x, y = torch.randn(16, 2, 8, 8), torch.randint(0, 3, (16,))
    model = export_training_step(module, F.cross_entropy, x, y, optimizer=optimizer)
    running, names = session(model), [value.name for value in model.graph.output]
    scalars = {"lr": np.float32(0.003), "loss_scale": np.float32(4096), "step": np.int64(0)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    reference = OPTIMIZERS[optimizer][1](module.parameters())
    reference.param_groups[0]["lr"] = 0.003
    losses = []
    for _ in range(10):
        out = dict(zip(names, running.run(names, feeds), strict=True))
        feeds = advanced(feeds, out)
        reference.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        reference.step()
        losses.append(abs(float(out["loss"]) - loss.item()) / loss.item())
    assert max(losses) < 1e-4
    for name, buffer in module.named_buffers():
        assert deviation(out[f"buf_out.{name}"], buffer.numpy()) < 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_an_overflow_leaves_everything_as_it_was(optimizer: str, scale: float) -> None:
    module = small_net()
    x, y = torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,))
    model = export_training_step(module, F.cross_entropy, x, y, optimizer=optimizer)
    scalars = {"lr": np.float32(0.1), "loss_scale": np.float32(scale), "step": np.int64(7)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    for name in feeds:
        if name.startswith("opt."):
            feeds[name] = np.full_like(feeds[name], 0.25)
    out = run(model, feeds)
    assert not out["grads_finite"]
    assert np.isfinite(out["loss"])
    after = advanced(feeds, out)
    assert all(np.array_equal(after[name], feeds[name], equal_nan=True) for name in feeds)
    assert len(out) > len(list(module.parameters())) + 2  # parameters and buffers are outputs at all


def test_gradients_come_out_unscaled() -> None:
    module, x, y = nn.Linear(6, 5), torch.randn(8, 6), torch.randint(0, 5, (8,))
    model = export_training_step(module, F.cross_entropy, x, y)
    out = run(model, feeds_of(model, module, [x, y], loss_scale=np.float32(2**16)))
    F.cross_entropy(module(x), y).backward()
    assert deviation(out["grad.weight"], module.weight.grad.numpy()) < TOLERANCE
    assert out["grads_finite"]


def test_adam_survives_a_unit_without_gradient() -> None:
    # Silently wrong elsewhere: an epsilon of 1e-8 taken for zero, hence 0 / 0.
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    torch.nn.init.constant_(module[0].bias, -100.0)
    x = torch.randn(5, 3)
    model = export_training_step(module, lambda y: y.sum(), x, optimizer="adam", loss_scale=False)
    out = run(model, feeds_of(model, module, [x], lr=np.float32(0.1), step=np.int64(0)))
    assert all(np.isfinite(value).all() for value in out.values())
    assert np.array_equal(out["new.0.weight"], module[0].weight.detach().numpy())


@pytest.mark.parametrize("opset", [20, 21])
def test_the_file_is_standard_static_and_anonymous(opset: int, tmp_path: Any) -> None:
    module = small_net()
    x, y = torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,))
    path = tmp_path / "step.onnx"
    model = export_training_step(module, F.cross_entropy, x, y, optimizer="adam", opset=opset, path=path)
    assert onnx.load(path) == model
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert not model.functions
    view = import_model(model).view
    assert all(info.shape is not None for info in view.tensors.values())
    content = path.read_bytes()
    for trace in (b".py", b"site-packages", b"/home", str(tmp_path).encode(), b"stack"):
        assert trace not in content


def test_nodes_are_named_after_modules() -> None:
    module = nn.ModuleDict({"encoder": nn.ModuleDict({"query": nn.Linear(4, 4)})})
    module.forward = lambda x: module["encoder"]["query"](x)
    model = export_training_step(module, weighted_sum, torch.ones(2, 4), optimizer="momentum")
    names = {node.name: node.op_type for node in model.graph.node}
    assert names["encoder.query/Gemm"] == "Gemm"
    assert any(name.startswith("encoder.query/grad/") and op == "Gemm" for name, op in names.items())
    assert any(name.startswith("encoder.query.weight/update/") for name in names)
    assert any(name.startswith("loss/") for name in names)
    assert len(names) == len(model.graph.node)


def test_inputs_are_named_after_arguments_and_may_go_by_keyword() -> None:
    inputs = {"types": torch.zeros(2, 4, dtype=torch.int64), "words": torch.zeros(2, 4, dtype=torch.int64)}
    model = export_training_step(Lookup(), weighted_sum, inputs)
    assert [v.name for v in model.graph.input if v.name.startswith("input.")] == [
        "input.types",
        "input.words",
    ]


def test_the_finite_check_takes_one_node_per_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(3, 2, 1))
    model = export_training_step(module, weighted_sum, torch.ones(2, 3, 4))
    check = [node.op_type for node in model.graph.node if node.name.startswith("loss_scale/")]
    assert sorted(check) == sorted([*["Mul", "ReduceL1"] * 4, "Reciprocal", "Sum", "Sub", "Equal"])


def test_exporting_changes_nothing() -> None:
    module = small_net()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    export_training_step(module, F.cross_entropy, torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,)))
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())


def test_a_module_without_data_can_be_exported() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(50_000, 20_000), nn.ReLU(), nn.Linear(20_000, 10))
    model = export_training_step(
        module, F.cross_entropy, torch.zeros(2, 50_000), torch.zeros(2, dtype=torch.long)
    )
    assert model.ByteSize() < 20_000


def test_frozen_and_unused_parameters_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    module.unused = nn.Parameter(torch.ones(3))
    module.forward = lambda x: module[1](module[0](x))
    model = export_training_step(module, weighted_sum, torch.ones(3, 4), optimizer="sgd")
    outputs = {value.name for value in model.graph.output}
    assert {"new.0.bias", "new.1.weight", "new.1.bias"} <= outputs
    assert not {"new.0.weight", "new.unused"} & outputs
    assert "param.unused" not in {value.name for value in model.graph.input}


def test_tied_weights_get_one_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    assert worst_deviation(module, weighted_sum, [torch.randn(3, 4)], []) < TOLERANCE


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize(
    ("module", "loss", "options", "error", "message"),
    [
        (Decides(), weighted_sum, {}, UnsupportedModelError, "looks at the data"),
        (nn.Linear(2, 2), lambda y: y, {}, UsageError, r"no scalar but a tensor of shape \(3, 2\)"),
        (nn.Linear(2, 2), lambda y: 1.0, {}, UsageError, "no scalar but float"),
        (nn.Linear(2, 2), lambda y: y.detach().sum(), {}, UsageError, "does not depend"),
        (Function(torch.linalg.det, 2, 2), lambda y: y.sum(), {}, UnsupportedModelError, "_linalg_det"),
        (Function(torch.nonzero, 2, 2), lambda y: y.sum(), {}, UnsupportedModelError, "nonzero"),
        (nn.Linear(2, 2).half(), weighted_sum, {}, UnsupportedModelError, "'weight' is torch.float16"),
        (nn.Linear(2, 2), weighted_sum, {"optimizer": "lion"}, UsageError, "adamw"),
        (nn.Linear(2, 2), weighted_sum, {"opset": 17}, UsageError, "opset 17"),
        (nn.Linear(2, 2), weighted_sum, {"conv_weight_gradient": "x"}, UsageError, "'conv'"),
    ],
    ids=["control_flow", "vector", "number", "detached", "unknown_op", "nonzero", "half", "name", "opset",
        "form"],
)  # fmt: skip
def test_refusals_name_what_is_wrong(
    module: Any, loss: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export_training_step(
            module, loss, torch.ones(3, 2) if "Linear" in repr(module) else torch.ones(2, 2), **options
        )


def test_constants_and_positional_arguments() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.factors = nn.Linear(4, 4), torch.arange(1.0, 5)

        def forward(self, *tensors: Any) -> Any:
            return {"out": self.layer(tensors[0]) * self.factors + tensors[1]}

    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    assert worst_deviation(Scales(), lambda y: (y["out"] ** 2).mean(), inputs, []) < TOLERANCE


def test_recomputation_reads_the_inputs_and_adds_no_nodes() -> None:
    # Silently wrong elsewhere: what is run again in the backward pass finds the module's own weights,
    # which become constants.
    class Checkpointed(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.layer, self.function = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), function

        def forward(self, x: Any) -> Any:
            return self.function(self.layer, x)

    def checkpointed(layer: Any, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    counts = [
        len(export_training_step(Checkpointed(function), weighted_sum, torch.ones(3, 4)).graph.node)
        for function in (checkpointed, lambda layer, x: layer(x))
    ]
    assert counts[0] == counts[1]


def test_weights_hidden_from_the_module_are_refused() -> None:
    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shown, self.hidden = nn.Linear(4, 4), [nn.Linear(4, 3)]

        def forward(self, x: Any) -> Any:
            return self.hidden[0](self.shown(x))

    with pytest.raises(UnsupportedModelError, match="ModuleList"):
        export_training_step(Hides(), weighted_sum, torch.ones(3, 4))


def test_recomputed_dropout_is_refused() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

        def forward(self, x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(
                self.layer, x, use_reentrant=False, preserve_rng_state=False
            )

    with pytest.raises(UnsupportedModelError, match="checkpointing"):
        export_training_step(Checkpointed(), weighted_sum, torch.ones(3, 4))
