"""Output of the program: results go to stdout, everything else to stderr.

Names of nodes, tensors, operators, dimensions and files were written by strangers. Whatever is printed
goes through :func:`escape` (what a terminal, a table or this library would take as a command is shown
instead) and through :class:`_Lines` (what GitHub would take as one, wherever a line broke).
"""

import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO, cast

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.wording import visible as visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table as RichTable

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as shells have it."""

_PIPED_WIDTH = 100_000  # in a pipe nothing is cut or broken: a program, or a search, reads it


@dataclass(slots=True)
class _Output:
    """Settings for printing of the command that runs; set anew for each."""

    quiet: bool = False
    verbose: bool = False
    has_document: bool = False  # one JSON document is all that may be on stdout
    # where results and messages go beside what others print; None for `sys.stdout` and `sys.stderr`
    results: TextIO | None = None
    messages: TextIO | None = None


_output = _Output()


_LONG_WORD = re.compile(r"(\S{200})\S{400,}")
_GITHUB_LINE = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_GITHUB_ANYWHERE = re.compile(r"##(?=\[)")


def escape(text: str) -> str:
    r"""Make text that strangers wrote safe to print: visible, and no markup.

    >>> print(escape("[red]a\tb"))
    \[red]a\tb
    """
    from rich.markup import escape as escape_markup

    return escape_markup(visible(text))


def without_commands(text: str) -> str:
    r"""Show what GitHub would take as a command of a workflow, at the start of a line or in the old style.

    >>> print(without_commands("::error::x ##[error]"))
    \x3a:error::x #\x23[error]
    """
    return _GITHUB_ANYWHERE.sub(r"#\\x23", _GITHUB_LINE.sub(r"\1\\x3a", text))


class _Guarded:
    """A stream that ends the program when nobody reads it any more, or when it takes nothing.

    Everything that is printed goes through one, the help and the messages of Typer too.
    """

    def __init__(self, stream: TextIO, *, has_results: bool) -> None:
        self._stream = stream
        self._has_results = has_results

    def write(self, text: str) -> int:
        with self._refusals():
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with self._refusals():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """End quietly when nobody reads any more, and with one message when results cannot be written.

        Messages that cannot be written are lost: there is no place left to say so.
        """
        try:
            yield
        except OSError as error:
            # Else Python tries again at the end, fails, and says so in its own way.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(128 + signal.SIGPIPE) from None
            if self._has_results:
                why = error.strerror or str(error)
                raise UsageError("the result cannot be printed", why=why) from None


class _Lines:
    """A stream that no line leaves as a command of GitHub's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(without_commands(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Make sure that there are streams, and that they take any character; forget earlier commands."""
    _output.quiet = _output.verbose = _output.has_document = False
    _output.results = _output.messages = None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if not isinstance(stream, _Guarded):
            stream = _Guarded(stream, has_results=name == "stdout")
        setattr(sys, name, stream)


def results() -> TextIO:
    """Give the stream of results."""
    return _output.results or sys.stdout


def messages() -> TextIO:
    """Give the stream of everything else."""
    return _output.messages or sys.stderr


@contextmanager
def keeping_others_apart() -> Iterator[None]:
    """Lead what code of others prints to stderr, that of its processes too; ours goes where it went.

    Where stdout is that of the process it stays so until the end, at which such code may print as well.
    Others may also close or replace the streams, and change the arguments of the program.
    """
    words = list(sys.argv)
    _output.results, _output.messages = _own(sys.stdout, 1, has_results=True), _own(sys.stderr, 2)
    try:
        if _output.results is sys.stdout:
            with redirect_stdout(sys.stderr):
                yield
        else:
            os.dup2(2, 1)
            sys.stdout = sys.stderr
            yield
    finally:
        sys.argv = words


def _own(stream: TextIO, descriptor: int, *, has_results: bool = False) -> TextIO:
    """Give a stream to the same place that nobody else has; the stream itself if it is not the process's."""
    try:
        is_of_process = stream.fileno() == descriptor
    except OSError:  # it is in memory
        is_of_process = False
    if not is_of_process:
        return stream
    stream.flush()
    own = open(os.dup(descriptor), "w", encoding=stream.encoding, errors=stream.errors)  # noqa: SIM115
    return cast(TextIO, _Guarded(own, has_results=has_results))


def set_loudness(*, quiet: bool = False, verbose: bool = False) -> None:
    """Say how much a command prints: with `quiet` only what it was asked for by option, and warnings."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose contradict each other", remedy="Give one of them.")
    _output.quiet, _output.verbose = quiet, verbose


def is_verbose() -> bool:
    """Whether the user wants to know more."""
    return _output.verbose


def stdout() -> "Console":
    """Results go here."""
    from rich.console import Console

    width = None if results().isatty() else _PIPED_WIDTH
    return Console(
        file=cast(TextIO, _Lines(results())), width=width, highlight=False, emoji=False, quiet=_output.quiet
    )


def stderr() -> "Console":
    """Everything that is not a result goes here."""
    from rich.console import Console

    return Console(file=cast(TextIO, _Lines(messages())), highlight=False, soft_wrap=True, emoji=False)


def print_table(table: "RichTable", console: "Console | None" = None) -> None:
    """Print a table; in a pipe without the blanks that fill its lines up."""
    console = console or stdout()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    lines = (line.rstrip(" ") for line in captured.get().removesuffix("\n").split("\n"))
    console.out("\n".join(lines), highlight=False)


def command_line() -> str:
    """Say how this program was called, as a shell takes it."""
    return shlex.join(["campo-onnx", *sys.argv[1:]])


def print_line(text: str) -> None:
    """Print one line of result, which stays one: commands are copied."""
    stdout().print(escape(text), soft_wrap=True)


def print_document(text: str) -> None:
    """Print CSV or Markdown: whatever the width, and without markup."""
    results().write(without_commands(text))
    results().flush()


def print_json(text: str) -> None:
    """Print a JSON document as it is; only commands of GitHub's are spelled in another way."""
    _output.has_document = True
    results().write(text.replace("##[", r"#\u0023["))
    results().flush()


def print_note(text: str) -> None:
    """Print a note to the user, if there is one."""
    if text and not _output.quiet:
        stderr().print(escape(text), style="dim")


def print_warning(text: str) -> None:
    """Print a warning: something the user asked for has no effect."""
    stderr().print(f"[yellow]warning:[/yellow] {escape(text)}")


def print_error(message: str) -> None:
    """Print an error: one message, without words that fill a screen."""
    short = _LONG_WORD.sub(lambda word: f"{word[1]}... ({len(word[0]):,} characters)", message)
    stderr().print(f"[bold red]error:[/bold red] {escape(short)}")


def print_error_document(
    message: str, *, kind: str, exit_code: int, parts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print an error as the JSON document that was asked for, unless a result is there already."""
    if _output.has_document:
        return
    from campo_onnx.files.document_format import to_report

    error = {"kind": kind, "exit_code": exit_code, "message": message, **parts}
    print_json(to_report("campo-onnx error", 1, {"error": error}))


def print_traceback(text: str) -> None:
    """Print the traceback of an error that happened in another process."""
    for line in text.splitlines():
        stderr().print(escape(line))


def print_bug(error: Exception, traceback_variable: str) -> None:
    """Print an unexpected error, with a hint how to report it."""
    kind = "" if isinstance(error, CampoError) else f"{escape(type(error).__name__)}: "
    stderr().print(
        f"[bold red]bug:[/bold red] {kind}{escape(str(error))}\n"
        f"This is a bug in campo-onnx, not in your model. Set {traceback_variable}=1 to get the traceback to "
        "report."
    )


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner."""
    if _output.quiet:
        yield
        return
    with stderr().status(escape(what)):
        yield


class Advance:
    """A progress bar's update: call it with steps done and total."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=done, total=total)

    def describe(self, what: str) -> None:
        """Say what is being done from now on; without a bar, as a note."""
        self._progress.update(self._task, description=escape(what))
        if self._progress.disable:
            print_note(f"{what[:1].upper()}{what[1:]}.")


@contextmanager
def progressing(what: str) -> Iterator[Advance]:
    """Show a progress bar with the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    quiet = _output.quiet or not sys.stderr.isatty()
    with Progress(*columns, console=stderr(), transient=True, disable=quiet) as progress:
        yield Advance(progress, progress.add_task(escape(what), total=None))
