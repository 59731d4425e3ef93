"""A function in a script of the user's, which returns a module, its loss and a batch."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from campo_onnx.errors import CampoError, UsageError, did_you_mean, message_of
from campo_onnx.files import check_file
from campo_onnx.files.signals import Terminated

_FORM = "campo-onnx try train.py:make"
_PARTS = 3
_OURS = ("campo_onnx.", "campo_onnx_cli.")


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


def check_torch(user: str = "a trial") -> None:
    """Find out before any work whether PyTorch is installed, without loading it."""
    if find_spec("torch") is None:
        raise UsageError(
            f"{user} needs PyTorch, which is not installed",
            remedy="Install it with: pip install 'campo-onnx[torch]'. The page on installing says how to get "
            "the build for CPUs, which is much smaller.",
        )


def step_from(script: Path, function: str) -> UserStep:
    """Run a script and call its function.

    The script's folder is searched for modules, as when Python runs it.
    """
    with telling_errors_of(script, is_users=lambda _: True):
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
        returned = call()
        is_sequence = isinstance(returned, Sequence) and not isinstance(returned, str | bytes)
        if not is_sequence or len(returned) != _PARTS:
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
    spec.loader.exec_module(module)
    return module


@contextmanager
def telling_errors_of(script: Path, is_users: Callable[[BaseException], bool]) -> Iterator[None]:
    """Tell in one message what a script raises, whatever it is, and wherever it has gone to meanwhile.

    `is_users` says whether an error is one of the user's code. Ctrl-C is not, and ends the program as ever.
    """
    file = str(script.absolute())
    try:
        yield
    except (CampoError, Terminated):
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt or not is_users(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if isinstance(error, SyntaxError) and error.filename == file:
            lines.append(error.lineno)
        place = f", line {lines[-1]}" if lines else ""
        raise UsageError(
            f"{script}{place}: {type(error).__name__}",
            why=message_of(error),
            remedy="Run the script with Python alone to see more.",
        ) from error


def is_raised_by_user(error: BaseException) -> bool:
    """Say whether the innermost code that an error has passed, but for libraries, is the user's.

    An error of ours may pass the user's code as well: where torch calls us while it runs that.
    """
    from campo_onnx.export.torch.origin import is_users

    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__")).startswith(_OURS):
            return False
        if is_users(frame.f_code):
            return True
    return False


def _described(returned: Any) -> str:
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
        return f"{len(returned)} values, not {_PARTS}"
    return f"a value of type {type(returned).__name__}, not {_PARTS} values"
