"""From a training step to a flat graph of ATen operations without mutation.

Everything runs on fake tensors: types and shapes, no data, so that the size of the model is no
matter.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointError

from campo_onnx.errors import CampoError, UnsupportedModelError, is_foreign, message_of
from campo_onnx.export.torch.complex_numbers import complex_refused, without_complex
from campo_onnx.export.torch.decompositions import OPERATIONS
from campo_onnx.export.torch.function_overrides import DATA_DEPENDENT
from campo_onnx.export.torch.module_guard import Dice, Snapshot
from campo_onnx.export.torch.origin import current_origin, place_of_change, place_of_error, place_of_frame
from campo_onnx.export.torch.repeated import Recorded, difference, refuse_another_run, refuse_constant_state
from campo_onnx.export.torch.scalars import as_rows
from campo_onnx.export.torch.step import Step

aten = torch.ops.aten

_UNTRACEABLE = (UnsupportedFakeTensorException, UnsupportedOperatorException)

_DECIDING = "Export with assume='batch' if all batches give the same, else choose with torch.where."
_BEFORE = "assume='batch' has no answer for it: do that before the step, and give the result as an input."
_SELECTING = (
    "Export with assume='batch' if all batches select as many elements; else keep all of them: leave labels "
    "out by ignore_index, or multiply what each adds to the loss by the mask and divide by mask.sum()."
)


def trace(
    step: Step, translated: frozenset[Any], *, is_first: bool = True
) -> tuple[torch.fx.GraphModule, list[str], list[str]]:
    """Trace one step; the module is afterwards as it was.

    `is_first` says whether the step may be another one the next time; False where that was looked at before,
    with tensors of other sizes. The graph has one placeholder per input; the names of inputs and outputs come
    with it. UnsupportedModelError says that the step fails, looks at the data to decide what to do, throws
    dice of its own, or would be another one the next time.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    examples = step.state() | step.inputs.tensors | step.targets.tensors
    for name, tensor in examples.items():
        if tensor.is_complex():
            raise complex_refused(name)
    fakes = {name: _fake(tensor, mode) for name, tensor in examples.items()}
    outputs: list[str] = []
    runs: list[Recorded] = []

    def flat_step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with Recorded(tensors) as recorded:
            results = step.run(dict(zip(fakes, tensors, strict=True)))
        runs.append(recorded)
        outputs[:] = results
        return list(results.values())

    def run_on() -> Recorded:
        with fx_traceback.preserve_node_meta(), mode:
            flat_step(*fakes.values())
        return runs[-1]

    def run_again() -> Recorded:
        guard.restore()
        dice.restore()
        return run_on()

    def traced_once() -> torch.fx.GraphModule:
        with fx_traceback.preserve_node_meta(), mode, _one_message(is_assumed=step.recorded is not None):
            traced: torch.fx.GraphModule = make_fx(flat_step)(*fakes.values())
        for node in traced.graph.nodes:
            if node.target is aten._local_scalar_dense.default and not node.users:
                traced.graph.erase_node(node)  # a truth value that was known all the same
        traced.recompile()
        return traced

    with _plainly(), _one_message(is_assumed=step.recorded is not None):
        guard, dice = Snapshot(step.module), Dice(step.module, step.loss)
        try:
            thrown = dice.thrown()
            traced = traced_once()
            refuse_constant_state(traced, fakes, step.module)
            if dice.thrown() != thrown:
                _refuse_dice(traced_once, dice)
            if changes := guard.changes():
                _refuse_another_step(runs[0], run_on, changes)
            if is_first:
                refuse_another_run(runs[0], run_again)
        finally:
            guard.restore()
            dice.restore()
        flat = _flattened(traced, fakes, mode, translated)
    return flat, list(fakes), outputs


@contextmanager
def _plainly() -> Iterator[None]:
    """Let everything run in FP32, in parts, and without messages of torch's own."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = log.disabled
    devices = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    try:
        log.disabled = True
        for device in devices:
            torch.set_autocast_enabled(device, False)
        # oneDNN's recurrent layers are single operations without parts; off, they are unrolled.
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), _unseeded(), _unmoved():
            yield
    finally:
        for device, enabled in devices.items():
            torch.set_autocast_enabled(device, enabled)
        log.disabled = was_disabled


@contextmanager
def _unmoved() -> Iterator[None]:
    """Let ``module.to(...)`` within forward do nothing where the type is the module's own.

    It would put parameters in the place of the tensors that are traced. Routers of mixtures of experts do it.
    """
    move = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        dtype = torch._C._nn._parse_to(*args, **kwargs)[1]
        tensors = (t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point())
        return (
            module
            if dtype is None or all(t.dtype == dtype for t in tensors)
            else move(module, *args, **kwargs)
        )

    torch.nn.Module.to = to
    try:
        yield
    finally:
        torch.nn.Module.to = move


@contextmanager
def _unseeded() -> Iterator[None]:
    """Refuse seeds that forward sets: a graph draws other numbers in each step."""

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedModelError(
            f"{place_of_frame(sys._getframe(1))} seeds torch's random numbers",
            why="they would be the same in each step, and a graph draws others",
            remedy="Seed before the step; or draw before it, and give what is drawn as an input.",
        )

    before = torch.manual_seed, torch.random.manual_seed
    torch.manual_seed = torch.random.manual_seed = refuse
    try:
        yield
    finally:
        torch.manual_seed, torch.random.manual_seed = before


@contextmanager
def _one_message(*, is_assumed: bool) -> Iterator[None]:
    """Turn whatever goes wrong while a step is traced into one message that says where.

    `is_assumed` says whether numbers that the step reads from its batch are taken to be those of the example.
    """
    try:
        yield
    except CampoError:
        raise
    except DATA_DEPENDENT as error:
        raise UnsupportedModelError(
            f"{_where(error)} looks at the data to decide what to do",
            why=f"{_operation(error)} needs the values of a tensor, and a graph is written without data",
            remedy=_BEFORE
            if is_assumed
            else _SELECTING
            if isinstance(error, DynamicOutputShapeException)
            else _DECIDING,
        ) from None
    except CheckpointError:
        raise UnsupportedModelError(
            "activation checkpointing cannot be traced here",
            why="its second forward pass differs from the first (dropout draws anew)",
            remedy="Turn checkpointing off, or set the dropout in it to 0.",
        ) from None
    except _UNTRACEABLE as error:
        raise UnsupportedModelError(f"{_operation(error)} at {_where(error)} cannot be traced") from None
    except Exception as error:
        if is_foreign(error):
            raise
        said = message_of(error).partition("\n")[0]
        raise UnsupportedModelError(
            f"the step fails at {_where(error)}",
            why=f"{type(error).__name__}: {said}" if said else type(error).__name__,
            remedy="If loss(module(*inputs), *targets) runs on such tensors, please report this.",
        ) from error


def _where(error: Exception) -> str:
    origin = current_origin()
    place = place_of_error(error) or origin.place
    module = f"module {origin.scope!r}" if origin.scope else "the outermost module"
    return f"{place} (in {module})" if place else module


def _refuse_dice(trace_again: Callable[[], Any], dice: Dice) -> None:
    place = place_of_change(trace_again, dice.thrown)
    if place:
        raise UnsupportedModelError(
            f"{place} draws a random number in Python",
            why="the graph would keep the outcome of one draw forever",
            remedy="Draw it with torch.rand, and choose with torch.where.",
        )


def _refuse_another_step(first: Recorded, run_again: Callable[[], Recorded], changes: list[str]) -> None:
    """Refuse a step that leaves something behind on which the next one depends."""
    try:
        is_another = difference(first, run_again()) is not None
    except Exception as error:  # a forward that fails the second time is another one
        if is_foreign(error):
            raise
        is_another = True
    if is_another:
        raise UnsupportedModelError(
            f"forward changes {', '.join(changes[:3])}, so the next step would be a different one",
            why="only parameters and buffers keep their values from step to step in a graph",
            remedy="Register tensors that change with register_buffer, and take counting out of forward.",
        )


def _operation(error: Exception) -> str:
    return str(getattr(error, "func", type(error).__name__))


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    # On the CPU whatever the device (also "meta"), since modules make their constants there.
    with mode:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _flattened(
    traced: torch.fx.GraphModule, fakes: Mapping[str, Any], mode: FakeTensorMode, translated: frozenset[Any]
) -> torch.fx.GraphModule:
    """Replace mutation by new values, and compound operations by those of the Core ATen set."""
    rules = {**core_aten_decompositions(), **OPERATIONS}
    table = as_rows({op: rule for op, rule in rules.items() if op not in translated})

    def replay(*tensors: torch.Tensor) -> Any:
        with mode:
            return _Replay(traced).run(*tensors)

    with fx_traceback.preserve_node_meta(), mode:
        flat = make_fx(functionalize(replay, remove="mutations"), decomposition_table=table)(*fakes.values())
    flat.graph.eliminate_dead_code()
    return without_complex(flat, table)


class _Replay(torch.fx.Interpreter):
    """Runs a traced graph again, with operations that state what they mutate."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is aten.native_batch_norm.default and args[3] is not None:
            # Its schema hides that it writes the running statistics, so they would stay as they were.
            target = aten._native_batch_norm_legit.default
        return super().call_function(target, args, kwargs)
