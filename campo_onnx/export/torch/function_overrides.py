"""Functions that are traced in a form of their own, since theirs comes apart badly, and truth values.

Dropout becomes one operation with a mask instead of five on random numbers, and attention one
softmax between two products instead of a fused kernel whose gradient has no parts. Where torch calls
them out of sight (in ``nn.MultiheadAttention``), they come apart after all, correct but less compact.
"""

import itertools
import math
import sys
import traceback
from collections.abc import Callable, Hashable, Mapping
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch import small_matrices
from campo_onnx.export.torch.alignments import ctc_loss, multinomial
from campo_onnx.export.torch.decisions import Decisions, passing
from campo_onnx.export.torch.decompositions import FUNCTIONS
from campo_onnx.export.torch.fp32_demands import Fp32Demands
from campo_onnx.export.torch.origin import current_origin, place_of_frame, set_place


class Masks:
    """Draws masks of dropout; a part that activation checkpointing runs again has its first mask.

    Masks of checkpointed parts are known by where they were drawn.
    """

    def __init__(self) -> None:
        self._drawn: dict[Hashable, torch.Tensor | None] = {}
        self.is_backward = False

    def dropped(self, x: torch.Tensor, p: float, place: Hashable) -> torch.Tensor:
        """Drop elements of `x`.

        `place` tells this dropout from others. One that runs again, while it is not clear which mask it had,
        is an UnsupportedModelError.
        """
        if not self.is_backward and not _is_checkpointed():
            return torch.native_dropout(x, p, train=True)[0]
        place = (place, tuple(x.shape), p)
        if not self.is_backward:
            mask = torch.native_dropout(torch.ones_like(x).detach(), p, train=True)[0]
            self._drawn[place] = None if place in self._drawn else mask
            return x * mask
        drawn = self._drawn.get(place)
        if drawn is None:
            raise UnsupportedModelError(
                "a part with dropout is run several times under activation checkpointing",
                why="the second run would draw another mask",
                remedy="Turn checkpointing off there, or set the dropout in it to 0.",
            )
        return x * drawn


def _is_checkpointed() -> bool:
    """Whether something other than autograd keeps what the backward pass reads, as checkpointing does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


_FRAMES = 3  # torch's dispatcher, the function, and who called it

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""The error that torch raises where a value of a tensor is needed."""


def _tensor(data: Any, **settings: Any) -> torch.Tensor:
    """Make a tensor of numbers among which there may be tensors; torch would read these."""
    if not isinstance(data, list | tuple) or not any(isinstance(x, torch.Tensor) for x in tree_leaves(data)):
        return torch.tensor(data, **settings)
    rows = [_tensor(x) if not isinstance(x, torch.Tensor) else x.detach() for x in data]
    return torch.stack(rows).to(settings.get("device"), settings.get("dtype"))


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Compare with each class; a lookup of the classes lets a session see which numbers there may be."""
    if num_classes < 1 or not tensor.numel():
        return F.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, device=tensor.device)
    chosen = classes.index_select(0, tensor.reshape(-1)).reshape(tensor.shape)
    return (chosen.unsqueeze(-1) == classes).long()


_REWRITTEN: Mapping[Any, Callable[..., Any]] = {
    **FUNCTIONS,
    **small_matrices.FUNCTIONS,
    F.ctc_loss: ctc_loss,
    F.one_hot: _one_hot,
    torch.randperm: lambda n, **_: torch.rand(n).argsort(),
    torch.tensor: _tensor,
    torch.multinomial: multinomial,
    torch.Tensor.multinomial: multinomial,
}
"""Those of all translations, and functions that torch.compile leaves to torch's own kernels."""

_DROPOUTS = (F.dropout, torch.dropout, torch._VF.dropout)


def _lines(frame: FrameType) -> tuple[tuple[str, int], ...]:
    """Tell a call by where it stands: the frames between the caller and us."""
    frames = itertools.islice(traceback.walk_stack(frame), _FRAMES)
    return tuple((each.f_code.co_filename, line) for each, line in frames)


class RewrittenFunctions(TorchFunctionMode):
    """While active, dropout and scaled dot-product attention are traced in exportable form.

    Every function called is also the occasion to note where in the user's code it is called.
    """

    def __init__(self, demands: Fp32Demands, *, checks_pass: bool = False) -> None:
        super().__init__()
        self._checks_pass, self._decisions, self.masks = checks_pass, Decisions(), Masks()
        self._demands = demands
        self._caller: Hashable = None
        self.swallowed: Exception | None = None
        """The last look at the data that had no answer, which the user's code may have swallowed."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        frame = sys._getframe(1)
        in_fp32 = self._demands.concern(func, args, kwargs)
        gradient_in_fp32 = self.masks.is_backward and current_origin().in_fp32
        set_place(place_of_frame(frame), in_fp32=in_fp32 or gradient_in_fp32)
        if not in_fp32:
            return self._called(func, args, kwargs, frame)
        return self._demands.recorded(func, args, kwargs, lambda: self._called(func, args, kwargs, frame))

    def _called(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Any:
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise UnsupportedModelError(
                f"{place_of_frame(frame)} draws from a generator of its own",
                why="a graph draws other numbers in each step",
                remedy="Leave it out; or draw before the step, and give what is drawn as an input.",
            )
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and isinstance(args[0], FakeTensor):
            raise UnsupportedModelError(
                f"{place_of_frame(frame)} hands a tensor to NumPy",
                why="a graph is written without data, and has torch's operations only",
                remedy="Do that before the step, and give the result as an input; or compile the model, "
                "torch.compile(model, backend='campo_onnx'), which leaves such parts to Python.",
            )
        if func in _DROPOUTS or func is F.scaled_dot_product_attention:
            self._caller = current_origin().scope, _lines(frame)
        if func in _DROPOUTS:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        decision = self._decisions.truth_value(func, args)
        if decision is not None:
            return decision
        try:
            result = _REWRITTEN.get(func, func)(*args, **kwargs)
        except DATA_DEPENDENT as error:
            passes = passing(func, args, frame)
            if passes is None:
                self.swallowed = error
                raise
            if not self._checks_pass:
                self.swallowed = UnsupportedModelError(
                    f"{place_of_frame(frame)} checks the data",
                    why="a graph is written without data, and cannot raise an error",
                    remedy="If they always pass, export with assume='checks'; or check before the step.",
                )
                raise self.swallowed from None
            return passes
        self._decisions.note(func, args, result)
        return result

    def _dropout(
        self,
        input: torch.Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool | None = None,
    ) -> torch.Tensor:
        if not (training if train is None else train) or p == 0:
            return input
        if p == 1:
            return input * 0
        dropped = self.masks.dropped(input, p, self._caller)
        return input.copy_(dropped) if inplace else dropped

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        scores = torch.matmul(query * scale, key.transpose(-2, -1))
        if is_causal:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1)
        elif attn_mask is None:
            weights = torch.softmax(scores, -1)
        else:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if hides else scores + attn_mask
            # A row that sees nothing attends to nothing, where a plain softmax would give NaN.
            weights = torch.ops.aten._safe_softmax(scores, -1)
        return torch.matmul(self._dropout(weights, dropout_p), value)
