"""Starts: help and lists load what they need, counted in modules; `-h` fits on a screen."""

import re
import subprocess
import sys

import pytest
from campo_onnx_cli.commands import HOME
from campo_onnx_cli.help import LINES
from campo_onnx_cli.main import app
from typer.testing import CliRunner

PROGRAM = (
    "import atexit, sys\n"
    "sys.argv = ['campo-onnx', *sys.argv[1:]]\n"
    "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    "from campo_onnx_cli.start import run\n"
    "run()\n"
)
HEAVY = {"numpy", "onnx", "onnxruntime", "openvino", "polars", "scipy", "torch", "jax", "msgspec"}
SCREEN = {"rich", "markdown_it", "pygments"}
MOST_OF_OURS = 40  # of about 450


def loaded(*words: str) -> set[str]:
    answer = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return {*answer.stderr.splitlines()[-1].split()}


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    "words", [("--version",), ("optimize", "--help"), ("optimize", "-h"), ("check", "-h")]
)
def test_help_loads_nothing_that_plans_or_draws(words) -> None:
    modules = loaded(*words)
    assert not packages(modules) & (HEAVY | SCREEN)
    assert len([module for module in modules if module.startswith("campo_onnx")]) <= MOST_OF_OURS


def test_a_command_does_not_load_the_others() -> None:
    modules = loaded("devices", "--help")
    others = {f"campo_onnx_cli.{home}" for name, home in HOME.items() if name != "devices"}
    assert "campo_onnx_cli.devices" in modules
    assert not modules & others


def test_devices_loads_nothing_that_reads_graphs() -> None:
    assert not packages(loaded("devices")) & (HEAVY - {"msgspec"})


@pytest.mark.parametrize("name", HOME)
def test_short_help_fits_on_a_screen_and_names_every_option(name, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (CliRunner().invoke(app, [name, option]).output for option in ("-h", "--help"))
    lines = short.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 79
    options = {*re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", whole.partition("\n\n")[2])}
    own = {option for option in options if re.search(rf"^  (-\w, )?{option}\b", whole, re.MULTILINE)}
    assert len(own) > 1
    assert not {option for option in own if option not in short}
    assert lines[-1].endswith(f" {name} --help")


def test_whole_help_tells_everything(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = " ".join(CliRunner().invoke(app, ["optimize", "--help"]).output.split())
    for part in (
        "By default the strategy's own lists.",
        "[default: auto]",
        "What may run in low precision",
        "writes bert.mixed.onnx.",
    ):
        assert part in whole


def test_help_keeps_its_short_name_whoever_asks_first() -> None:
    from campo_onnx_cli.commands import _loaded
    from typer import Context

    _loaded.cache_clear()
    _loaded("demo").get_params(Context(_loaded("demo")))
    assert CliRunner().invoke(app, ["demo", "-h"]).exit_code == 0
