"""The program: its commands, its version, and how it exits on errors."""

import gc
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from campo_onnx.errors import CampoError, InternalError, OutOfMemoryError, UsageError, is_out_of_memory
from campo_onnx.files import cache_folder
from campo_onnx.files.signals import terminate

from .commands import HELP, Commands
from .render.console import (
    INTERRUPTED,
    prepare_streams,
    print_bug,
    print_document,
    print_error,
    print_error_document,
    print_traceback,
    results,
)
from .surroundings import check_environment

TRACEBACK_VARIABLE = "CAMPO_ONNX_TRACEBACK"

_COLLECTING = (10_000, 20, 50)
"""Thresholds of Python's search for cycles. A graph is millions of values that stay: at Python's own
thresholds a sixth of the time of planning 100,000 nodes went into looking at them, and nothing was found."""

_NOT_SLIM = ("polars", "safetensors")
"""Packages that a slim install lacks (docs/install.md)."""

# What Typer raises for a command line that does not parse; it exports only one of these, and no base.
_PARSE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


app = typer.Typer(
    name="campo-onnx",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP},
    epilog=(
        "Exit codes: 0 ok, 1 a bug of ours, 2 usage, 3 bad model, 4 unsupported model, "
        "5 bad profile, calibration or checkpoint, 6 device mismatch, 7 plan does not fit the model, "
        "8 device, ONNX Runtime or memory unavailable, 9 check failed, 130 interrupted."
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from campo_onnx.version import VERSION

        print_document(f"campo-onnx {VERSION}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Cost-aware mixed precision for ONNX training graphs.

    Takes an exported FP32 training step (forward, loss, backward, perhaps the weight update), decides for
    every node whether FP16 pays for the casts it needs, and writes the step in mixed precision. The
    default strategy's result is never predicted slower than FP32; `--verify` measures it.

    Start with: `campo-onnx demo`, then `campo-onnx optimize step.onnx --device h200`
    """
    if sys.argv[-1] not in ("-h", "--help"):
        check_environment()
        _check_working_folder()


def _check_working_folder() -> None:
    """Refuse to work in a folder that was removed: every relative path, and the system's own calls, fail."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            "the current folder cannot be used",
            why=error.strerror or str(error),
            remedy="It may have been removed: change to one that exists.",
        ) from None


def run() -> None:
    """Run the program; an error is one message and the documented exit code."""
    signal.signal(signal.SIGTERM, terminate)
    # Libraries warn whoever writes code; users get messages of ours. Filters that were set before go first.
    warnings.simplefilter("ignore", append=True)
    gc.set_threshold(*_COLLECTING)
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))  # its list of fonts
    prepare_streams()
    try:
        code = app(prog_name="campo-onnx", standalone_mode=False)
        results().flush()
    except InternalError as error:
        _leave_with_bug(error)
    except CampoError as error:
        if is_out_of_memory(error) and error.exit_code != OutOfMemoryError.exit_code:
            _leave_without_memory(error)
        _leave(str(error), error.exit_code, error)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)
    except typer.Abort:
        _leave("aborted", 1)
    except _PARSE_ERROR as error:
        _leave_unparsed(error)
    except Exception as error:
        if package := _missing_package(error):
            _leave(f"this command needs {package}: install it with pip install {package}", 2)
        if is_out_of_memory(error):
            _leave_without_memory(error)
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _leave_with_bug(error)
    if code == INTERRUPTED:  # Typer makes this of Ctrl-C; commands that keep what they have end with it, too
        _leave("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(message: str, exit_code: int, error: CampoError | None = None) -> None:
    if _wants_json():
        plain = {INTERRUPTED: "Interrupted"}.get(exit_code, "UsageError")
        kind = plain if error is None else type(error).__name__
        parts = {} if error is None else {"what": error.what, "why": error.why, "remedy": error.remedy}
        with suppress(UsageError):  # stdout takes nothing; the message is on stderr
            print_error_document(message, kind=kind, exit_code=exit_code, parts=parts)
    print_error(message)
    sys.exit(exit_code)


def _leave_without_memory(error: Exception) -> NoReturn:
    """Say that memory lacks; what was being computed is let go first, as a message takes memory, too."""
    traceback.clear_frames(error.__traceback__)
    told = OutOfMemoryError()
    try:
        _leave(str(told), told.exit_code, told)
    except Exception:  # not even that much is left
        os.write(2, f"error: {told}\n".encode())
    os._exit(told.exit_code)


def _leave_with_bug(error: Exception) -> NoReturn:
    """Report an unexpected error; one of a task among many brings its traceback as text."""
    if _wants_json():
        with suppress(UsageError):
            print_error_document(str(error), kind=type(error).__name__, exit_code=1)
    if isinstance(error, InternalError) and os.environ.get(TRACEBACK_VARIABLE):
        print_traceback(error.traceback)
    print_bug(error, TRACEBACK_VARIABLE)
    sys.exit(1)


def _missing_package(error: Exception) -> str:
    """Name the package that a slim install lacks and this error misses; ``""`` for other errors."""
    missed = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return missed if missed in _NOT_SLIM else ""


def _leave_unparsed(error: Exception) -> None:
    """Report a command line that does not parse, in the form of every other error."""
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message", error.__str__)())
    if "NoArgsIsHelp" in type(error).__name__:  # its message is the help
        getattr(error, "show", print)()
        sys.exit(2)
    if not message.endswith((".", "?")):
        message += "."
    command = context.command_path if context is not None else "campo-onnx"
    _leave(f"{message} `{command} --help` shows what there is.", 2)


def _wants_json() -> bool:
    return "--json" in sys.argv[1:]
