"""Parts of a step that the user's code asks to compute in FP32, where others may be in low precision.

Code asks for it by a region with ``torch.autocast(enabled=False)``, by a custom function whose
``custom_fwd`` casts its inputs to FP32, and by a cast to FP32 under autocast (``h.float()``,
``softmax(h, dtype=torch.float32)``). What is computed of the result of such a cast is in FP32 as well, up to
the next product, which autocast lowers.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

_DEVICES = ("cpu", "cuda")

_CHECKPOINT = "torch.utils.checkpoint"

_PRODUCTS = frozenset(
    {
        *(F.linear, F.bilinear, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul),
        *(torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.mm, torch.Tensor.mm, torch.bmm),
        *(torch.Tensor.bmm, torch.mv, torch.Tensor.mv, torch.addmm, torch.Tensor.addmm, torch.addbmm),
        *(torch.Tensor.addbmm, torch.baddbmm, torch.Tensor.baddbmm, torch.addmv, torch.Tensor.addmv),
        *(torch.einsum, torch.tensordot, torch.chain_matmul, torch.linalg.multi_dot, torch.linalg.matmul),
        *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        *(torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu),
        *(torch._VF.lstm_cell, torch._VF.gru_cell, torch._VF.rnn_tanh_cell, torch._VF.rnn_relu_cell),
    }
)
"""Functions that compute in low precision under autocast, whatever the types of their inputs."""


def autocast_around() -> bool | None:
    """Say whether autocast is on; None where neither it nor its opposite was asked for."""
    if any(torch.is_autocast_enabled(device) for device in _DEVICES):
        return True
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return False if nesting else None


def casts_to_fp32(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Say whether a function or method of torch is called such that it gives FP32."""
    return name == "float" or torch.float32 in (*_types(args), kwargs.get("dtype"))


def _casts(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return casts_to_fp32(getattr(func, "__name__", ""), args, kwargs)


def _types(args: Sequence[Any]) -> Iterator[torch.dtype]:
    return (argument for argument in args if isinstance(argument, torch.dtype))


class Fp32Demands:
    """Notes, while a step runs, which of its operations are to be in FP32, forward and backward.

    `autocast` is the state around the step. While this is entered, autocast itself does nothing.
    """

    def __init__(self, autocast: bool | None) -> None:
        self._states = [autocast]
        self._started: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._results = WeakIdKeyDictionary()
        self._replaced: list[tuple[type, str, Any]] = []

    def __enter__(self) -> "Fp32Demands":
        autocast, function = torch.amp.autocast_mode.autocast, torch.autograd.Function

        def enter(region: Any) -> Any:
            self._begin(region._enabled)
            return region

        self._replace(autocast, "__enter__", enter)
        self._replace(autocast, "__exit__", lambda *_: self._end())
        apply = function.__dict__["apply"].__func__

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            asks = inspect.getclosurevars(cls.forward).nonlocals.get("cast_inputs") == torch.float32
            with self._region(False if asks else self._states[-1]):
                return apply(cls, *args, **kwargs)

        self._replace(function, "apply", classmethod(applied))
        return self

    def __exit__(self, *_: Any) -> None:
        for owner, name, before in reversed(self._replaced):
            setattr(owner, name, before)
        self._replaced.clear()

    def _replace(self, owner: type, name: str, value: Any) -> None:
        self._replaced.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    @contextmanager
    def _region(self, is_on: bool | None) -> Iterator[None]:
        self._begin(is_on)
        try:
            yield
        finally:
            self._end()

    def _begin(self, is_on: bool | None) -> None:
        caller = sys._getframe(2)
        # custom_bwd and checkpointing restore the state of the forward pass, in which autocast is off here.
        restores = caller.f_code.co_name == "decorate_bwd" or caller.f_globals["__name__"] == _CHECKPOINT
        self._states.append(self._states[-1] if restores else is_on)
        self._started.append(torch.autograd._get_sequence_nr())

    def _end(self) -> None:
        first = self._started.pop()
        if self._states.pop() is False:
            self._spans.append((first, torch.autograd._get_sequence_nr()))

    def concern(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Say whether a function that is about to be called is to compute in FP32."""
        if not self._states[-1]:
            return self._states[-1] is False
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(tensor.is_floating_point() for tensor in tensors):
            return False
        return _casts(func, args, kwargs) or (
            func not in _PRODUCTS and any(tensor in self._results for tensor in tensors)
        )

    def recorded(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Callable[[], Any],
    ) -> Any:
        """Call a function that is to compute in FP32."""
        first = torch.autograd._get_sequence_nr()
        result = call()
        if _casts(func, args, kwargs) and any(result is argument for argument in args):
            result = result.view_as(result)  # who reads the argument does not read what was cast
        self._spans.append((first, torch.autograd._get_sequence_nr()))
        if self._states[-1]:
            self._results.update(
                (leaf, True) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)
            )
        return result

    def covers(self, number: int) -> bool:
        """Say whether an operation is in FP32, by its number in autograd."""
        return any(first <= number < last for first, last in self._spans)
