"""Output of the program: results go to stdout, everything else to stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_PIPED_WIDTH = 110


def stdout() -> Console:
    """Results go here."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def stderr() -> Console:
    """Everything that is not a result goes here."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line of result."""
    stdout().print(escape(text))


def print_json(text: str) -> None:
    """Print a document as it is."""
    sys.stdout.write(text)


def print_note(text: str) -> None:
    """Print a note to the user."""
    stderr().print(escape(text), style="dim")


def print_warning(text: str) -> None:
    """Print a warning: something the user asked for has no effect."""
    stderr().print(f"[yellow]warning:[/yellow] {escape(text)}")


def print_error(message: str) -> None:
    """Print an error: one message."""
    stderr().print(f"[bold red]error:[/bold red] {escape(message)}")


def print_bug(error: Exception, traceback_variable: str) -> None:
    """Print an unexpected error, with a hint how to report it."""
    stderr().print(
        f"[bold red]bug:[/bold red] {escape(type(error).__name__)}: {escape(str(error))}\n"
        f"This is a bug in campo-onnx, not in your model. Set {traceback_variable}=1 to get the traceback to "
        "report."
    )


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner."""
    with stderr().status(escape(what)):
        yield


@contextmanager
def progressing(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with the remaining time; yields a function that takes steps done and total."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=stderr(), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(escape(what), total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield advance
