"""`scripts/gpu/lease.sh` on the stubs: calls that are ended at random points go on from what came home."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from campo_onnx.runtime.machine import Machine
from tests.cuda.conftest import STUB
from tests.cuda.test_commands import GRAPH, KNOWN_GPU
from tests.cuda.test_session import failure_of, records

LEASE = Path(__file__).parents[2] / "scripts" / "gpu" / "lease.sh"
STEPS = "facts,provider,bench_mlp,numerics_mlp,calibration_quick,launches"
CALLS = 10


@pytest.fixture(autouse=True)
def _on_stubs(cuda: Machine) -> None:
    if not cuda.device.startswith(STUB):
        pytest.skip("a real GPU is not for rehearsals")


def lease(out: Path, site: Path, *words: str) -> "subprocess.Popen[str]":
    shims = site / "bin"
    if not shims.exists():
        shims.mkdir(parents=True)
        (shims / "python3").symlink_to(sys.executable)
    command = ["bash", str(LEASE), "--budget-s", "120", "--out", str(out), *words]
    command += ["--", "--ops", "Relu", "--shapes", "9", "--only", STEPS, "--retry", GRAPH]
    environment = {
        **os.environ,
        "PATH": f"{shims}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(path for path in sys.path if path.endswith("site-packages")),
        "CAMPO_SITE": str(site),
        "STUB_GPU_NAME": KNOWN_GPU,
        "OMP_NUM_THREADS": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)


def test_calls_that_are_ended_come_to_the_end_of_the_list(tmp_path: Path) -> None:
    chance, resume = random.Random(1), ()
    for call in range(CALLS):
        out = tmp_path / f"call_{call}"
        running = lease(out, tmp_path / "site", *resume)
        try:
            running.wait(chance.uniform(1.0, 8.0))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGTERM)
        said, _ = running.communicate()
        if named := re.search(r"--resume (\S+)", said):
            resume = ("--resume", named[1])
    out = tmp_path / "last"
    last = lease(out, tmp_path / "site", *resume)
    said, _ = last.communicate()
    assert last.returncode == 0, said
    assert "all done" in said
    done = records(out / "work")
    assert set(done) == set(STEPS.split(","))
    assert {name: failure_of(facts) for name, facts in done.items() if failure_of(facts)} == {}
