"""A function in a script of the user's, which returns a module, its loss and a batch."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.files import check_file

_FORM = "campo-onnx try train.py:make"
_PARTS = 3


class UserStep(NamedTuple):
    """The parts of a training step, as :func:`campo_onnx.integrations.trial.trial.try_step` takes them."""

    module: Any
    loss: Callable[..., Any]
    batch: Any


def split_target(target: str) -> tuple[Path, str]:
    """Split ``train.py:make`` into the script and the function."""
    script, colon, function = target.rpartition(":")
    if not (colon and script.endswith(".py") and function.isidentifier()):
        raise UsageError(
            f"{target!r} is not SCRIPT.py:FUNCTION",
            remedy=f"Write, for example, {_FORM}; make() returns a module, its loss and a batch.",
        )
    path = Path(script)
    check_file(path, title=f"the script {path}", remedy=f"Check the path: {_FORM}")
    check_torch()
    return path, function


def check_torch() -> None:
    """Find out before any work whether PyTorch is installed, without loading it."""
    if find_spec("torch") is None:
        raise UsageError(
            "a trial needs PyTorch, which is not installed",
            remedy="Install it with: pip install 'campo-onnx[torch]'. The page on installing says how to get "
            "the build for CPUs, which is much smaller.",
        )


def step_from(script: Path, function: str) -> UserStep:
    """Run a script and call its function.

    What they print goes to stderr. The script's folder is searched for modules, as when Python runs it.
    """
    with contextlib.redirect_stdout(sys.stderr):
        module = _executed(script)
        call = getattr(module, function, None)
        if not callable(call):
            callables = [
                name for name, value in vars(module).items() if callable(value) and name.isidentifier()
            ]
            raise UsageError(
                f"{script} does not define a function {function!r}",
                remedy=did_you_mean(function, callables) if callables else f"Define it: {_FORM}",
            )
        returned = _called(call, script)
    if isinstance(returned, str | bytes) or not isinstance(returned, Sequence) or len(returned) != _PARTS:
        raise UsageError(
            f"{function}() of {script} returns {_described(returned)}",
            remedy="Let it return a module, its loss and a batch: `return model, loss, (x, y)`.",
        )
    return UserStep(*returned)


def _executed(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(script.stem, script.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{script} is not a Python script")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.resolve().parent))
    sys.modules.setdefault(script.stem, module)  # dataclasses and pickles look their module up
    loader = spec.loader
    _called(lambda: loader.exec_module(module), script)
    return module


def _called(function: Callable[[], Any], script: Path) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:  # whatever the user's code raises is the user's
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if Path(frame.filename) == script.absolute()]
        if isinstance(error, SyntaxError) and error.filename == str(script.absolute()):
            own.append(error.lineno)
        place = f", line {own[-1]}" if own else ""
        raise UsageError(
            f"{script}{place}: {type(error).__name__}",
            why=str(error).strip(),
            remedy="Run the script with Python alone to see more.",
        ) from error


def _described(returned: Any) -> str:
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
        return f"{len(returned)} values, not {_PARTS}"
    return f"a value of type {type(returned).__name__}, not {_PARTS} values"
