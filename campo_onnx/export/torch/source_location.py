"""File and line of the user's code that runs, for messages."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import campo_onnx

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
