"""The program: its commands, its version, and how it exits on errors."""

import os
import signal
import sys
from typing import Annotated

import typer

from campo_onnx import __version__
from campo_onnx.errors import CampoError

from .bench import bench
from .calibrate import calibrate
from .check import check
from .compare import compare
from .devices import devices
from .explain import explain
from .optimize import optimize
from .profile import profile
from .render.console import prepare_streams, print_bug, print_error, print_line

TRACEBACK_VARIABLE = "CAMPO_ONNX_TRACEBACK"

app = typer.Typer(
    name="campo-onnx",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 ok, 1 a bug of ours, 2 usage, 3 bad model, 4 unsupported model, "
        "5 bad profile, calibration or checkpoint, 6 device mismatch, 7 plan does not fit the model, "
        "8 device unavailable, 9 check failed."
    ),
)
app.command()(optimize)
app.command()(compare)
app.command()(explain)
app.command()(devices)
app.command()(profile)
app.command()(bench)
app.command()(calibrate)
app.command()(check)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"campo-onnx {__version__}")
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

    Start with: `campo-onnx optimize step.onnx -o mixed.onnx --device h200`
    """


def run() -> None:
    """Run the program; an error is one message and the documented exit code."""
    # By default SIGTERM ends the process at once; as an exception it lets half-written files be removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    prepare_streams()
    try:
        app(prog_name="campo-onnx")
    except CampoError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print_bug(error, TRACEBACK_VARIABLE)
        sys.exit(1)
