"""The page of a newcomer's first minutes: its commands still exist, and end as it says."""

import re
import runpy
import shutil
from pathlib import Path

from tests.cli.conftest import program as program

ROOT = Path(__file__).parent.parent
WALK = runpy.run_path(str(ROOT / "docs" / "make_first_minutes.py"))
SHOWN = re.compile(
    r"^```console\n\$ (?P<command>[^\n]+)\n(?:(?!```).*\n)*?(?:\(exit code (?P<code>\d+)\)\n)?```", re.M
)


def test_the_page_has_the_walk():
    text = WALK["PAGE"].read_text(encoding="utf-8").partition("## Other widths")[0]
    shown = [(match["command"], int(match["code"] or 0)) for match in SHOWN.finditer(text)]
    assert shown == [(step.command, step.exit_code) for step in WALK["STEPS"]]


def test_commands_end_as_the_page_says(program, capsys):
    shutil.copy(WALK["OWN_MODEL"], "step.onnx")
    for step in WALK["STEPS"]:
        if step.is_quick:
            assert program(*step.command.split()[1:]) == step.exit_code, step.command
            assert not re.search(r"\bbug:", capsys.readouterr().err)
