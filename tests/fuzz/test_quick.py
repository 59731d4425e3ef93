"""A few cases of the campaign, in each run of the tests: the commands that are new."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it forks")


def test_new_commands_survive_broken_files(tmp_path):
    """In a process of its own, since forks and threads do not mix."""
    options = ["--count", "60", "--cheap", "--seed", "4000", "--out", str(tmp_path)]
    options += [f"--containing={text}" for text in ("--rules", "--lower", "partly", "half", "--max-casts")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["cases"] == 60
    assert summary["by exit code"]["0"] > 5
