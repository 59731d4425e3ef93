"""Command lines that people mistype, and that strangers write: words dropped, repeated, replaced, added."""

import random
import shlex
from functools import cache
from typing import Any

import typer

from tests.fuzz.cases import Case
from tests.fuzz.hostile import HOSTILE_FLOATS, HOSTILE_INTS, HOSTILE_TEXTS

_PLAUSIBLE = (
    *("step.onnx", "tiny.onnx", "plan.json", "batch.npz", "lists.toml", "cal.json", "store.sqlite", "."),
    *("auto", "cpu", "cuda", "v100", "h200", "zen4", "fp16", "bf16", "fp8", "openvino", "tf-amp", "campo"),
    *("fp32", "measure", "model", "graph", "csv", "no/such", "x=1", "x=-1:1", "x=1:-1", "B=0", "B=4", "("),
)
# No argument holds a NUL, and half a surrogate pair stands for a byte. None names a file elsewhere.
_TEXTS = tuple(text.replace("\0", "").replace("/", "|").replace("\ud800", "\udcff") for text in HOSTILE_TEXTS)
_NUMBERS = tuple(map(str, (*HOSTILE_INTS, *HOSTILE_FLOATS)))
_FEW = ("", "0", "-1", "1", "6", "1e400", "nan", "1.5", "x", "9" * 5000)

_LASTING = {"--steps", "--verify-steps", "--seconds", "--runs", "--emulated", "--shapes", "--probe-s"}
"""Options that ask for work: a large number is obeyed for as long."""
_WRITTEN = {"--output", "--plan", "--report", "--plot", "--junit"}
"""Options that name a file to write."""
_NOT_WRITABLE = ("", ".", "tiny.onnx", "lists.toml", "plan.json", "no/such/out.json", "x" * 300)
_LEFT_OUT = {"--force", "--cluster", "--folder", "--store", "--results", "--help", "--workers"}
"""Options that may overwrite or make folders, or that reach beyond the folder of a case."""


def with_other_arguments(case: Case, rng: random.Random) -> Case:
    """Change the command line of a case."""
    words = case.words
    options = _options(words[0])
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(1, len(words)) if len(words) > 1 else 0
        name = rng.choice(list(options))
        match rng.randrange(5):
            case 0 if at and "-o" not in words[at - 1 : at + 1]:
                del words[at]
            case 1 if at and "-o" not in words[at - 1 : at + 1]:
                words[at] = _value(words[at - 1], rng)
            case 2 if not words[at].startswith("-"):
                words[at + 1 : at + 1] = [rng.choice((*_TEXTS, *_PLAUSIBLE))]
            case _:
                words += [name] if options[name] else [name, _value(name, rng)]
    return Case(case.file, shlex.join(words))


@cache
def _options(command: str) -> dict[str, bool]:
    """Options of a command, and whether each is a flag."""
    from cli.main import app

    program: Any = typer.main.get_command(app)
    context = program.context_class(program, info_name="campo-onnx")
    params = program.get_command(context, command).params
    longest = {max(param.opts, key=len): param for param in params if param.param_type_name == "option"}
    return {name: bool(param.is_flag) for name, param in longest.items() if name not in _LEFT_OUT}


def _value(option: str, rng: random.Random) -> str:
    if option in _WRITTEN:
        return rng.choice(_NOT_WRITABLE)
    if option in _LASTING:
        return rng.choice(_FEW)
    return rng.choice(rng.choice((_PLAUSIBLE, _TEXTS, _NUMBERS)))
