"""Other converters to FP16, each run in an environment of its own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.steps import StepError
from campo_onnx.ir.importer import import_model

INSTALL_S, CONVERT_S = 300.0, 300.0
"""How long installing a peer, and a conversion, may take."""

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_MEMORY_SHARE = 0.25

_FLOAT16 = """
import sys, onnx
from {module} import convert_float_to_float16
model, output = sys.argv[1:]
onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), output)
"""
_AUTOCAST = """
import sys, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
model, output = sys.argv[1:]
converted = convert_to_mixed_precision(
    onnx_path=model, low_precision_type="fp16", keep_io_types=True, providers=["cpu"]
)
onnx.save(converted, output)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A converter: what people call it, what is installed for it, and the program that calls it."""

    name: str
    title: str
    requirements: tuple[str, ...]
    program: str
    runs_the_graph: bool = False  # with every tensor as an output


_PEERS = (
    Peer(
        name="autocast",
        title="ModelOpt AutoCast 0.47.0",
        # PyTorch is pinned to a release without CUDA libraries: AutoCast only imports it.
        requirements=(
            *("nvidia-modelopt==0.47.0", "torch==2.13.0", "onnx==1.21.0", "onnx-graphsurgeon==0.6.1"),
            *("onnxruntime==1.24.4", "onnxscript==0.7.2", "onnxslim==0.1.98", "polygraphy==0.53.6"),
            "lief==1.0.0",
        ),
        program=_AUTOCAST,
        runs_the_graph=True,
    ),
    Peer(
        name="onnxconverter",
        title="onnxconverter-common 1.16.0",
        requirements=("onnxconverter-common==1.16.0", "onnx==1.21.0"),
        program=_FLOAT16.format(module="onnxconverter_common.float16"),
    ),
    Peer(
        name="ort-float16",
        title="ONNX Runtime 1.31.1, transformers.float16",
        requirements=("onnxruntime==1.31.1", "onnx==1.23.2"),
        program=_FLOAT16.format(module="onnxruntime.transformers.float16"),
    ),
)
PEERS = {peer.name: peer for peer in _PEERS}


def install(peer: Peer, folder: Path) -> None:
    """Make an environment for a peer below `folder`; a StepError says what pip said."""
    environment = folder / peer.name
    _call([sys.executable, "-m", "venv", "--clear", str(environment)], INSTALL_S)
    pip = [str(_python(environment)), "-m", "pip", "install", "--quiet", "--retries", "2"]
    _call([*pip, *peer.requirements], INSTALL_S)


def convert(peer: Peer, graph: Path, output: Path, folder: Path) -> None:
    """Let an installed peer convert a graph; a StepError has the first line of what it said."""
    if peer.runs_the_graph:
        needed_bytes, limit_bytes = activations_bytes(graph), _MEMORY_SHARE * memory_bytes()
        if needed_bytes > limit_bytes:
            raise StepError(
                f"not tried: it runs the graph on the CPU with all tensors as outputs, which are "
                f"{needed_bytes / 2**30:.0f} GiB, and this machine can spare {limit_bytes / 2**30:.0f} GiB"
            )
    _call([str(_python(folder / peer.name)), "-c", peer.program, str(graph), str(output)], CONVERT_S)


def activations_bytes(graph: Path) -> int:
    """Size of everything a graph computes, all at once."""
    view = import_model(graph).view
    return int(sum(view.tensors[name].nbytes for node in view.nodes for name in node.outputs if name))


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def first_line(text: str) -> str:
    """Pick what went wrong: the exception of a traceback, else the error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    complaints = [line for line in lines if line.upper().startswith("ERROR")]
    return next(iter([*reversed(raised), *complaints, *reversed(lines)]), "it ended without a word")


def _call(command: list[str], limit_s: float) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=clean
        )
    except subprocess.TimeoutExpired:
        raise StepError(f"not done after {limit_s:.0f} s") from None
    except OSError as error:
        raise StepError(str(error)) from error
    if ended.returncode:
        raise StepError(first_line(ended.stderr))


def _python(environment: Path) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin") / "python"
