"""One command in a forked child: its own folder, bounds of time and memory, and what came of it.

The child has imported everything already, so that a command costs a few hundredths of a second. The
parent must not have started threads.
"""

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.verbs import VERBS, use_library

GIB = 1 << 30
_FRAMEWORKS = ("integrations", "export.torch", "export.jax", "openvino", "runtime.torch", "trial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a command.

    Parameters
    ----------
    seconds
        Wall-clock time.
    memory_bytes
        Address space beyond what the parent has.
    """

    seconds: float = 60.0
    memory_bytes: int = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a command.

    Parameters
    ----------
    code
        Its exit code; minus the signal that ended it; None where it ran out of time.
    out, err
        What it printed.
    seconds
        How long it took.
    """

    code: int | None
    out: str
    err: str
    seconds: float


def prepare() -> None:
    """Import what commands import, so that children need not, and start no thread in doing so."""
    import matplotlib.figure
    import matplotlib.pyplot  # noqa: F401
    import onnxruntime  # noqa: F401
    import polars  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import scipy.optimize  # noqa: F401

    import campo_onnx
    import cli.main

    for room in (campo_onnx, cli):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            if not any(f".{name}" in module.name for name in (*_FRAMEWORKS, "__main__")):
                importlib.import_module(module.name)
    gc.freeze()


def warm(folder: Path, commands: Sequence[str]) -> None:
    """Run commands here, which fills what the program remembers: schemas, lists, datasheets.

    Parameters
    ----------
    folder
        Sound files.
    commands
        Command lines that run no graph.
    """
    import cli.main

    before = Path.cwd()
    os.chdir(folder)
    for command in commands:
        nowhere = io.StringIO()
        streams = contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere)
        with streams[0], streams[1], contextlib.suppress(Exception):
            cli.main.app(command.split(), standalone_mode=False)
    os.chdir(before)
    gc.collect()
    gc.freeze()


def memory_disk() -> str | None:
    """Where to work: in memory, where there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run(
    words: Sequence[str],
    folder: Path,
    bounds: Bounds | None = None,
    first: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run ``campo-onnx WORDS`` in a folder.

    Parameters
    ----------
    words
        The command line.
    folder
        Where it runs.
    bounds
        What it may take.
    first
        What the child does before: faults to inject.
    """
    bounds = bounds or Bounds()
    started = time.monotonic()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    child = os.fork()
    if not child:
        code = 70
        try:
            be_confined(bounds)
            first()
            code = program_on(words, folder, out_write, err_write)
        finally:
            os._exit(code)
    os.close(out_write)
    os.close(err_write)
    texts, in_time = _read_all((out_read, err_read), child, started + bounds.seconds)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status) if in_time else None
    return Outcome(code=code, out=texts[0], err=texts[1], seconds=time.monotonic() - started)


def in_child(work: Callable[[], str]) -> str:
    """Do something in a forked child, since libraries may start threads for it; returns its text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, work().encode(errors="replace")[: 1 << 12])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    return text


def _read_all(ends: tuple[int, int], child: int, until: float) -> tuple[list[str], bool]:
    """Read two pipes until both end; a child that is late is killed."""
    data = {end: bytearray() for end in ends}
    open_ends, in_time = set(ends), True
    while open_ends:
        ready, _, _ = select.select(list(open_ends), [], [], max(0.0, until - time.monotonic()))
        if not ready and in_time:
            in_time = False
            os.kill(child, signal.SIGKILL)
            until = time.monotonic() + 10
        elif not ready:
            break  # a grandchild holds the pipe
        for end in ready:
            if piece := os.read(end, 1 << 16):
                data[end] += piece
            else:
                open_ends.discard(end)
    for end in ends:
        os.close(end)
    return [bytes(data[end]).decode(errors="replace") for end in ends], in_time


def be_confined(bounds: Bounds) -> None:
    """Take no more memory than is allowed, from here on."""
    limit = _address_space() + bounds.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def program_on(words: Sequence[str], folder: Path, out: int, err: int) -> int:
    """Run the program in this process, on other streams; returns its exit code.

    Parameters
    ----------
    words
        The command line.
    folder
        Where it runs.
    out, err
        Descriptors that it prints to.
    """
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for end, number in ((nowhere, 0), (out, 1), (err, 2)):
        os.dup2(end, number)
    os.close(nowhere)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(end, "w", encoding="utf-8", closefd=False) for end in (1, 2))
    os.chdir(folder)
    for name, value in (("XDG_CACHE_HOME", "cache"), ("XDG_DATA_HOME", "data"), ("HOME", "home")):
        os.environ[name] = str(folder / value)
    os.environ.pop("GITHUB_ACTIONS", None)
    sys.argv = ["campo-onnx", *words]
    code = 0
    try:
        if words[0] in VERBS:
            use_library(list(words))
        else:
            from cli.main import run as program

            program()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException as error:
        sys.stderr.write(f"ESCAPED {type(error).__name__}: {error}\n")
        code = 71
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120
    return code


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
