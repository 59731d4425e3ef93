"""Recurrent layers, which torch.compile leaves to torch: no backend is called for a function with one."""

import sys
from types import FrameType
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import Unsupported

from campo_onnx.integrations.torch_compile.warn_once import warn_once

LEFT = (
    "torch.compile leaves recurrent layers, and the function that calls one, to torch: set "
    "torch._dynamo.config.allow_rnn = True before the first step to have them unrolled and compiled"
)

_BACKEND = "campo_onnx"


def listen() -> None:
    """Warn of recurrent layers in what is compiled from now on; torch._dynamo.reset() forgets it."""
    if _tell not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_tell)


def recurrent_layers(model: torch.nn.Module) -> tuple[str, ...]:
    """Name the recurrent layers of a model that torch runs."""
    if torch._dynamo.config.allow_rnn:
        return ()
    return tuple(
        f"{name or 'the model'} ({type(child).__name__})"
        for name, child in model.named_modules()
        if isinstance(child, torch.nn.RNNBase)
    )


def _tell(_: Any) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, Unsupported) and "RNN, GRU, or LSTM" in str(error) and _is_ours(sys._getframe()):
        warn_once(LEFT)


def _is_ours(frame: FrameType | None) -> bool:
    """Say whether what is being compiled is for this backend, by what torch holds while it compiles."""
    while frame is not None and "compiler_fn" not in frame.f_locals:
        frame = frame.f_back
    return frame is not None and getattr(frame.f_locals["compiler_fn"], "_compiler_name", "") == _BACKEND
