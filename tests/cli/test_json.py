"""Every ``--json`` prints one kind of document, which says what it is; docs/ci.md lists them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from campo_onnx_cli.main import app

from campo_onnx.bench.result import FORMAT as BENCH
from campo_onnx.calibrate.calibration import FORMAT as CALIBRATION
from campo_onnx.integrations.trial.result import FORMAT as TRIAL
from campo_onnx.measure.profile import FORMAT as PROFILE

ROOT = Path(__file__).parents[2]
MLP = ROOT / "tests" / "data" / "mlp.onnx"
ON_V100 = (MLP, "--device", "v100", "--costs", "datasheet")
RUNS = {
    "optimize": ("optimize", *ON_V100, "--dry-run", "--probe", "off", "--json"),
    "compare": ("compare", *ON_V100, "--json"),
    "frontier": ("frontier", *ON_V100, "--runs", "4", "--emulated", "2", "--json"),
    "explain": ("explain", "plan.json", "--json"),
    "devices": ("devices", "--json"),
    "check": ("check", "m.onnx", "--against", *ON_V100[:3], "--min-speedup", "0", "--json"),
    "an error": ("optimize", "none.onnx", "--json"),
}
FILES = {"bench": BENCH, "calibrate": CALIBRATION, "profile": PROFILE, "try": TRIAL}


def documented() -> dict[str, tuple[str, int]]:
    """Kind and version by command, as the table in the docs has them."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    rows = re.findall(
        r'^\| `?([a-z ]+?)(?: --json`)? \| `"(campo-onnx [a-z]+)"` \| (\d+) \|', page, re.MULTILINE
    )
    return {command: (kind, int(version)) for command, kind, version in rows}


def test_every_command_with_json_is_in_the_table() -> None:
    group: Any = typer.main.get_command(app)
    params = {name: group.get_command(None, name).params for name in group.commands}
    with_json = {name for name, own in params.items() if any("--json" in p.opts for p in own)}
    assert {*documented()} == with_json | {"an error"} == {*RUNS} | {*FILES}


@pytest.mark.parametrize("command", RUNS)
def test_what_is_printed_begins_as_documented(command, program, capsys) -> None:
    if command in ("explain", "check"):
        assert program("optimize", *ON_V100, "-o", "m.onnx", "--plan", "plan.json", "--probe", "off") == 0
        capsys.readouterr()
    program(*RUNS[command])
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (document["kind"], document["format_version"]) == documented()[command]


@pytest.mark.parametrize("command", FILES)
def test_what_is_also_a_file_is_written_as_documented(command) -> None:
    assert (FILES[command].kind, FILES[command].version) == documented()[command]


def test_what_optimize_prints_is_a_plan(program, capsys) -> None:
    program(*RUNS["optimize"])
    Path("plan.json").write_text(capsys.readouterr().out)
    assert program("explain", "plan.json") == 0
