"""The zoo's shallow variants against torch eager: loss, every gradient, every new parameter and buffer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray

from campo_onnx.export.torch import Adam, AdamW, Momentum, export_training_step

if TYPE_CHECKING:
    from benchmarks.zoo.export import Entry

THREADS = 2  # some kernels of ONNX Runtime are only wrong on several threads
LR = 0.05

# Adam divides by the root of the second moment: beside an epsilon of 1e-8, the noise of a gradient that is
# zero but for rounding becomes a step of full size, in torch as here, and says nothing about either.
_EPS = 0.1
OPTIMIZERS = {
    "momentum": (Momentum(), lambda ps: torch.optim.SGD(ps, LR, momentum=0.9)),
    "adam": (Adam(eps=_EPS), lambda ps: torch.optim.Adam(ps, LR, eps=_EPS)),
    "adamw": (AdamW(eps=_EPS), lambda ps: torch.optim.AdamW(ps, LR, eps=_EPS)),
}

Arrays = dict[str, NDArray[Any]]
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Largest deviations of the outputs of one step, and how many outputs there were.

    Parameters
    ----------
    worst
        By kind (``loss``, ``grad``, ``new``, ``buf_out``): the largest over its tensors of
        max |a - b| / max |b|. A tensor that is zero but for rounding is held against the largest of
        its kind, as the gradient of a key's bias, since softmax does not see what all scores share.
    tensors
        How many tensors were compared, by kind.
    """

    worst: Mapping[str, float]
    tensors: Mapping[str, int]


def compare(entry: "Entry", *, optimizer: str | None = None, weight_gradient: str = "matmul") -> Deviation:
    """Export the shallow variant of a model, run it once, and compare every output with torch eager.

    Parameters
    ----------
    entry
        The model.
    optimizer
        ``momentum``, ``adam`` or ``adamw``: compares new parameters; None: gradients.
    weight_gradient
        Form of the weight gradient of convolutions.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, inputs, targets = entry.shallow()
    written, eager = OPTIMIZERS[optimizer] if optimizer else (None, None)
    model = export_training_step(
        module, entry.loss, inputs, targets,
        optimizer=written, loss_scale=False, conv_weight_gradient=weight_gradient,
    )  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    actual, masks = _run(model, module, [*inputs, *targets])
    with _Replay(masks):
        loss = entry.loss(module(*inputs), *targets)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if eager is not None:
        stepping = eager(list(trained.values()))
        loss.backward()
        stepping.step()
        expected = {f"new.{name}": p for name, p in trained.items()}
    else:
        loss.backward()
        expected = {f"grad.{name}": p.grad for name, p in trained.items()}
    expected |= {"loss": loss}
    expected |= {f"buf_out.{n}": b for n, b in module.named_buffers() if f"buf_out.{n}" in actual}
    return _deviation(
        {n: a for n, a in actual.items() if not n.startswith("new_") and n != "step_out"},
        {name: tensor.detach().numpy() for name, tensor in expected.items()},
    )


def _deviation(actual: Arrays, expected: Arrays) -> Deviation:
    if actual.keys() != expected.keys():
        raise AssertionError(f"only one has {sorted(actual.keys() ^ expected.keys())}")
    kinds: dict[str, list[str]] = {}
    for name in expected:
        kinds.setdefault(name.partition(".")[0], []).append(name)
    worst = {}
    for kind, names in kinds.items():
        largest = max(float(np.abs(expected[n]).max()) for n in names)
        worst[kind] = max(_relative(actual[n], expected[n], largest) for n in names)
    return Deviation(worst=worst, tensors={kind: len(names) for kind, names in kinds.items()})


def _relative(actual: NDArray[Any], expected: NDArray[Any], largest: float) -> float:
    if actual.shape != expected.shape or not np.isfinite(expected).all():
        raise AssertionError(f"{actual.shape} and {expected.shape}, or values that are not finite")
    own = float(np.abs(expected).max(initial=0))
    scale = own if own > 1e-5 * largest else largest
    return float(np.abs(actual - expected).max(initial=0)) / (scale or 1.0)


def _run(model: onnx.ModelProto, module: torch.nn.Module, batch: Tensors) -> tuple[Arrays, list[Any]]:
    """Run one step; gives its outputs, and dropout's masks in the order of the graph."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    masks = []
    for node in shown.graph.node:
        if node.op_type == "Dropout":
            masks.append(f"{node.output[0]}.mask" if len(node.output) == 1 else node.output[1])
            node.output[1:] = masks[-1:]
            shown.graph.output.append(onnx.helper.make_empty_tensor_value_info(masks[-1]))
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    session = ort.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run(names, dict(_feeds(model, module, batch))), strict=True))
    return {n: v for n, v in values.items() if n not in masks}, [values[name] for name in masks]


def _feeds(
    model: onnx.ModelProto, module: torch.nn.Module, batch: Tensors
) -> Iterator[tuple[str, NDArray[Any]]]:
    state = {f"param.{n}": p for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b for n, b in module.named_buffers()}
    rest = iter(batch)
    for value in model.graph.input:
        kind = value.name.partition(".")[0]
        if value.name in state:
            yield value.name, state[value.name].detach().numpy().copy()
        elif kind in ("input", "target"):
            yield value.name, next(rest).numpy()
        elif kind == "opt":
            yield value.name, np.zeros([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        else:
            yield value.name, {"lr": np.asarray(LR, np.float32), "step": np.asarray(0)}[value.name]


class _Replay(torch.overrides.TorchFunctionMode):
    """Lets eager drop what the graph dropped."""

    def __init__(self, masks: Sequence[NDArray[Any]]) -> None:
        super().__init__()
        self._masks = iter(masks)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.dropout:
            return func(*args, **kwargs)
        share = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return args[0] * torch.from_numpy(next(self._masks)) / (1 - share) if share else args[0]
