"""A session on the CUDA provider, from the outside: killed at any time, it resumes and comes to its end."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from campo_onnx.runtime.machine import Machine
from tests.cuda.conftest import STUB
from tests.cuda.test_commands import GRAPH, KNOWN_GPU

ROOT = Path(__file__).parents[2]
STEPS = "facts,provider,calibration_quick,launches,step_mlp,profile_mlp,bench_mlp"
KILLS = 10


def session(work: Path, *words: str, steps: str = STEPS) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.gpu_session", "--quick", "--work", str(work)]
    command += ["--ops", "Relu", "--shapes", "9", "--only", steps, *words, GRAPH]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "STUB_GPU_NAME": KNOWN_GPU, "OMP_NUM_THREADS": "1"},
    )


def records(work: Path) -> dict[str, dict[str, object]]:
    paths = sorted((work / "session_cuda").glob("*.step.json"))
    return {path.name.removesuffix(".step.json"): json.loads(path.read_text()) for path in paths}


def failure_of(facts: dict[str, object]) -> str:
    """Why a step failed; but no time of the stubs means anything, also that one is too short to fit."""
    failure = str(facts.get("failure", ""))
    return "" if re.search("cannot be fitted|too short to be timed", failure) else failure


@pytest.fixture(autouse=True)
def _on_stubs(cuda: Machine) -> None:
    if not cuda.device.startswith(STUB):
        pytest.skip("a real GPU is not for rehearsals")


def test_a_session_that_is_killed_ten_times_comes_to_its_end(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(KILLS):
        running = session(tmp_path)
        try:
            running.wait(chance.uniform(0.5, 4.0))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
        running.communicate()
    last = session(tmp_path, "--retry")  # three kills within one step, without progress, count as its failure
    said, _ = last.communicate()
    assert last.returncode == 0, said
    assert said.rstrip().endswith("all done")
    by_step = records(tmp_path)
    assert set(by_step) == set(STEPS.split(","))
    assert {name: failure_of(facts) for name, facts in by_step.items() if failure_of(facts)} == {}
    with tarfile.open(tmp_path / "session_cuda.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {"timings.sqlite", "calibration_quick.step.json"} <= names
    assert ".running" not in names


def test_a_step_that_ends_its_process_costs_that_step_only(tmp_path: Path) -> None:
    mark = tmp_path / "session_cuda" / ".running"
    mark.parent.mkdir()
    # As three processes leave it that ended within the step.
    mark.write_text(json.dumps({"step": "facts", "began_s": time.monotonic(), "deaths": 2}))
    running = session(tmp_path, steps="facts,calibration_quick,launches")
    said, _ = running.communicate()
    assert running.returncode == 0, said
    by_step = records(tmp_path)
    assert "3 processes ended in it" in str(by_step["facts"]["failure"])
    assert failure_of(by_step["calibration_quick"]) == failure_of(by_step["launches"]) == ""


def test_nothing_of_the_stubs_gets_among_the_results() -> None:
    results = ROOT / "benchmarks" / "results"
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    running = session(results)
    said, _ = running.communicate()
    assert running.returncode != 0
    assert "no measurement" in said
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before
