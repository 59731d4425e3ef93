"""Exported steps held against torch in double: loss, every gradient, every buffer."""

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from campo_onnx.errors import CampoError, UnsupportedModelError
from campo_onnx.export.optimizers import SGD
from campo_onnx.export.torch import export_training_step
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import FORMS, lowered
from campo_onnx.targets.target import target
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate
from tests.random_networks.network import Network

TOLERANCE = 1e-5
"""Of the largest element; where roundings of operations move results further, :data:`SLACK` times that."""

SLACK = 5
_ROUNDING = 2.0**-23
_NO_GRADIENT = 1e-2  # where all are far smaller, they cancel out

Arrays = dict[str, NDArray[Any]]


class WrongError(Exception):
    """A step that is not what torch computes."""


class NotDrawnError(Exception):
    """A network that torch itself cannot train."""


TARGETS = {"portable": None, "cpu": "cpu", "cuda": "v100"}
"""Devices that steps are lowered for, by the name of the outcome."""


def outcomes(network: Network) -> dict[str, str]:
    """Export a step for each target and run it, with ONNX Runtime's optimizer and without.

    Returns
    -------
    dict
        By target: "ok", "refused: ..." or "no kernel: ...".

    Raises
    ------
    WrongError
        If anything differs.
    NotDrawnError
        If torch cannot train the network.
    """
    inputs, goals = network.batch()
    _trained(network, torch.float32, inputs, goals, {})  # raises NotDrawnError before anything is exported
    return {target: _outcome(network, target, inputs, goals) for target in TARGETS}


def _outcome(network: Network, target: str, inputs: list[Any], goals: list[Any]) -> str:
    torch.manual_seed(network.seed)
    examples, example_goals = network.batch()
    before = copy.deepcopy(network.module.state_dict())
    try:
        model = export_training_step(
            network.module, network.loss, examples, example_goals, loss_scale=False,
            target=TARGETS[target],
        )  # fmt: skip
    except CampoError as error:
        return f"refused: {error}"
    for name, value in network.module.state_dict().items():
        if not torch.equal(value, before[name]):
            raise WrongError(f"{target}: exporting changed {name}")
    onnx.checker.check_model(model, full_check=True)
    shown, masks = _with_masks(model)
    feeds = _feeds(model, network.module, [*inputs, *goals])
    for level, run in RUNS.items():
        onnxruntime.set_seed(network.seed)
        try:
            actual = run(shown, feeds)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            return f"no kernel: {error}"
        except UnsupportedModelError as error:
            if target == "cuda":
                return f"no kernel: {error}"
            raise
        kept = {int(i): actual.pop(mask) for i, mask in enumerate(masks)}
        # CUDA adds long sums as trees; the CPU provider, which stands in for it here, does not.
        tolerance = 4 * TOLERANCE if target == "cuda" else TOLERANCE
        if (differs := _difference(network, actual, inputs, goals, kept, tolerance)) is not None:
            raise WrongError(f"{target}/{level}: {differs}")
    return "ok"


def _in_onnxruntime(level: Any, model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _in_session(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Take a step of length 0 that leaves gradients where a session keeps them."""
    state = {name: value for name, value in feeds.items() if name.startswith(("param.", "buf."))}
    update = WeightUpdate(optimizer=SGD())
    options = {"provider": "cpu", "runtime": "onnxruntime", "threads": 2}
    session = TrainingSession(model, state, update=update, settings={"lr": 0.0}, **options)
    result = session.step({name: value for name, value in feeds.items() if name not in state})
    after = session.state()
    if any(not np.array_equal(after[n], value) for n, value in state.items() if n.startswith("param.")):
        raise WrongError("a step of length 0 changed weights")
    values = {n: np.array(value) for n, value in session.shared().items() if n.startswith("grad.")}
    values |= {
        f"buf_out.{n.removeprefix('buf.')}": value for n, value in after.items() if n.startswith("buf.")
    }
    return values | dict(result.metrics)


def _as_on_gpu(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Run the forms that are chosen for a GPU, which have kernels on a CPU as well."""
    form = lowered(import_model(model, any_type=True), Place(target=target("v100")), FORMS)
    return _in_onnxruntime(_LEVEL.ORT_DISABLE_ALL, form.model, feeds)


_LEVEL = onnxruntime.GraphOptimizationLevel
RUNS: Mapping[str, Callable[[onnx.ModelProto, Arrays], Arrays]] = {
    "off": partial(_in_onnxruntime, _LEVEL.ORT_DISABLE_ALL),
    "all": partial(_in_onnxruntime, _LEVEL.ORT_ENABLE_ALL),
    "session": _in_session,
    "as on a gpu": _as_on_gpu,
}


def _feeds(model: onnx.ModelProto, module: torch.nn.Module, batch: list[Any]) -> Arrays:
    names = [value.name for value in model.graph.input]
    tensors = {f"param.{n}": p for n, p in module.named_parameters()}
    tensors |= {f"buf.{n}": b for n, b in module.named_buffers()}
    tensors |= dict(zip([n for n in names if n.startswith(("input.", "target."))], batch, strict=True))
    return {name: tensors[name].detach().numpy().copy() for name in names}


def _with_masks(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Give dropout's masks out as well, so that torch can use the same."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    infos = {
        value.name: value.type.tensor_type.shape for value in (*model.graph.value_info, *model.graph.output)
    }
    masks = []
    for node in shown.graph.node:
        if node.op_type in ("Dropout", "BiasDropout"):
            if len(node.output) < 2:
                node.output.append(f"{node.output[0]}.mask")
            masks.append(node.output[1])
            shape = [dim.dim_value for dim in infos[node.output[0]].dim]
            mask = onnx.helper.make_tensor_value_info(node.output[1], onnx.TensorProto.BOOL, shape)
            shown.graph.output.append(mask)
    return shown, masks


class _Replay(torch.overrides.TorchFunctionMode):
    """Dropout with the masks that were drawn elsewhere, in the order of the calls."""

    def __init__(self, masks: dict[int, NDArray[Any]]) -> None:
        super().__init__()
        self.masks, self.count = masks, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.dropout:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | (kwargs or {})
        p, x = named.get("p", 0.5), named["input"]
        if p == 0 or not named.get("training", True):
            return x
        mask = self.masks.get(self.count)
        self.count += 1
        if mask is None:  # nothing ran yet: all is kept
            return x / (1 - p)
        return x * torch.from_numpy(mask).reshape(x.shape) / (1 - p)


_SUMS = frozenset(
    {
        torch.ops.aten.sum.default,
        torch.ops.aten.sum.dim_IntList,
        torch.ops.aten.mean.default,
        torch.ops.aten.mean.dim,
    }
)


class _Rounding(TorchDispatchMode):
    """Moves each number that an operation computes by as much as FP32 might round it, at random."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SUMS and result.is_floating_point():  # what cancels out was rounded while it was large
            terms = func(args[0].abs(), *args[1:], **(kwargs or {}))
            return result + terms * _ROUNDING * (2 * torch.rand_like(result) - 1)
        if any(each.alias_info is not None for each in func._schema.returns):
            return result
        return tree_map_only(torch.Tensor, self._moved, result)

    def _moved(self, x: Any) -> Any:
        return x * (1 + _ROUNDING * (2 * torch.rand_like(x) - 1)) if x.is_floating_point() else x


def _trained(
    network: Network, dtype: torch.dtype, inputs: list[Any], goals: list[Any], masks: dict[int, NDArray[Any]],
    *, rounds: bool = False,
) -> Arrays:  # fmt: skip
    """Train one step in torch."""
    module = copy.deepcopy(network.module).to(dtype)
    args, others = (
        [t.to(dtype) if t.is_floating_point() else t for t in tensors] for tensors in (inputs, goals)
    )
    before = {n: b.clone() for n, b in module.named_buffers()}
    try:
        with _Replay(masks), _Rounding() if rounds else nullcontext():
            value = network.loss(module(*args), *others)
            value.backward()
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        raise NotDrawnError(str(error)) from None
    outputs = {"loss": value}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            outputs[f"grad.{name}"] = parameter.grad.to_dense()
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            outputs[f"buf_out.{name}"] = buffer
    arrays = {n: t.detach().numpy() for n, t in outputs.items()}
    if not rounds and not all(np.isfinite(array).all() for array in arrays.values()):
        raise NotDrawnError("not finite")
    return arrays


def _difference(
    network: Network, actual: Arrays, inputs: list[Any], goals: list[Any], masks: dict[int, NDArray[Any]],
    tolerance: float,
) -> str | None:  # fmt: skip
    """Say what differs from double by more than rounding accounts for."""
    exact = _trained(network, torch.float64, inputs, goals, masks)
    if (error := _shapes(actual, exact)) is not None:
        return error
    largest = max(
        [_NO_GRADIENT, *(np.abs(a).max(initial=0) for n, a in exact.items() if n.startswith("grad."))]
    )

    def distance(name: str, array: NDArray[Any]) -> float:
        expected = exact[name]
        scale = np.abs(expected).max(initial=0)
        if name.startswith("grad.") and scale < TOLERANCE * largest:
            scale = largest  # nothing but rounding: what a softmax does not see, say
        return float(np.abs(array.astype(np.float64) - expected).max(initial=0) / (scale or 1.0))

    far = {n: d for n, array in actual.items() if n in exact and not (d := distance(n, array)) <= tolerance}
    if not far:
        return None
    others = [_trained(network, torch.float32, inputs, goals, masks)]
    others += [_trained(network, torch.float64, inputs, goals, masks, rounds=True) for _ in range(4)]
    for name, error_of in far.items():
        noise = max(distance(name, other.get(name, exact[name])) for other in others)
        if error_of > SLACK * noise or np.isnan(error_of):  # rounding may reach what is not a number
            return f"{name} is off by {error_of:.1e}, rounding by {noise:.1e}"
    return None


def _shapes(actual: Arrays, exact: Arrays) -> str | None:
    if missing := exact.keys() - actual.keys():
        return f"lacks {sorted(missing)}"
    for name, array in actual.items():
        if name in exact and array.shape != exact[name].shape:
            return f"{name} has shape {array.shape}, torch {exact[name].shape}"
        # A buffer may be written with what it was.
        if name not in exact and not name.startswith("buf_out.") and np.abs(array).max(initial=0) > 0:
            return f"{name} is not zero, and torch has no such gradient"
    return None
