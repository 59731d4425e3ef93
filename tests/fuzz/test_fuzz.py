"""A part of the campaign, and what kills and full disks leave behind: ``make test-campaign``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(sys.platform == "win32", reason="it forks")]


def test_some_of_the_campaign(tmp_path):
    """The first cases, always the same; in a process of its own, since forks and threads do not mix."""
    options = ["--count", "40", "--cheap", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["cases"] == 40


def test_a_campaign_finds_what_is_wrong():
    from tests.fuzz.checks import violations
    from tests.fuzz.sandbox import Outcome
    from tests.fuzz.subjects import Case

    folder = Path(__file__).parent / "no-such-folder"
    case = Case("plan.json", "explain %%")
    for code, err, wrong in (
        (None, "", "hang"),
        (-11, "", "exit code -11"),
        (1, "bug: KeyError", "a bug of ours"),
        (2, "error: a\nerror: b\n", "2 messages"),
        (0, "\x1b[2J", "prints ['\\x1b'] raw"),
        (0, "::stop-commands::x", "prints the command '::stop-commands::x'"),
    ):
        outcome = Outcome(code=code, out="", err=err, seconds=0.0)
        assert wrong in violations(case, outcome, {}, folder)
    lost = violations(case, Outcome(code=0, out="", err="", seconds=0.0), {"w.bin": "1"}, folder)
    assert lost == ["w.bin is lost"]


@pytest.mark.parametrize("command", ["save out.safetensors"])
def test_faults_while_writing(tmp_path, command):
    options = ["--out", str(tmp_path), "--only", command, "--bare"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.kills", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed" in done.stdout
    assert "disk_full" in done.stdout
