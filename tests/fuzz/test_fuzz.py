"""A part of the campaign, and what kills and full disks leave behind: ``make test-campaign``."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.faults import can_be_injected
from tests.fuzz.minimize import minimized

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(sys.platform == "win32", reason="it forks")]


def test_some_of_the_campaign(tmp_path):
    """The first cases, always the same; in a process of its own, since forks and threads do not mix."""
    options = ["--count", "200", "--cheap", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["cases"] == 200


def test_a_campaign_finds_what_is_wrong():
    from tests.fuzz.cases import Case
    from tests.fuzz.checks import violations
    from tests.fuzz.sandbox import Outcome

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


def test_a_failure_is_made_small():
    sound = json.dumps({"kind": "plan", "rows": list(range(300)), "name": "a"}).encode()
    broken = sound.replace(b" 17,", b" -17,").replace(b'"a"', b'"b"')

    def fails(data):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return -17 in json.loads(data)["rows"]
        return False

    assert json.loads(minimized(broken, sound, ".json", fails)) == {"rows": [-17]}


@pytest.mark.skipif(not can_be_injected(), reason="faults are injected on Linux, with a C compiler")
@pytest.mark.parametrize("command", ["save out.safetensors"])
def test_faults_while_writing(tmp_path, command):
    options = ["--out", str(tmp_path), "--only", command, "--bare", "--random", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.kills", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)["by fault"]
    assert counts["killed"] > 4
    assert counts["disk full"] > 1
