"""Origin of each operation of a traced step: its module, whether it is part of the gradient, and its line.

Hooks note the module that runs. Every autograd node born meanwhile belongs to it, so that the backward pass
names the module whose gradient it computes. Files and lines are those of the user's code.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx.traceback as fx_traceback
from torch.utils._pytree import tree_leaves

import campo_onnx
from campo_onnx.ir.origin import KEEP_FP32
from campo_onnx.ir.walk import Walk

_META = "custom"  # the tracer copies this entry of the current metadata to the nodes it makes
_KEY = "campo_onnx.origin"


class Origin(NamedTuple):
    """Origin of an operation: module, pass, the line of the user's code, and whether that asks for FP32."""

    scope: str
    is_gradient: bool = False
    place: str = ""
    in_fp32: bool = False

    @property
    def label(self) -> str:
        """The first part of node names."""
        demand, gradient = KEEP_FP32 if self.in_fp32 else "", "grad" if self.is_gradient else ""
        return "/".join(part for part in (self.scope, demand, gradient) if part)


def set_origin(scope: str, *, is_gradient: bool = False, in_fp32: bool = False) -> None:
    """Say where the operations traced from here on come from."""
    fx_traceback.current_meta[_META] = {_KEY: Origin(scope, is_gradient, in_fp32=in_fp32)}


def set_place(place: str, *, in_fp32: bool) -> None:
    """Say which line of the user's code operations traced from here on come from, and if it asks for FP32."""
    if fx_traceback.has_preserved_node_meta():
        origin = current_origin()
        origin = origin._replace(place=place or origin.place, in_fp32=in_fp32)
        fx_traceback.current_meta[_META] = {_KEY: origin}


def mark(node: torch.fx.Node, origin: Origin) -> None:
    """Say where an operation comes from that was traced elsewhere."""
    node.meta[_META] = {**(node.meta.get(_META) or {}), _KEY: origin}


def current_origin() -> Origin:
    """Say where the operation being traced comes from."""
    return _origin(fx_traceback.current_meta)


def origin_of(node: torch.fx.Node) -> Origin:
    """Say where a traced operation comes from."""
    return _origin(node.meta)


def _origin(meta: Mapping[str, Any]) -> Origin:
    origin: Origin = (meta.get(_META) or {}).get(_KEY, Origin(""))
    return origin


@contextmanager
def recorded_origins(
    module: torch.nn.Module, asks_for_fp32: Callable[[int], bool]
) -> Iterator[Callable[[Any, str], None]]:
    """Record origins while the hooks on `module` and its children are in place.

    `asks_for_fp32` says whether an operation of the forward pass does, by its number in autograd.
    ``claim(outputs, scope)`` says that all that led to `outputs` and belongs to nobody yet belongs to
    `scope`.
    """
    running = [""]
    claimed: set[Any] = set()

    def claim(outputs: Any, scope: str) -> None:
        walk = Walk(leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
        for node in walk:
            if node is None or node in claimed or node.name().endswith("AccumulateGrad"):
                continue
            claimed.add(node)
            node.register_prehook(partial(_enter_gradient, scope, asks_for_fp32, node._sequence_nr()))
            walk.add(before for before, _ in node.next_functions)

    def enter(scope: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            running.append(scope)
            set_origin(scope)

        return hook

    def leave(scope: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, outputs: Any) -> None:
            claim(outputs, scope)
            running.pop()
            set_origin(running[-1])

        return hook

    hooks = []
    with fx_traceback.preserve_node_meta():
        try:
            for scope, child in module.named_modules():
                hooks.append(child.register_forward_pre_hook(enter(scope)))
                hooks.append(child.register_forward_hook(leave(scope)))
            yield claim
        finally:
            for hook in hooks:
                hook.remove()


def _enter_gradient(scope: str, asks_for_fp32: Callable[[int], bool], number: int, *_: Any) -> None:
    set_origin(scope, is_gradient=True, in_fp32=asks_for_fp32(number))


_STANDARD = str(Path(os.__file__).parent) + os.sep
_PACKAGES = str(Path(os.__file__).parent / "site-packages") + os.sep
_OURS = str(Path(campo_onnx.__file__).parent) + os.sep
_MACHINERY = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (torch, np))


def is_users(code: CodeType) -> bool:
    """Whether code is the user's or a model library's: not torch's, Python's or ours."""
    name = code.co_filename
    if name.startswith((_OURS, "<string>", "<eval_with_key>", "<frozen", *_MACHINERY)):
        return False
    return name.startswith(_PACKAGES) or not name.startswith(_STANDARD)


def place_of_frame(frame: FrameType | None) -> str:
    """Give the innermost place in what is exported, from a frame outwards; ``""`` if there is none."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if is_users(frame.f_code):
            return _written(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def place_of_error(error: BaseException) -> str:
    """Give the innermost place in the user's code that an error passed; ``""`` if there is none."""
    frames = [
        _written(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_users(frame.f_code)
    ]
    return frames[-1] if frames else ""


def place_of_change(function: Callable[[], Any], state: Callable[[], Any]) -> str:
    """Run a function line by line; give the place in the user's code that first changes `state`.

    ``""`` if none does.
    """
    before = state()
    places: list[str] = []
    line = [""]

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if not places and line[0] and state() != before:
            places.append(line[0])
        if event == "line":
            line[0] = _written(frame.f_code.co_filename, frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return on_line if is_users(frame.f_code) else None

    tracer = sys.gettrace()
    sys.settrace(on_call)
    try:
        function()
    finally:
        sys.settrace(tracer)
    return places[0] if places else ""


def _written(filename: str, line: int) -> str:
    return f"{filename.removeprefix(os.getcwd() + os.sep)}:{line}"
