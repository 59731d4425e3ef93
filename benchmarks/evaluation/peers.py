"""Other converters to FP16, each run in an environment of its own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView

RUNNERS = Path(__file__).parents[1] / "peers"

INSTALL_S, CONVERT_S = 300.0, 300.0
"""How long installing a peer, and a conversion, may take."""

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A converter.

    Parameters
    ----------
    name, title
        Short name, and what people call it, with its version.
    requirements
        Everything that is installed for it, pinned.
    runner
        The script that calls it.
    runs_the_graph
        Whether it runs the graph itself, with every tensor as an output.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    runner: str
    runs_the_graph: bool = False


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="autocast",
            title="ModelOpt AutoCast 0.47.0",
            # PyTorch is pinned to a release without CUDA libraries: AutoCast only imports it.
            requirements=(
                *("nvidia-modelopt==0.47.0", "torch==2.13.0", "onnx==1.21.0", "onnx-graphsurgeon==0.6.1"),
                *("onnxruntime==1.24.4", "onnxscript==0.7.2", "onnxslim==0.1.98", "polygraphy==0.53.6"),
                "lief==1.0.0",
            ),
            runner="run_autocast.py",
            runs_the_graph=True,
        ),
        Peer(
            name="onnxconverter",
            title="onnxconverter-common 1.16.0",
            requirements=("onnxconverter-common==1.16.0", "onnx==1.21.0"),
            runner="run_onnxconverter.py",
        ),
        Peer(
            name="ort-float16",
            title="ONNX Runtime 1.31.1, transformers.float16",
            requirements=("onnxruntime==1.31.1", "onnx==1.23.2"),
            runner="run_ort_float16.py",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call to another program ended.

    Parameters
    ----------
    failure
        First line of what went wrong; ``""`` if nothing did.
    """

    failure: str


def install(peer: Peer, folder: Path) -> Outcome:
    """Make an environment for a peer below `folder`; a failure is what pip said."""
    environment = folder / peer.name
    made = _call([sys.executable, "-m", "venv", "--clear", str(environment)], INSTALL_S)
    if made.failure:
        return made
    pip = [str(_python(environment)), "-m", "pip", "install", "--quiet", "--retries", "2", *peer.requirements]
    return _call(pip, INSTALL_S)


def convert(peer: Peer, graph: Path, output: Path, folder: Path) -> Outcome:
    """Let a peer convert a graph.

    Parameters
    ----------
    peer
        An installed peer.
    graph
        The FP32 training step.
    output
        Where the result goes.
    folder
        Where its environment lies.
    """
    if peer.runs_the_graph:
        needed_bytes = activations_bytes(import_model(graph).view)
        limit_bytes = _MEMORY_SHARE * _memory_bytes()
        if needed_bytes > limit_bytes:
            return Outcome(
                failure=f"not tried: it runs the graph on the CPU with all tensors as outputs, which are "
                f"{needed_bytes / 2**30:.0f} GiB, and this machine can spare {limit_bytes / 2**30:.0f} GiB"
            )
    python = _python(folder / peer.name)
    return _call([str(python), str(RUNNERS / peer.runner), str(graph), str(output)], CONVERT_S)


def activations_bytes(view: GraphView) -> int:
    """Size of everything a graph computes, all at once."""
    return int(sum(view.tensors[name].nbytes for node in view.nodes for name in node.outputs if name))


def first_line(text: str) -> str:
    """Pick the line of a program's complaints that says what went wrong.

    The exception of a traceback, else what is called an error, else the last line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    complaints = [line for line in lines if line.upper().startswith("ERROR")]
    return next(iter([*reversed(raised), *complaints, *reversed(lines)]), "it ended without a word")


def _call(command: list[str], limit_s: float) -> Outcome:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=clean
        )
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"not done after {limit_s:.0f} s")
    except OSError as error:
        return Outcome(failure=str(error))
    return Outcome(failure=first_line(ended.stderr) if ended.returncode else "")


def _python(environment: Path) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin") / "python"


def _memory_bytes() -> int:
    if not hasattr(os, "sysconf"):
        raise UnsupportedModelError("this system does not tell its memory", remedy="Run with --no-peers.")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
