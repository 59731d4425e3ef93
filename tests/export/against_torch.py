"""Holding an exported step against torch eager on two threads of ONNX Runtime."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from lowered_forms import lowered_forms
from torch import nn

from campo_onnx.export.torch import export_training_step

TOLERANCE = 1e-5

Arrays = dict[str, NDArray[Any]]


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
    """Export, run as exported and as lowered, and compare everything with eager."""
    model = export_training_step(module, loss, inputs, targets, loss_scale=False, **options)
    forms = [model, *lowered_forms(model)]
    for form in forms:
        onnx.checker.check_model(form, full_check=True)
    actual, *others = (run(with_masks(form), feeds_of(form, module, [*inputs, *targets])) for form in forms)
    module.zero_grad()
    with replayed(actual, model):
        value = loss(module(*inputs), *targets)
    value.backward()
    expected = {"loss": value}
    expected |= {f"grad.{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    expected |= {f"buf_out.{n}": b for n, b in module.named_buffers() if f"buf_out.{n}" in actual}
    assert {v.name for v in model.graph.output} == set(expected)
    return max(
        worst({n: (results[n], t.detach().numpy()) for n, t in expected.items()})
        for results in (actual, *others)
    )


def masks_of(model: onnx.ModelProto) -> list[str]:
    return [node.output[1] if len(node.output) > 1 else f"{node.output[0]}.mask" for node in dropouts(model)]


def dropouts(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in ("Dropout", "BiasDropout")]


def with_masks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give dropout's masks out as well, so that eager can use the same."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    for node, mask in zip(dropouts(shown), masks_of(model), strict=True):
        node.output[1:] = [mask]
        shown.graph.output.append(onnx.helper.make_tensor_value_info(mask, onnx.TensorProto.BOOL, None))
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


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(2, 16)

    def forward(self, words: Any, types: Any) -> Any:
        return (self.words(words) + self.types(types)).tanh()
