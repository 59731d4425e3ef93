"""From a training step to a flat graph of ATen operations without mutation.

Everything runs on fake tensors: types and shapes, no data, so that the size of the model is no
matter.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.checkpoint import CheckpointError

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.origin import current_origin
from campo_onnx.export.torch.step import Step, Tensors

aten = torch.ops.aten

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
_UNTRACEABLE = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def trace(step: Step, batch: Tensors, translated: frozenset[Any]) -> tuple[torch.fx.GraphModule, list[str]]:
    """Trace one step.

    Parameters
    ----------
    step
        What to trace.
    batch
        Example inputs and targets, by the name of the graph's input; only types and shapes count.
    translated
        Operations that must not be decomposed.

    Returns
    -------
    graph_module, outputs
        One placeholder per entry of ``step.state()`` and `batch`, in this order; the names of the
        outputs.

    Raises
    ------
    UnsupportedModelError
        If the step looks at the data to decide what to do.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = {name: _fake(tensor, mode) for name, tensor in (step.state() | batch).items()}
    outputs: list[str] = []

    def flat_step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        results = step.run(dict(zip(given, tensors, strict=True)))
        outputs[:] = results
        return list(results.values())

    try:
        # oneDNN's recurrent layers are single operations without parts; off, they are unrolled.
        plain = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
        with fx_traceback.preserve_node_meta(), mode, plain:
            traced = make_fx(flat_step)(*given.values())
    except _DATA_DEPENDENT as error:
        raise UnsupportedModelError(
            f"module {current_origin().scope or '(the outermost)'!r} looks at the data to decide what to do",
            why=f"{_operation(error)} needs the values of a tensor, and a graph is written without data",
            remedy="Compute both branches and choose with torch.where, or take the decision out of forward.",
        ) from None
    except CheckpointError:
        raise UnsupportedModelError(
            "activation checkpointing cannot be traced here",
            why="its second forward pass differs from the first (dropout draws anew)",
            remedy="Turn checkpointing off, or set the dropout in it to 0.",
        ) from None
    except _UNTRACEABLE as error:
        raise UnsupportedModelError(
            f"{_operation(error)} in module {current_origin().scope!r} cannot be traced"
        ) from None
    _refuse_baked_state(traced, step.module)
    return _flattened(traced, given, mode, translated), outputs


def _refuse_baked_state(traced: torch.fx.GraphModule, module: torch.nn.Module) -> None:
    """Refuse a step that reads a weight as a constant, which training would never change."""
    buffers = {id(buffer): name for name, buffer in module.named_buffers()}
    for node in traced.graph.nodes:
        if node.op != "get_attr":
            continue
        tensor = getattr(traced, node.target)
        if isinstance(tensor, torch.nn.Parameter) or id(tensor) in buffers:
            raise UnsupportedModelError(
                f"a parameter or buffer of shape {tuple(tensor.shape)} is read that is not the module's",
                why="it would become a constant in the graph, which training never changes",
                remedy="Register it: modules in a list belong into nn.ModuleList, parameters likewise.",
            )


def _operation(error: Exception) -> str:
    return str(getattr(error, "func", type(error).__name__))


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    # On the CPU whatever the device (also "meta"), since modules make their constants there.
    with mode:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _flattened(
    traced: torch.fx.GraphModule, given: Mapping[str, Any], mode: FakeTensorMode, translated: frozenset[Any]
) -> torch.fx.GraphModule:
    """Replace mutation by new values, and compound operations by those of the Core ATen set."""
    table = {op: rule for op, rule in core_aten_decompositions().items() if op not in translated}

    def replay(*tensors: torch.Tensor) -> Any:
        with mode:
            return _Replay(traced).run(*tensors)

    with fx_traceback.preserve_node_meta(), mode:
        flat = make_fx(functionalize(replay, remove="mutations"), decomposition_table=table)(*given.values())
    flat.graph.eliminate_dead_code()
    return flat


class _Replay(torch.fx.Interpreter):
    """Runs a traced graph again, with operations that state what they mutate."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is aten.native_batch_norm.default and args[3] is not None:
            # Its schema hides that it writes the running statistics, so they would stay as they were.
            target = aten._native_batch_norm_legit.default
        return super().call_function(target, args, kwargs)
