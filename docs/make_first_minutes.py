"""Write docs/first-ten-minutes.md: what a newcomer types, and what the program answers, from a fresh install.

    python docs/make_first_minutes.py [--program PATH]

Needs torch, which writes the models, and a CPU with BF16 units, on which one of them is measured. Without
--program the wheel is built and installed into an environment of its own (minutes, and a gigabyte of disk).
Every command runs in an empty folder with its own cache, in a pseudo-terminal of 80 columns without colours;
one of them again at 120 columns, in a pipe and in tmux, where that is installed.
"""

import argparse
import fcntl
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "first-ten-minutes.md"
OWN_MODEL = ROOT / "tests" / "data" / "mlp.onnx"
"""A step that PyTorch's exporter made, small enough to be timed anywhere; the walk calls it step.onnx."""

REPEATED = "campo-onnx compare campo_demo/bert_layer.onnx --device v100"
_LINES = 14  # of a table that is shown again


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of the walk.

    Parameters
    ----------
    command
        What is typed.
    exit_code
        What it must end with.
    title
        A heading before it; ``""`` for none.
    text
        A sentence before it.
    is_quick
        Whether the tests run it, too.
    lines
        How many lines of its answer are shown.
    """

    command: str
    exit_code: int = 0
    title: str = ""
    text: str = ""
    is_quick: bool = False
    lines: int = 1000


LAYER, MIXED, PLAN = "campo_demo/bert_layer.onnx", "campo_demo/bert_layer.mixed.onnx", "campo_demo/plan.json"
STEPS = (
    Step(command="campo-onnx --version", title="The example", is_quick=True),
    Step(command="campo-onnx demo"),
    Step(
        command=f"campo-onnx explain {PLAN} intermediate/Gemm",
        text="Why is this node in FP16?",
    ),
    Step(command=f"campo-onnx explain {PLAN} output_norm/grad/Mul", text="And this one in FP32?"),
    Step(command=REPEATED, text="What would the other strategies make of it?"),
    Step(
        command=f"campo-onnx check {MIXED} --against {LAYER}",
        text="Are loss and gradients still right?",
    ),
    Step(
        command=f"campo-onnx optimize {LAYER} --device v100 -o mine.onnx --report mine.html --quiet",
        text="Everything as a page for the browser; `--quiet` prints nothing.",
    ),
    Step(
        command="campo-onnx optimize step.onnx --device h200",
        title="A model of one's own",
        text="A small step, `step.onnx`, for which FP16 does not pay.",
        is_quick=True,
    ),
    Step(command="campo-onnx bench step.onnx step.mixed.onnx --steps 20"),
    Step(
        command=f"campo-onnx optimize {MIXED} --dry-run",
        text="A file that is a result already.",
    ),
    Step(
        command="campo-onnx optimize inference.onnx --device v100",
        title="Seven files, as people bring them",
        text="One perceptron, 1024-2048-2048-10, at batch 128. As `torch.onnx.export` writes it:",
        lines=7,
    ),
    Step(
        command="campo-onnx optimize gradients.onnx --device v100",
        text="Loss and gradients, from `export_training_step`:",
        lines=6,
    ),
    Step(
        command="campo-onnx optimize whole.onnx --device v100",
        text="With AdamW's update in the file:",
        lines=6,
    ),
    Step(command="campo-onnx optimize unscaled.onnx --device h200", text="Without a loss scale:", lines=7),
    Step(
        command="campo-onnx optimize half.onnx --device cpu",
        text="Converted to FP16 by ONNX Runtime's tool, for a machine that has none:",
        lines=8,
    ),
    Step(
        command="campo-onnx optimize mixed.onnx --device v100",
        text="Converted by it with a list of operators that stay FP32, Relu:",
        lines=8,
    ),
    Step(command="campo-onnx compare mixed.onnx --device v100", text="Is that file better as it is?"),
    Step(command="campo-onnx optimize quantized.onnx --device v100", text="Quantized:", lines=6),
    Step(
        command="campo-onnx devices",
        title="Measured on this machine",
        text="This processor has BF16 units, and OpenVINO uses them.",
    ),
    Step(
        command="campo-onnx optimize unscaled.onnx --runtime openvino --verify -o faster.onnx",
        text="`--verify` measures the step before and after, and writes FP32 unless the mixed one is faster.",
        lines=8,
    ),
    Step(command="campo-onnx bench unscaled.onnx faster.onnx --runtime openvino --steps 20"),
    Step(command="campo-onnx optimze step.onnx", exit_code=2, title="What goes wrong", is_quick=True),
    Step(command="campo-onnx optimize stepp.onnx", exit_code=2, is_quick=True),
    Step(command="campo-onnx optimize step.onnx --device h20", exit_code=2, is_quick=True),
    Step(command="campo-onnx optimize step.onnx --strategy optimel", exit_code=2, is_quick=True),
    Step(command="campo-onnx optimize step.onnx --lists tf11", exit_code=2, is_quick=True),
    Step(
        command="campo-onnx optimize step.onnx --dim batch=64 --dry-run --quiet", exit_code=2, is_quick=True
    ),
    Step(command="campo-onnx optimize step.onnx -o -", exit_code=2, is_quick=True),
    Step(
        command="campo-onnx optimize step.onnx --deny MatMull --keep-fp32 nosuchnode --dry-run --quiet",
        text="Overrides without effect are warnings, and errors with `--strict`.",
        is_quick=True,
    ),
    Step(
        command="campo-onnx optimize step.onnx --deny MatMull --dry-run --strict", exit_code=2, is_quick=True
    ),
    Step(command=f"campo-onnx explain {PLAN} intermediate/Gem", exit_code=2),
    Step(
        command="campo-onnx compare stepp.onnx --json",
        exit_code=2,
        text="With `--json` an error is a document on stdout.",
        is_quick=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where commands run.

    Parameters
    ----------
    programs
        Folder of the installed program.
    folder
        The working folder.
    """

    programs: Path
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """No colours, no settings of the user's, no code but the installed one."""
        kept = {k: v for k, v in os.environ.items() if k in ("LANG", "LC_ALL", "TMPDIR")}
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        home = self.folder.parent / "home"
        kept |= {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
        }
        return kept | {"PATH": path, "NO_COLOR": "1", "TERM": "xterm"}


def in_terminal(command: str, place: Place, width: int) -> tuple[str, int]:
    """Run it with a pseudo-terminal as its output; messages come first, as a pipe has them."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, width, 0, 0))
    with tempfile.TemporaryFile("w+") as messages:
        process = subprocess.Popen(
            shlex.split(command), stdout=slave, stderr=messages, cwd=place.folder, env=place.env
        )
        os.close(slave)
        pieces = []
        while True:
            try:
                piece = os.read(master, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        code = process.wait()
        os.close(master)
        messages.seek(0)
        text = messages.read() + b"".join(pieces).decode().replace("\r\n", "\n")
    return tidy(text), code


def in_pipe(command: str, place: Place) -> str:
    """Run it with a pipe as its output."""
    done = subprocess.run(
        shlex.split(command), cwd=place.folder, env=place.env, capture_output=True, text=True, check=True
    )
    return tidy(done.stdout)


def in_tmux(command: str, place: Place, width: int) -> str:
    """Run it in a pane of tmux, and read the pane."""
    tmux = ["tmux", "-L", f"first-minutes-{os.getpid()}"]
    size = ["-x", str(width), "-y", "60"]
    line = f"{command}; sleep 60"
    subprocess.run([*tmux, "new-session", "-d", *size, line], cwd=place.folder, env=place.env, check=True)
    seen = ""
    for _ in range(60):
        time.sleep(1)
        pane = [*tmux, "capture-pane", "-p"]
        before, seen = seen, tidy(subprocess.run(pane, capture_output=True, text=True, check=True).stdout)
        if seen and seen == before:
            break
    subprocess.run([*tmux, "kill-server"], check=True)
    return seen


def tidy(text: str) -> str:
    """Without escape sequences, trailing blanks and empty lines around it."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "\n".join(line.rstrip() for line in plain.splitlines()).strip("\n")


def block(command: str, output: str, code: int) -> str:
    """One command with its answer, as a page shows it."""
    ended = f"\n(exit code {code})" if code else ""
    return f"```console\n$ {command}\n{output}".rstrip() + f"{ended}\n```\n"


def page(place: Place, origin: str) -> str:
    """Walk, and write down; `origin` tells how the program was installed."""
    from first_minutes_models import write_models  # needs torch

    shutil.copy(OWN_MODEL, place.folder / "step.onnx")
    write_models(place.folder)
    parts = []
    for step in STEPS:
        output, code = in_terminal(step.command, place, 80)
        if code != step.exit_code:
            sys.exit(f"{step.command}: exit code {code} instead of {step.exit_code}\n{output}")
        parts += [f"## {step.title}\n"] if step.title else []
        parts += [f"{step.text}\n"] if step.text else []
        parts.append(block(step.command, shortened(output, step.lines), code))
    parts.append("## Other widths\n")
    wide, _ = in_terminal(REPEATED, place, 120)
    parts += ["At 120 columns:\n", block(REPEATED, shortened(wide), 0)]
    parts += [
        "In a pipe nothing is left out:\n",
        block(f"{REPEATED} | cat", shortened(in_pipe(REPEATED, place)), 0),
    ]
    if shutil.which("tmux"):
        parts += ["In tmux, at 80 columns:\n", block(REPEATED, shortened(in_tmux(REPEATED, place, 80)), 0)]
    else:
        parts.append("Not tried in tmux, which was not installed.\n")
    version, _ = in_terminal("campo-onnx --version", place, 80)
    head = (
        "# The first ten minutes\n\n"
        "<!-- by docs/make_first_minutes.py; edit that, not this -->\n\n"
        f"What a newcomer types, and what comes back: {version} {origin},\n"
        f"on {datetime.now(UTC):%Y-%m-%d} with Python "
        f"{platform.python_version()}, on a machine without a GPU, at\n"
        f"80 columns, with `NO_COLOR`. Every figure for a GPU is a prediction. {_told_of_load()}\n"
    )
    return "\n".join([head, *parts])


def _told_of_load() -> str:
    """Say whether other work ran beside what was measured."""
    wanted, cores = os.getloadavg()[2], os.cpu_count() or 1
    if wanted < 1.5 * cores:
        return "The machine was idle otherwise."
    return (
        f"Beside the walk\nother work wanted the {cores} cores (load {wanted:.0f}): measured steps take a "
        "multiple of their time alone, and\nonly their ratios, which are taken in turns, tell something."
    )


def shortened(output: str, most: int = _LINES) -> str:
    """The first lines of an output."""
    lines = output.splitlines()
    return output if len(lines) <= most else "\n".join([*lines[:most], "..."])


def installed(scratch: Path) -> Path:
    """Build the wheel, install it with what reports and figures need; returns the folder of programs."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True, env=env)
    python = scratch / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", scratch / "dist", ROOT], check=True, env=env)
    (wheel,) = (scratch / "dist").glob("*.whl")
    subprocess.run([*pip, "install", f"{wheel}[report,openvino]"], check=True, env=env)
    return python.parent


def main() -> None:
    """Walk and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, help="an installed campo-onnx, instead of a fresh one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if asked.program is None:
            programs = installed(scratch)
            origin = "from its wheel, with the extras `report`\nand `openvino`, in a fresh environment"
        else:
            programs, origin = asked.program.absolute().parent, "from an environment that was there"
        folder = scratch / "walk"
        folder.mkdir()
        text = page(Place(programs=programs, folder=folder), origin)
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
