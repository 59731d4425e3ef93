"""One training step as a function of flat tensors: what is traced."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten_with_path

from campo_onnx.builder.target import MOST_JOINED
from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import Optimizer, counts_updates
from campo_onnx.export.torch.arguments import Arguments, Tensors
from campo_onnx.export.torch.decisions import Numbers
from campo_onnx.export.torch.fp32_demands import Fp32Demands, autocast_around
from campo_onnx.export.torch.function_overrides import RewrittenFunctions
from campo_onnx.export.torch.module_guard import Snapshot
from campo_onnx.export.torch.origin import recorded_origins, set_origin
from campo_onnx.export.torch.update import Updates
from campo_onnx.export.translation import path_part
from campo_onnx.step import naming as step_naming


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training step to be traced.

    It runs ``loss(module(*inputs), *targets)``. `recorded` are numbers that the step read of its example,
    which every batch is assumed to give; None where nothing is assumed.
    """

    module: torch.nn.Module
    loss: Callable[..., torch.Tensor]
    optimizer: Optimizer | None  # the update to write, or None for gradients
    loss_scale: bool
    unscale: bool
    inputs: Arguments
    targets: Arguments
    checks_pass: bool = False  # whether a check of the data that only raises an error is taken to pass
    evaluates: bool = False  # whether the loss and what it gives besides is all that is wanted
    recorded: Mapping[str, Sequence[Any]] | None = None
    autocast: bool | None = field(default_factory=autocast_around)  # the state in which the user exports it

    def on_example(self) -> "Step":
        """Run the step on its example, for the numbers that it reads; the module stays as it is."""
        examples = self.state() | self.inputs.tensors | self.targets.tensors
        if absent := [name for name, tensor in examples.items() if tensor.is_meta]:
            raise UsageError(
                f"{absent[0]!r} has no values",
                why="assume='batch' runs the step once on the example",
                remedy="Give a batch and weights on the CPU.",
            )
        numbers = Numbers()
        guard = Snapshot(self.module)
        try:
            with torch.random.fork_rng():
                self._differentiated_once(examples, numbers)
        finally:
            guard.restore()
        return replace(self, recorded=numbers.read)

    def trainable(self) -> Tensors:
        """Parameters that require a gradient, by name."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def state(self) -> Tensors:
        """Everything a step reads besides the batch, by the name of the graph's input."""
        state = {step_naming.parameter(n): p for n, p in self.module.named_parameters()}
        state |= {step_naming.buffer(n): b for n, b in self.module.named_buffers()}
        if self.optimizer is not None:
            for slot in self.optimizer.slots:
                state |= {step_naming.state(slot, n): p for n, p in self.trainable().items()}
            state[step_naming.LEARNING_RATE] = torch.zeros(())
        if self.optimizer is not None and counts_updates(self.optimizer):
            state[step_naming.STEP] = torch.zeros((), dtype=torch.int64)
        if self.loss_scale:
            state[step_naming.LOSS_SCALE] = torch.zeros(())
        return state

    def run(self, feeds: Tensors) -> Tensors:
        """Run forward, backward and update."""
        numbers = None if self.recorded is None else Numbers(self.recorded)
        passes = self._differentiated_once(feeds, numbers)
        results = {step_naming.LOSS: passes.loss.detach()}
        if passes.finite is not None:
            results[step_naming.GRADS_FINITE] = passes.finite
        if self.optimizer is None:
            is_scaled = self.loss_scale and not self.unscale
            name_of = step_naming.scaled_gradient if is_scaled else step_naming.gradient
            results |= {name_of(n): gradient for n, gradient in passes.gradients.items()}
        else:
            results |= self._update(self.optimizer, feeds, passes.gradients, passes.finite)
        set_origin("buffers")
        for name, buffer in passes.buffers.items():
            old = feeds[step_naming.buffer(name)]
            results[step_naming.new_buffer(name)] = _chosen(passes.finite, buffer, old)
        results |= {step_naming.output(name): value for name, value in passes.outputs.items()}
        assumed = {} if numbers is None else numbers.holds
        return results | {step_naming.assumption(text): holds for text, holds in assumed.items()}

    def _differentiated_once(self, feeds: Tensors, numbers: Numbers | None) -> "_Passes":
        trainable = {n: feeds[step_naming.parameter(n)].detach().requires_grad_() for n in self.trainable()}
        # Normalizations update their statistics in place; the inputs must keep the old values.
        buffers = {n: feeds[step_naming.buffer(n)].clone() for n, _ in self.module.named_buffers()}
        return self._differentiate(feeds, trainable, buffers, numbers)

    def _differentiate(
        self, feeds: Tensors, trainable: Tensors, buffers: Tensors, numbers: Numbers | None
    ) -> "_Passes":
        hooks = {n: list((p._backward_hooks or {}).values()) for n, p in self.trainable().items()}

        def run() -> _Passes:
            args, kwargs = self.inputs.filled(_as_leaves(feeds, self.inputs.tensors))
            output = self.module(*args, **kwargs)
            set_origin(step_naming.LOSS)
            args, kwargs = self.targets.filled(feeds)
            loss, outputs = _loss_and_outputs(self.loss(output, *args, **kwargs))
            _check_loss(loss, is_trained=not self.evaluates)
            if self.evaluates:
                return _Passes(loss=loss, outputs=outputs, gradients={}, finite=None, buffers={})
            scaled = loss * feeds[step_naming.LOSS_SCALE] if self.loss_scale else loss
            claim(scaled, step_naming.LOSS)
            _refuse_out_of_sight(trainable, tensors, storages, functions)
            functions.masks.is_backward = True
            grads = _differentiated(scaled, list(trainable.values()))
            gradients = {n: g for n, g in zip(trainable, grads, strict=True) if g is not None}
            finite: torch.Tensor | None = None
            if self.loss_scale and self.unscale:
                set_origin(step_naming.LOSS_SCALE)
                inverse = feeds[step_naming.LOSS_SCALE].reciprocal()
                joins = self.optimizer is not None  # as side_by_side does with their updates
                gradients, finite = _unscaled(gradients, inverse, joins=joins)
            return _Passes(
                loss=loss,
                outputs=outputs,
                gradients={n: _hooked(n, gradient, hooks[n]) for n, gradient in gradients.items()},
                finite=finite,
                buffers=_checked_buffers(dict(self.module.named_buffers()), buffers),
            )

        tensors = {n: feeds[step_naming.parameter(n)] for n, _ in self.module.named_parameters()}
        tensors |= trainable | buffers
        storages = {n: _storage(t) for n, t in tensors.items()}
        demands = Fp32Demands(self.autocast)
        functions = RewrittenFunctions(demands, checks_pass=self.checks_pass)
        origins = recorded_origins(self.module, demands.covers)
        with demands, origins as claim, functions, sdpa_kernel(SDPBackend.MATH), numbers or nullcontext():
            passes: _Passes = _called_with(self.module, tensors, run)
        return passes

    def _update(
        self, optimizer: Optimizer, feeds: Tensors, gradients: Tensors, finite: torch.Tensor | None
    ) -> Tensors:
        results: Tensors = {}
        set_origin("optimizer")
        count = feeds[step_naming.STEP] + 1 if step_naming.STEP in feeds else None
        updates = Updates(optimizer, feeds[step_naming.LEARNING_RATE], count, finite)
        for name, gradient in gradients.items():
            set_origin(f"{name}/update")
            slots = {slot: feeds[step_naming.state(slot, name)] for slot in optimizer.slots}
            new, new_slots = updates(feeds[step_naming.parameter(name)], gradient, slots)
            results[step_naming.new_parameter(name)] = new
            results |= {step_naming.new_state(slot, name): value for slot, value in new_slots.items()}
        if count is not None:
            set_origin("optimizer")
            results[step_naming.STEP_OUT] = _chosen(finite, count, feeds[step_naming.STEP])
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Results of both passes: gradients, unscaled where the graph does that, and new buffers."""

    loss: torch.Tensor
    outputs: Tensors
    gradients: Tensors
    finite: torch.Tensor | None
    buffers: Tensors


def _as_leaves(fakes: Tensors, examples: Tensors) -> Tensors:
    """Give inputs that may be differentiated by, as the examples; what forward asks for itself is forgotten.

    A penalty on a gradient, or a differential equation, calls ``x.requires_grad_()`` in each step.
    """
    leaves = {name: fakes[name].detach().requires_grad_(x.requires_grad) for name, x in examples.items()}
    return {**fakes, **leaves}


def _differentiated(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Differentiate as ``torch.autograd.grad`` does.

    That, however, switches function modes off meanwhile, and dropout that checkpointing runs again in the
    backward pass would draw anew.
    """
    grads: Sequence[torch.Tensor | None] = _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, tuple(parameters), True, accumulate_grad=False
    )
    return grads


def _loss_and_outputs(returned: Any) -> tuple[Any, Tensors]:
    """Tell the loss from what else the step returns: a loss may return both."""
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        return returned, {}
    outputs = {
        ".".join(map(path_part, path)): leaf for path, leaf in tree_flatten_with_path(dict(returned[1]))[0]
    }
    for name, value in outputs.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"the output {name!r} beside the loss is not a tensor but {type(value).__name__}",
                remedy="Return (loss, {'name': tensor, ...}).",
            )
    return returned[0], {name: value.detach() for name, value in outputs.items()}


def _hooked(name: str, gradient: torch.Tensor, hooks: Sequence[Callable[..., Any]]) -> torch.Tensor:
    """Do what the hooks on a parameter do, which eager runs on the whole gradient before it is stored."""
    for hook in hooks:
        set_origin(f"{name}/hook", is_gradient=True)
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient


def _checked_buffers(after: Tensors, before: Tensors) -> Tensors:
    """Give the buffers as the step leaves them, whether it wrote into them or assigned others."""
    for name, buffer in after.items():
        old = before.get(name)
        if old is None or (old.shape, old.dtype) != (buffer.shape, buffer.dtype):
            was = "does not exist before" if old is None else f"was {old.dtype}{list(old.shape)} before"
            raise UnsupportedModelError(
                f"the buffer {name!r} is {buffer.dtype}{list(buffer.shape)} after a step, and {was}",
                why="the state of a graph has one type and shape",
                remedy="Register it with its final type and shape.",
            )
    return {name: after.get(name, old).detach() for name, old in before.items()}


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _refuse_out_of_sight(
    trainable: Tensors, tensors: Tensors, storages: Mapping[str, int], functions: RewrittenFunctions
) -> None:
    """Refuse what forward did that no operation tells of."""
    if functions.swallowed is not None:
        raise functions.swallowed
    for name, tensor in tensors.items():
        if _storage(tensor) != storages[name]:
            raise UnsupportedModelError(
                f"forward assigns the data of {name!r}",
                why="a graph would lose that",
                remedy=f"Change it in place, {name}.copy_(...), if it is a buffer; parameters between steps.",
            )
    for name, parameter in trainable.items():
        if parameter.grad is not None:
            raise UnsupportedModelError(
                f"forward runs a backward pass that adds to the gradient of {name!r}",
                why="a graph stores no gradients",
                remedy="Use torch.autograd.grad there.",
            )
        if parameter._backward_hooks:
            raise UnsupportedModelError(
                f"forward puts a hook on parameter {name!r}",
                why="there would be one more with each step",
                remedy="Put it there once, before exporting.",
            )


class _Around(torch.nn.Module):
    """A module around another, whose call runs any function."""

    def __init__(self, module: torch.nn.Module, function: Callable[[], Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self) -> Any:
        return self.function()


def _called_with(module: torch.nn.Module, tensors: Tensors, function: Callable[[], Any]) -> Any:
    """Run a function while `module` has other tensors.

    Forward and backward run within, since a checkpointed part of the module runs again in the
    backward pass: behind it, that would read the module's own weights, as constants.
    """
    return functional_call(_Around(module, function), {f"module.{n}": t for n, t in tensors.items()}, ())


def _check_loss(loss: Any, *, is_trained: bool) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.dtype.is_floating_point:
        problem = (
            f"a tensor of shape {tuple(loss.shape)} and type {loss.dtype}"
            if isinstance(loss, torch.Tensor)
            else type(loss).__name__
        )
        reduced = "Reduce it, for example with .mean(), so that loss(output, *targets) has no dimensions."
        several = "Return the scalar alone, or (loss, {'logits': logits}) if the step should return more."
        raise UsageError(
            f"the loss is not a scalar but {problem}",
            remedy=reduced if isinstance(loss, torch.Tensor) else several,
        )
    if is_trained and not loss.requires_grad:
        raise UsageError(
            "the loss does not depend on any trainable parameter",
            remedy="Check requires_grad of the parameters, and that nothing is detached on the way.",
        )
    if loss.dtype != torch.float32:
        raise UnsupportedModelError(
            f"the loss is {loss.dtype}",
            why="training steps are exported in FP32 and lowered afterwards",
            remedy="Take autocast and conversions out of the module and the loss.",
        )


def _unscaled(
    scaled: Mapping[str, torch.Tensor], inverse: torch.Tensor, *, joins: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Unscale gradients, vectors of one type together, and say whether all are finite."""
    groups: dict[Hashable, list[str]] = {}
    vectors: Counter[torch.dtype] = Counter()
    for name, gradient in scaled.items():
        key: Hashable = name
        if joins and gradient.dim() == 1:
            key = gradient.dtype, vectors[gradient.dtype] // MOST_JOINED
            vectors[gradient.dtype] += 1
        groups.setdefault(key, []).append(name)
    unscaled: dict[str, torch.Tensor] = {}
    wholes = []
    for names in groups.values():
        tensors = [scaled[name] for name in names]
        whole = (tensors[0] if len(tensors) == 1 else torch.cat(tensors)) * inverse
        parts = [whole] if len(tensors) == 1 else whole.split([len(tensor) for tensor in tensors])
        unscaled.update(zip(names, parts, strict=True))
        wholes.append(whole)
    return {name: unscaled[name] for name in scaled}, _all_finite(wholes)


def _all_finite(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether no element is infinite or NaN: one sum of magnitudes per tensor tells."""
    total = torch.stack([gradient.abs().sum() for gradient in gradients]).sum()
    return (total - total) == 0


def _chosen(finite: torch.Tensor | None, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return new if finite is None else torch.where(finite, new, old)
